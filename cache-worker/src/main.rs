//! The program `cache-worker`: see `cache-worker serve --help`.

use std::process::ExitCode;

use clap::Parser;
use millrace_cache_worker::config::{Cli, Command, Config};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let Command::Serve(args) = command;
    let result = millrace_daemon::logging::init(&args.log).map_err(anyhow::Error::from).and_then(|()| {
        let config = Config::from_args(&args)?;
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("cache-worker")
            .build()?
            .block_on(millrace_cache_worker::serve::serve(config))
            .map_err(anyhow::Error::from)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cache-worker: {error:#}");
            ExitCode::FAILURE
        }
    }
}
