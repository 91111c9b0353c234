//! The program `csi-driver`.

use std::process::ExitCode;

use clap::Parser;
use millrace_csi_driver::config::mount::{Config, MountArgs};
use millrace_csi_driver::config::serve::{ServeArgs, ServeConfig};
use millrace_csi_driver::config::{Cli, Command};
use millrace_csi_driver::driver::drive;
use millrace_csi_driver::serve::serve;

/// Returns freed memory to the kernel sooner than glibc's, and does not grow with the number of threads.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Mount(args) => run_mount(&args),
        Command::Serve(args) => run_driver(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("csi-driver: {error:#}");
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
