//! The program `operator`: see `operator serve --help`.

use std::process::ExitCode;

use clap::Parser;
use millrace_operator::config::{Cli, Command};

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let Command::Serve(args) = command;
    // Only fails where one is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let result = millrace_daemon::logging::init(&args.log).map_err(anyhow::Error::from).and_then(|()| {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("operator")
            .build()?
            .block_on(millrace_operator::serve::serve(*args))
            .map_err(anyhow::Error::from)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}
