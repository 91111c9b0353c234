//! How busy would accelerators be if they trained from this folder?
//!
//! Each emulated accelerator (a *rank*) is a thread that waits for a batch, sleeps for as long as the computation would take, and
//! waits for the others; threads of its own read ahead for it. Nothing is decoded: storage is what is measured.

pub mod au;
pub mod order;
pub mod profile;
pub mod timeline;

mod barrier;
mod data;
mod epoch;
mod gate;
mod queue;
mod reader;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod virtual_clock;

use serde::Serialize;

pub use data::{Fit, TrainingData};
pub use reader::{FolderSource, MemorySource, Scratch, Source};

use self::au::mean;
use self::order::Layout;
use self::profile::Profile;
use self::timeline::Timeline;
use crate::clock::Clock;
use crate::error::Error;
use crate::latency::{Latencies, LatencySummary};

/// Steps of an epoch below which MLPerf Storage does not believe a result.
pub const WANTED_STEPS: u64 = 500;

/// The memory that data should exceed so many times, by the same rules.
pub const WANTED_MEMORY_MULTIPLE: u64 = 5;

/// How a job is run.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// By which clock.
    pub clock: &'a dyn Clock,
    /// What each accelerator does.
    pub profile: Profile,
    /// Accelerators, at least one.
    pub ranks: usize,
    /// How often all is read.
    pub epochs: u32,
    /// Steps of an epoch at most.
    pub max_steps: Option<u64>,
    /// Where the orders start; each epoch has its own.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Training {
    /// Each epoch.
    pub epochs: Vec<Epoch>,
    /// Accelerator utilization, 0 to 1: the mean over ranks, then over epochs, without first steps.
    pub au: Option<f64>,
    /// What it must be.
    pub least_au: f64,
    /// Whether it is.
    pub is_reached: bool,
    /// Time for all epochs, without what lies between them.
    pub seconds: f64,
    /// Samples read.
    pub samples: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Times from a sample's open to its close.
    pub latency: Option<LatencySummary>,
    /// How the ranks' time split, from the start of the first epoch on.
    pub timeline: Timeline,
}

/// One epoch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Epoch {
    /// Mean of the ranks.
    pub au: Option<f64>,
    /// Of each rank.
    pub au_of_ranks: Vec<Option<f64>>,
    /// From the start of the first rank to the end of the last.
    pub seconds: f64,
    /// Steps of each rank.
    pub steps: u64,
    /// Samples that all ranks took, the first step's too.
    pub samples: u64,
    /// Seconds that ranks waited for data, summed over the ranks, the first step's apart.
    pub wait_seconds: f64,
    /// Seconds that they computed, likewise.
    pub compute_seconds: f64,
    /// Seconds that they waited for each other, likewise.
    pub barrier_seconds: f64,
    /// Wait for the first batch, the longest of the ranks.
    pub first_wait_seconds: f64,
}

impl Training {
    /// Samples a second, the first steps' too.
    pub fn samples_per_second(&self) -> f64 {
        crate::run::rate(self.samples as f64, self.seconds)
    }

    /// Megabytes (10^6 bytes) a second.
    pub fn megabytes_per_second(&self) -> f64 {
        crate::run::rate(self.bytes as f64 / 1e6, self.seconds)
    }

    /// Shares of the ranks' time that went into waiting for data, computing, and waiting for each other; first steps apart.
    pub fn split(&self) -> Option<[f64; 3]> {
        let sum = |part: fn(&Epoch) -> f64| self.epochs.iter().map(part).sum::<f64>();
        let parts = [
            sum(|epoch| epoch.wait_seconds),
            sum(|epoch| epoch.compute_seconds),
            sum(|epoch| epoch.barrier_seconds),
        ];
        let all: f64 = parts.iter().sum();
        (all > 0.0).then(|| parts.map(|part| part / all))
    }
}

/// The epoch has met an error somewhere.
#[derive(Debug)]
struct Ended;

/// Runs a job: `layout` says what there is to read, `source` reads it.
///
/// # Errors
/// The first sample that cannot be read; `Thread` where a thread cannot be started.
pub fn train(job: Job<'_>, layout: &Layout, source: &dyn Source) -> Result<Training, Error> {
    let mut training = Training {
        epochs: Vec::new(),
        au: None,
        least_au: job.profile.least_au,
        is_reached: false,
        seconds: 0.0,
        samples: 0,
        bytes: 0,
        latency: None,
        timeline: Timeline::default(),
    };
    let mut latencies = Latencies::default();
    for epoch in 0..job.epochs {
        let seed = job.seed.wrapping_add(u64::from(epoch));
        let orders = order::deal(layout, job.ranks, job.profile.read_threads, seed);
        let done = epoch::run(job, orders, source, training.seconds)?;
        latencies.merge(&done.latencies);
        training.seconds += done.epoch.seconds;
        training.samples += done.epoch.samples;
        training.bytes += done.bytes;
        training.timeline.merge(done.timeline);
        training.epochs.push(done.epoch);
    }
    training.au = mean(training.epochs.iter().map(|epoch| epoch.au));
    training.is_reached = training.au.is_some_and(|au| au >= training.least_au);
    training.latency = latencies.summary();
    Ok(training)
}
