//! The program `operator`: see `operator serve --help`.

use std::process::ExitCode;

use clap::Parser;
use millrace_operator::config::{Cli, Command};

/// Runs the program.
pub fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    // Only fails where one is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("operator").build()?;
    match command {
        Command::Serve(args) => {
            millrace_daemon::logging::init(&args.log)?;
            Ok(runtime.block_on(millrace_operator::serve::serve(*args))?)
        }
        Command::CheckUninstall => Ok(runtime.block_on(millrace_operator::uninstall::check())?),
    }
}
