//! What does the program `csi-driver` do, under whichever file it lies?
//!
//! It is a program of its own, and the program `millrace` is it too where it is called by this name: an image that needs both
//! then holds the code that they share once.

use std::process::ExitCode;

use clap::Parser;

use crate::config::mount::{Config, MountArgs};
use crate::config::serve::{ServeArgs, ServeConfig};
use crate::config::{Cli, Command};
use crate::driver::drive;
use crate::serve::serve;

/// The name by which it is called.
pub const NAME: &str = "csi-driver";

/// Runs it with the arguments of this process.
pub fn run() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Mount(args) => run_mount(&args),
        Command::Serve(args) => run_driver(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{NAME}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_mount(args: &MountArgs) -> anyhow::Result<()> {
    millrace_daemon::logging::init(&args.log)?;
    let config = Config::from_args(args)?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(config))
}

fn run_driver(args: &ServeArgs) -> anyhow::Result<()> {
    millrace_daemon::logging::init(&args.log)?;
    let config = ServeConfig::from_args(args);
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(drive(config))
}
