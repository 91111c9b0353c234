//! How is one measurement made?

use std::cell::OnceCell;
use std::path::Path;

use millrace_workload::blocks::{mapped, random, sequential};
use millrace_workload::caches;
use millrace_workload::clock::Monotonic;
use millrace_workload::error::Error;
use millrace_workload::metadata::{stat, walk};
use millrace_workload::overhead;
use millrace_workload::run::{Outcome, Plan};
use millrace_workload::small_files::{SMALL_BYTES, small_files};
use millrace_workload::train::{Fit, FolderSource, Job, Training, TrainingData, train};
use millrace_workload::tree::{MAX_FILES, Tree};
use serde::Serialize;

use super::args::MeasureArgs;
use super::plan::{Step, What};

/// A folder that is measured. It is listed when the first case needs its files, so that a cold `find` stays cold.
pub struct Folder<'a> {
    args: &'a MeasureArgs,
    path: &'a Path,
    seed: u64,
    memory_bytes: u64,
    tree: OnceCell<Tree>,
}

/// What came of a measurement.
#[derive(Debug)]
pub enum Measured {
    /// Of operations.
    Run(Outcome),
    /// Of a job, and what it read.
    Train(Training, TrainedFrom),
    /// Of the program itself.
    Overhead(overhead::Overhead),
}

/// What a job read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TrainedFrom {
    /// Files that were taken for samples.
    pub files: usize,
    /// Their bytes.
    #[serde(rename = "data_bytes")]
    pub bytes: u64,
    /// Why the result is to be taken with care.
    pub doubts: Vec<String>,
}

impl<'a> Folder<'a> {
    /// A folder on a machine of so much memory.
    pub fn new(args: &'a MeasureArgs, path: &'a Path, seed: u64, memory_bytes: u64) -> Self {
        Self { args, path, seed, memory_bytes, tree: OnceCell::new() }
    }

    /// Its files.
    fn tree(&self) -> Result<&Tree, Error> {
        if let Some(tree) = self.tree.get() {
            return Ok(tree);
        }
        let tree = Tree::list(self.path, MAX_FILES)?;
        Ok(self.tree.get_or_init(|| tree))
    }

    /// What is to be known of it beside the results, once it was listed.
    pub fn note(&self) -> Option<String> {
        let is_cut = self.tree.get().is_some_and(|tree| tree.is_cut);
        is_cut.then(|| {
            format!("there are more than {MAX_FILES} files: others than find and ls take the first of them")
        })
    }

    /// Makes one measurement; `repetition` counts from 0, and each has its own order.
    ///
    /// # Errors
    /// What cannot be read, or is not there.
    pub fn measure(&self, step: Step, repetition: u32) -> Result<Measured, Error> {
        let Step { case: _, what, threads } = step;
        let runtime = self.args.runtime;
        let plan = Plan { clock: &Monotonic, threads, runtime, seed: self.seed_of(repetition) };
        let outcome = match what {
            What::Sequential(bytes, access) => {
                let files = self.tree()?.at_least(bytes)?;
                self.ready()?;
                sequential(plan, &files, bytes, access)
            }
            What::Random(bytes, access) => {
                let files = self.tree()?.at_least(bytes)?;
                self.ready()?;
                random(plan, &files, bytes, access)
            }
            What::Mapped(bytes) => {
                let files = self.tree()?.at_least(bytes)?;
                self.ready()?;
                mapped(plan, &files, bytes)
            }
            What::SmallFiles => {
                let files = self.tree()?.at_most(SMALL_BYTES)?;
                self.ready()?;
                small_files(plan, &files)
            }
            What::Walk(look) => {
                self.ready()?;
                walk(plan, self.path, look)
            }
            What::Stat => {
                let files = &self.tree()?.files;
                self.ready()?;
                stat(plan, files)
            }
            What::Train => return self.train(threads, repetition),
            What::Overhead => return overhead::measure(&Monotonic, self.seed).map(Measured::Overhead),
        };
        outcome.map(Measured::Run)
    }

    fn train(&self, ranks: usize, repetition: u32) -> Result<Measured, Error> {
        let args = &self.args.train;
        let profile = args.profile();
        let fit = if args.any_size { Fit::AnySize } else { Fit::Profile };
        let data = TrainingData::new(self.tree()?, &profile, ranks, fit)?;
        let doubts = data.doubts(&profile, ranks, args.steps, self.memory_bytes);
        self.ready()?;
        let job = Job {
            clock: &Monotonic,
            profile,
            ranks,
            epochs: args.epochs,
            max_steps: args.steps,
            // Repetitions must not repeat each other's epochs.
            seed: self.seed_of(repetition * args.epochs),
        };
        let training = train(job, &data.layout, &FolderSource { files: &data.files })?;
        Ok(Measured::Train(training, TrainedFrom { files: data.files.len(), bytes: data.bytes(), doubts }))
    }

    fn seed_of(&self, number: u32) -> u64 {
        self.seed.wrapping_add(u64::from(number))
    }

    /// Makes it cold where that is asked for.
    fn ready(&self) -> Result<(), Error> {
        if self.args.drop_caches { caches::drop_all() } else { Ok(()) }
    }
}
