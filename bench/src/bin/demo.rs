//! The program `demo`: the main job on real files, from a bucket through three workers to a mount and back down.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use millrace_bench::demo;
use millrace_bench::lab::{Lab, Options};
use millrace_bench::rig::origin::{self, ServerArgs};

/// Puts real files in a bucket, serves them through Millrace, and compares what the mount shows byte for byte.
#[derive(Debug, Parser)]
#[command(name = "demo", version)]
struct Cli {
    #[command(subcommand)]
    part: Option<Part>,
}

/// What the program runs as for itself.
#[derive(Debug, Subcommand)]
enum Part {
    /// An S3 server that is told what to do on its standard input.
    #[command(name = "s3-server", hide = true)]
    S3Server(ServerArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().part {
        Some(Part::S3Server(args)) => origin::serve(&args),
        None => Lab::new(Options::default()).and_then(|lab| demo::run(&lab)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}
