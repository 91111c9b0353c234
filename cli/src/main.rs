//! The program `millrace`: Datasets of a cluster, the whole system on one machine, and the embedded S3 server.

mod args;
mod bench;
mod completions;
mod crd_docs;
mod exit;
mod invoked;
mod kubernetes;
mod local;
mod manifest;
mod s3;
mod s3_check;
mod signals;
mod validate;

use std::process::ExitCode;

use crate::args::{Command, S3Command};

/// That of the csi-driver, which this program is too.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let name = invoked::name(std::env::args_os().next().as_ref());
    if name == invoked::Name::CsiDriver {
        return millrace_csi_driver::program::run();
    }
    if name == invoked::Name::KubectlCompletion {
        let words: Vec<String> =
            std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        return exit::code(runtime().and_then(|runtime| runtime.block_on(kubernetes::complete(&words))));
    }
    let cli = invoked::parse(name);
    let done = millrace_daemon::logging::init(&cli.log)
        .map_err(anyhow::Error::from)
        .and_then(|()| run(cli.command, &cli.log.log));
    exit::code(done)
}

fn run(command: Command, log_filter: &str) -> anyhow::Result<()> {
    match command {
        Command::Status(args) => runtime()?.block_on(kubernetes::status(&args)),
        Command::Why(args) => runtime()?.block_on(kubernetes::why(&args)),
        Command::Warm(args) => runtime()?.block_on(kubernetes::warm(&args)),
        Command::Local(args) => runtime()?.block_on(local::run(&args, log_filter)),
        Command::S3 { command: S3Command::Serve(args) } => runtime()?.block_on(s3::serve(&args)),
        Command::S3 { command: S3Command::Check(args) } => s3_check::check(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Validate(args) => validate::validate(&args),
        Command::Crd { docs: false } => exit::print(&millrace_api::dataset::crd::dataset_crd_yaml()),
        Command::Crd { docs: true } => {
            exit::print(&crd_docs::page(millrace_api::dataset::crd::dataset_schema()))
        }
        Command::Completions { shell } => completions::print(shell),
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("millrace").build()?)
}
