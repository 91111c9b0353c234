//! How busy are emulated accelerators that train from a folder, by the program that users have?

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use millrace_workload::train::profile::{Accelerator, Model, Profile};
use serde::Deserialize;
use tempfile::TempDir;

use crate::lab::{Lab, program};
use crate::rig::cgroup::Cgroup;
use crate::rig::child::Program;

/// For the program to end once it has told its result.
const END: Duration = Duration::from_secs(10);

/// A job.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// The model.
    pub model: Model,
    /// Size of samples as a share of the model's.
    pub scale: f64,
}

/// How much of it is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Length {
    /// How often the data is read.
    pub epochs: u32,
    /// Steps of an epoch at most.
    pub steps: u64,
}

/// Runs `millrace bench PATH train`.
#[derive(Debug)]
pub struct Emulator {
    job: Job,
    logs: TempDir,
}

/// The part of the document that is read.
#[derive(Debug, Deserialize)]
struct Document {
    training: Vec<Training>,
}

#[derive(Debug, Deserialize)]
struct Training {
    au: Option<f64>,
}

impl Job {
    /// What an A100 does in it.
    pub fn profile(&self) -> Profile {
        Profile::new(self.model, Accelerator::A100).with_sample_scale(self.scale)
    }

    /// What makes about `seconds` of computation for so many accelerators over so many samples.
    pub fn length(&self, samples: u64, ranks: usize, seconds: f64) -> Length {
        let profile = self.profile();
        // At least the two steps without which there is no utilization.
        let wanted = ((seconds / profile.compute.as_secs_f64()).ceil() as u64).max(2);
        let there = samples / (profile.batch * ranks as u64).max(1);
        let steps = wanted.min(there.max(2));
        Length { epochs: u32::try_from(wanted.div_ceil(steps)).unwrap_or(u32::MAX), steps }
    }
}

impl Emulator {
    /// For a job.
    pub fn new(lab: &Lab, job: Job) -> Result<Self> {
        Ok(Self { job, logs: lab.disk_dir("train")? })
    }

    /// The job.
    pub fn job(&self) -> Job {
        self.job
    }

    /// Share of their time that so many A100 compute while they train from `root`.
    pub fn utilization(
        &self,
        root: &Path,
        ranks: usize,
        length: Length,
        seed: u64,
        group: Option<&Cgroup>,
    ) -> Result<f64> {
        let path = program("millrace")?;
        let mut command = match group {
            Some(group) => group.command(&path),
            None => Command::new(path),
        };
        command
            .arg("bench")
            .arg(root)
            .args(["train", "--profile", self.job.model.name(), "--accelerator", "a100"])
            .args(["--ranks", &ranks.to_string(), "--epochs", &length.epochs.to_string()])
            .args(["--steps", &length.steps.to_string(), "--seed", &seed.to_string()])
            .args(["--sample-scale", &self.job.scale.to_string(), "--output", "json"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let log = self.logs.path().join("millrace.log");
        let mut bench = Program::start("millrace bench", &mut command, &log)?;
        let mut text = String::new();
        bench.output()?.read_to_string(&mut text)?;
        let status = bench.wait_for_end(END)?;
        anyhow::ensure!(status.success(), "millrace bench ({status}): {}", bench.end_of_log());
        let document: Document = serde_json::from_str(&text).context("read what millrace bench told")?;
        document.training.first().and_then(|training| training.au).context("millrace bench told no AU")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_as_long_for_few_accelerators_as_for_many() {
        let job = Job { model: Model::Resnet50Raw, scale: 1.0 };
        assert_eq!(job.length(46_822, 1, 4.0), Length { epochs: 1, steps: 10 });
        assert_eq!(job.length(46_822, 20, 4.0), Length { epochs: 2, steps: 5 });
        assert_eq!(job.length(100, 8, 4.0), Length { epochs: 5, steps: 2 });
    }

    #[test]
    fn the_result_is_found_in_what_the_program_tells() {
        let document: Document =
            serde_json::from_str(r#"{"seed": 1, "training": [{"ranks": 1, "au": 0.5}]}"#).unwrap();
        assert_eq!(document.training[0].au, Some(0.5));
    }
}
