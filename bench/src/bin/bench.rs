//! The program `bench`: see `bench --help`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use millrace_bench::cases::{self, CASES, Case, Outcome};
use millrace_bench::comparison;
use millrace_bench::lab::{Lab, Options};
use millrace_bench::line::Line;
use millrace_bench::report;
use millrace_bench::rig::origin::{self, ServerArgs};

/// Measures Millrace against baselines. Prints one JSON line a case, and a table in the end.
#[derive(Debug, Parser)]
#[command(name = "bench", version, args_conflicts_with_subcommands = true)]
struct Cli {
    /// Cases to run, in the order given; all where none is named.
    cases: Vec<String>,
    /// List the cases and end.
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    place: PlaceArgs,
    /// Where to append the lines.
    #[arg(long, value_name = "FILE", default_value_os_t = report::results_file())]
    results: PathBuf,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Where and how often is measured.
#[derive(Debug, Clone, Args)]
struct PlaceArgs {
    /// This many rounds in place of 9 to 15, or of 5 for `rivals`: for a quick look, whose intervals say little.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Folder on the disk to measure with.
    #[arg(long, value_name = "DIR", default_value_os_t = Options::default().disk)]
    dir: PathBuf,
    /// Folder on a tmpfs.
    #[arg(long, value_name = "DIR", default_value_os_t = Options::default().memory)]
    memory_dir: PathBuf,
    /// Measure as it comes on a virtual machine that gives free memory back to its host, in place of holding it.
    #[arg(long)]
    no_ballast: bool,
}

impl PlaceArgs {
    fn lab(&self) -> anyhow::Result<Lab> {
        Lab::new(Options {
            rounds: self.rounds.map(usize::from),
            disk: self.dir.clone(),
            memory: self.memory_dir.clone(),
            holds_memory: !self.no_ballast,
        })
    }
}

/// What else the program does, and what it runs as for itself.
#[derive(Debug, Subcommand)]
enum Part {
    /// Millrace, ext4, s3fs, rclone and a plain download in one run; writes bench/results/*.json and docs/benchmarks.md.
    Rivals {
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        options: comparison::Options,
    },
    /// An S3 server that is told what to do on its standard input.
    #[command(name = "s3-server", hide = true)]
    S3Server(ServerArgs),
    /// Sends a file's frames to whoever connects.
    #[command(name = "bare-server", hide = true)]
    BareServer {
        /// The file.
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.part {
        Some(Part::S3Server(args)) => origin::serve(args).map(|()| true),
        Some(Part::Rivals { place, options }) => rivals(place, options),
        Some(Part::BareServer { file }) => cases::bare_server(file).map(|()| true),
        None => run(&cli),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all cases ran; a missed bar is a result, not a failure.
fn run(cli: &Cli) -> anyhow::Result<bool> {
    if cli.list {
        CASES.iter().for_each(|case| println!("{:<19} {}", case.name, case.about));
        return Ok(true);
    }
    let cases = chosen(&cli.cases)?;
    let lab = cli.place.lab()?;
    let (mut lines, mut troubles): (Vec<Line>, Vec<String>) = (Vec::new(), Vec::new());
    for case in cases {
        eprintln!("{}: {}", case.name, case.about);
        match (case.run)(&lab) {
            Ok(Outcome::Measured(measured)) => {
                for line in measured.iter().map(millrace_bench::line::Measured::line) {
                    report::tell(&line, &cli.results)?;
                    lines.push(line);
                }
            }
            Ok(Outcome::Skipped(why)) => troubles.push(format!("{} skipped: {why}", case.name)),
            Err(error) if lab.is_interrupted() => return Err(error),
            Err(error) => troubles.push(format!("{} FAILED: {error:#}", case.name)),
        }
    }
    eprint!("\n{}", report::table(&lines));
    troubles.iter().for_each(|trouble| eprintln!("{trouble}"));
    Ok(!troubles.iter().any(|trouble| trouble.contains("FAILED")))
}

/// Whether everybody who is installed could be measured.
fn rivals(place: &PlaceArgs, options: &comparison::Options) -> anyhow::Result<bool> {
    let rounds = place.rounds.map_or(comparison::ROUNDS, usize::from);
    comparison::run(&place.lab()?, options, rounds)
}

fn chosen(names: &[String]) -> anyhow::Result<Vec<Case>> {
    if names.is_empty() {
        return Ok(CASES.to_vec());
    }
    let find = |name: &String| {
        CASES.iter().copied().find(|case| case.name == name).ok_or_else(|| {
            let known: Vec<&str> = CASES.iter().map(|case| case.name).collect();
            anyhow::anyhow!("there is no case {name:?}; the cases are {}", known.join(", "))
        })
    };
    names.iter().map(find).collect()
}
