//! How does the whole system run on one machine, without a cluster?
//!
//! `up` is the supervisor: it holds the lock of the Dataset's folder, starts workers and mount as child processes, and
//! starts them again when they die. All other commands find the processes by what the supervisor has written into the folder
//! ([`run_file`]), so that they work after any crash too. What a child is told is planned in [`plan`], which is pure.

mod addresses;
mod applied;
mod ask;
mod child;
mod clean;
mod dataset_status;
mod down;
pub mod folder;
mod follow;
mod identity;
mod index;
mod lock;
mod logs;
mod lost_index;
mod plan;
mod prepare;
mod process;
mod programs;
pub mod progress;
mod run_file;
mod select;
mod start;
mod status;
mod summary;
mod supervise;
mod up;
mod version_file;
mod warm;
mod why;
mod why_text;

use crate::args::{LocalArgs, LocalCommand};

/// Does what was asked for.
///
/// # Errors
/// For the user: what could not be done, why, and the cure.
pub async fn run(args: &LocalArgs, log_filter: &str) -> anyhow::Result<()> {
    let root = folder::Root::find(args.state_dir.as_deref())?;
    match &args.command {
        LocalCommand::Up(args) => up::up(&root, args, log_filter).await,
        LocalCommand::Status(args) => status::status(&root, args).await,
        LocalCommand::Warm(args) => warm::warm(&root, args).await,
        LocalCommand::Why(args) => why::why(&root, args).await,
        LocalCommand::Down(args) => down::down(&root, args).await,
        LocalCommand::Rm(args) => down::forget(&root, args).await,
    }
}
