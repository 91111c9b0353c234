//! How does the S3 server run as a process of its own, and how is it told to change?
//!
//! The program calls itself with [`COMMAND`]; requests and answers are lines on its standard input and output. It ends
//! with its input, so that it never outlives who started it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use millrace_s3_server::backend::spec::SyntheticSpec;
use millrace_s3_server::counters::Snapshot;
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::server::S3Server;
use serde::{Deserialize, Serialize};

use super::child::Program;

/// First argument that makes the program an S3 server.
pub const COMMAND: &str = "s3-server";

/// A line to the server.
#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    Counters,
    Reset,
    Faults(FaultPlan),
}

/// The first line from the server, and its answers.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Ready { endpoint: String },
    Counters(Box<Snapshot>),
    Done,
    Refused(String),
}

/// One bucket.
#[derive(Debug, Clone)]
pub enum Bucket {
    /// Computed objects.
    Synthetic(SyntheticSpec),
    /// A folder's files.
    Folder(String, PathBuf),
}

/// An S3 server in a process of its own.
#[derive(Debug)]
pub struct Origin {
    /// Where it answers: a URL.
    pub endpoint: String,
    /// The process.
    pub program: Program,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Origin {
    /// Starts a server of `buckets` that behaves as `plan` says; its log goes to `dir`.
    ///
    /// # Errors
    /// Where it does not start.
    pub fn start(buckets: &[Bucket], plan: &FaultPlan, dir: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped());
        for bucket in buckets {
            match bucket {
                Bucket::Synthetic(spec) => command.arg("--synthetic").arg(text_of(spec)),
                Bucket::Folder(name, path) => command.arg("--folder").arg(name).arg(path),
            };
        }
        let mut program = Program::start("the S3 server", &mut command, &dir.join("s3-server.log"))?;
        let (ask, answers) = program.pipes()?;
        let mut origin = Self { endpoint: String::new(), program, ask, answers };
        match origin.answer()? {
            Answer::Ready { endpoint } => origin.endpoint = endpoint,
            other => bail!("the S3 server begins with {other:?}"),
        }
        origin.set_faults(plan)?;
        Ok(origin)
    }

    /// Puts another plan in force.
    ///
    /// # Errors
    /// Where the server is gone or refuses.
    pub fn set_faults(&mut self, plan: &FaultPlan) -> Result<()> {
        self.done(&Ask::Faults(plan.clone()))
    }

    /// Sets the counters to nothing.
    ///
    /// # Errors
    /// Where the server is gone.
    pub fn reset(&mut self) -> Result<()> {
        self.done(&Ask::Reset)
    }

    /// The counters now.
    ///
    /// # Errors
    /// Where the server is gone.
    pub fn counters(&mut self) -> Result<Snapshot> {
        match self.call(&Ask::Counters)? {
            Answer::Counters(counters) => Ok(*counters),
            other => bail!("the S3 server answers {other:?}"),
        }
    }

    fn done(&mut self, ask: &Ask) -> Result<()> {
        match self.call(ask)? {
            Answer::Done => Ok(()),
            other => bail!("the S3 server answers {other:?}"),
        }
    }

    fn call(&mut self, ask: &Ask) -> Result<Answer> {
        let mut line = serde_json::to_string(ask)?;
        line.push('\n');
        self.ask
            .write_all(line.as_bytes())
            .with_context(|| format!("ask the S3 server: {}", self.program.end_of_log()))?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("the S3 server has ended: {}", self.program.end_of_log());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

/// What the hidden command takes.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArgs {
    /// A bucket of computed objects.
    #[arg(long)]
    synthetic: Vec<SyntheticSpec>,
    /// A bucket of a folder's files: name and folder.
    #[arg(long, num_args = 2, value_names = ["BUCKET", "DIR"])]
    folder: Vec<String>,
}

/// Is the server, until the input ends.
///
/// # Errors
/// Where it cannot start.
pub fn serve(args: &ServerArgs) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    // The single keys' counters cost a lock and a map for each answer.
    let mut builder = S3Server::builder().configure(|config| config.tracked_keys = 0);
    for spec in &args.synthetic {
        builder = builder.bucket(spec.bucket.clone(), spec.clone());
    }
    for pair in args.folder.chunks_exact(2) {
        if let [name, dir] = pair {
            builder = builder.bucket(name.clone(), Path::new(dir));
        }
    }
    let server = runtime.block_on(builder.start())?;
    tell(&Answer::Ready { endpoint: server.endpoint() })?;
    for line in std::io::stdin().lines() {
        let answer = match serde_json::from_str(&line?)? {
            Ask::Counters => Answer::Counters(Box::new(server.counters())),
            Ask::Reset => {
                server.reset_counters();
                Answer::Done
            }
            Ask::Faults(plan) => match server.set_faults(plan) {
                Ok(()) => Answer::Done,
                Err(error) => Answer::Refused(error.to_string()),
            },
        };
        tell(&answer)?;
    }
    runtime.block_on(server.shutdown());
    Ok(())
}

fn tell(answer: &Answer) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(answer)?)?;
    Ok(out.flush()?)
}

/// The short form of a spec, which has no explicit keys.
fn text_of(spec: &SyntheticSpec) -> String {
    let SyntheticSpec { bucket, objects, min_size, max_size, prefix, suffix, per_dir, depth, seed, keys: _ } =
        spec;
    let (min, max) = (min_size.0, max_size.0);
    format!(
        "bucket={bucket},objects={objects},size={min}..{max},prefix={prefix},suffix={suffix},per-dir={per_dir},depth={depth},seed={seed}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_reads_back_from_the_command_line() {
        let spec: SyntheticSpec =
            "bucket=train,objects=10,size=1KiB..3MiB,prefix=a/,per-dir=100,depth=2,suffix=.x,seed=3"
                .parse()
                .unwrap();
        assert_eq!(text_of(&spec).parse::<SyntheticSpec>().unwrap(), spec);
    }

    #[test]
    fn lines_read_back() {
        let plan = FaultPlan::default().with_rates(None, Some(400_000_000));
        let line = serde_json::to_string(&Ask::Faults(plan.clone())).unwrap();
        assert!(matches!(serde_json::from_str(&line).unwrap(), Ask::Faults(read) if read == plan));
        let line = serde_json::to_string(&Answer::Counters(Box::default())).unwrap();
        assert!(matches!(serde_json::from_str(&line).unwrap(), Answer::Counters(_)));
    }
}
