//! How much of a measurement is the measuring?

use std::os::unix::fs::FileExt;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::aligned::AlignedBuffer;
use crate::blocks::{Access, random, sequential};
use crate::clock::Clock;
use crate::error::Error;
use crate::run::Plan;
use crate::train::order::Layout;
use crate::train::profile::{Accelerator, Model, Profile, TRANSFER_BYTES};
use crate::train::{Job, MemorySource, TrainingData, train};
use crate::tree::Listed;

/// The smallest block that is measured as a rule: the smaller, the more the loop around it weighs.
const BLOCK_BYTES: u64 = 4096;

/// How much is asked for at once beforehand.
const WARM_UP_BYTES: u64 = 1 << 20;

/// Rounds of either loop, in turn.
const ROUNDS: usize = 9;

/// So much of a file is read at most: it is read once beforehand, so that it comes from the page cache.
const MAX_BYTES: u64 = 256 << 20;

/// Time of a round: a thousand times what it takes to start a thread and to add up its times.
const ROUND: Duration = Duration::from_millis(300);

/// Steps of the emulator: 1.75 s on an H100.
const STEPS: u64 = 500;

/// What the program itself takes. Reads are told in processor time, so that other programs of the machine do not count.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Overhead {
    /// Nanoseconds of a 4 KiB read in the loop of `random`.
    pub read_nanos: f64,
    /// Nanoseconds of the same read in a loop that does nothing else.
    pub bare_nanos: f64,
    /// By how much the first is more, as a share; below 0 where noise is larger than what is measured.
    pub read_share: f64,
    /// Utilization of an emulated accelerator with the shortest computation (cosmoflow, H100) where samples come from memory.
    pub emulator_au: f64,
}

/// Measures it, with the largest of the files.
///
/// # Errors
/// Where the file cannot be read.
pub fn measure(clock: &dyn Clock, files: &[&Listed], seed: u64) -> Result<Overhead, Error> {
    let file = files.iter().max_by_key(|file| file.size);
    let reads = match file {
        Some(file) => reading(clock, file, seed)?,
        None => Vec::new(),
    };
    let middle = |of: fn(&(f64, f64)) -> f64| median(reads.iter().map(of).collect());
    Ok(Overhead {
        read_nanos: middle(|(ours, _)| *ours),
        bare_nanos: middle(|(_, bare)| *bare),
        read_share: middle(|(ours, bare)| ours / bare - 1.0),
        emulator_au: emulator(clock, seed)?,
    })
}

/// Times of a read in our loop and in a bare one, nanoseconds, round by round.
fn reading(clock: &dyn Clock, file: &Listed, seed: u64) -> Result<Vec<(f64, f64)>, Error> {
    let opened = std::fs::File::open(&file.path);
    let opened = opened.map_err(|source| Error::Open { path: file.path.clone(), source })?;
    let file = &Listed { path: file.path.clone(), size: file.size.min(MAX_BYTES) };
    let blocks = (file.size / BLOCK_BYTES).max(1);
    let plan = Plan { clock, threads: 1, runtime: Duration::MAX, seed };
    sequential(plan, &[file], WARM_UP_BYTES, Access::Cached)?;
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES as usize);
    let mut rounds = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let plan = Plan { clock, threads: 1, runtime: ROUND, seed: seed ^ round as u64 };
        let started = processor_nanos();
        let operations = random(plan, &[file], BLOCK_BYTES, Access::Cached)?.operations;
        let ours = processor_nanos() - started;
        // The same blocks in the same order, made beforehand: the bare loop does nothing but read.
        let mut rng = SmallRng::seed_from_u64(plan.seed);
        let offsets: Vec<u64> = (0..operations).map(|_| rng.random_range(0..blocks) * BLOCK_BYTES).collect();
        let started = processor_nanos();
        for offset in offsets {
            let read = opened.read_at(buffer.as_mut(), offset);
            read.map_err(|source| Error::Read { path: file.path.clone(), offset, source })?;
        }
        let bare = processor_nanos() - started;
        let operations = operations.max(1) as f64;
        rounds.push((ours / operations, bare / operations));
    }
    Ok(rounds)
}

/// Time that processors spent on this program, nanoseconds.
fn processor_nanos() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(used).unwrap_or_default().as_nanos() as f64
}

fn emulator(clock: &dyn Clock, seed: u64) -> Result<f64, Error> {
    let profile = Profile::new(Model::Cosmoflow, Accelerator::H100);
    let job = Job { clock, profile, ranks: 1, epochs: 1, max_steps: Some(STEPS), seed };
    let samples = vec![profile.file_bytes(); usize::try_from(STEPS).unwrap_or(usize::MAX)];
    let data = TrainingData { files: Vec::new(), layout: Layout::Whole(samples) };
    let source = MemorySource::new(usize::try_from(TRANSFER_BYTES).unwrap_or(usize::MAX));
    Ok(train(job, &data, &source)?.au.unwrap_or(0.0))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Monotonic;

    #[test]
    fn both_loops_read_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = Listed { path: dir.path().join("f"), size: 1 << 20 };
        std::fs::write(&file.path, vec![1; 1 << 20]).unwrap();
        let rounds = reading(&Monotonic, &file, 3).unwrap();
        assert!(rounds.len() == ROUNDS && rounds.iter().all(|(ours, bare)| *ours > 0.0 && *bare > 0.0));
    }

    #[test]
    fn the_middle_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
