//! The program `csi-driver`.

use std::process::ExitCode;

use clap::Parser;
use millrace_csi_driver::config::mount::{Config, MountArgs};
use millrace_csi_driver::config::{Cli, Command};
use millrace_csi_driver::serve::serve;

/// Returns freed memory to the kernel sooner than glibc's, and does not grow with the number of threads.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let Cli { command: Command::Mount(args) } = Cli::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("csi-driver: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &MountArgs) -> anyhow::Result<()> {
    millrace_daemon::logging::init(&args.log)?;
    let config = Config::from_args(args)?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(config))
}
