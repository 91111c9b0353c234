//! How much of a measurement is the measuring?

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::aligned::AlignedBuffer;
use crate::blocks::{Access, random};
use crate::clock::Clock;
use crate::error::Error;
use crate::run::Plan;
use crate::train::order::Layout;
use crate::train::profile::{Accelerator, Model, Profile, TRANSFER_BYTES};
use crate::train::{Job, MemorySource, train};
use crate::tree::Listed;

/// The smallest block that is measured as a rule: the smaller, the more the loop around it weighs.
const BLOCK_BYTES: u64 = 4096;

/// Rounds of either loop, in turn.
const ROUNDS: usize = 9;

/// Size of the file that is read: larger than processors' caches.
const FILE_BYTES: u64 = 128 << 20;

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

/// Measures it, on a file in memory: what is below must not matter.
///
/// # Errors
/// Where there is no memory for it.
pub fn measure(clock: &dyn Clock, seed: u64) -> Result<Overhead, Error> {
    let file = MemoryFile::new()?;
    let reads = reading(clock, &file.listed, ROUNDS, seed)?;
    let middle = |of: fn(&(f64, f64)) -> f64| median(reads.iter().map(of).collect());
    Ok(Overhead {
        read_nanos: middle(|(ours, _)| *ours),
        bare_nanos: middle(|(_, bare)| *bare),
        read_share: middle(|(ours, bare)| ours / bare - 1.0),
        emulator_au: emulator(clock, seed)?,
    })
}

/// A file that is nowhere but in memory, and gone with the value.
struct MemoryFile {
    listed: Listed,
    _open: File,
}

impl MemoryFile {
    fn new() -> Result<Self, Error> {
        let path = PathBuf::from("memfd");
        let made = memfd_create("millrace-bench", MemfdFlags::CLOEXEC).map(File::from);
        let made = made.map_err(|errno| Error::Write { path: path.clone(), source: errno.into() });
        let mut file = made?;
        let bytes = vec![1; 1 << 20];
        for _ in 0..FILE_BYTES / bytes.len() as u64 {
            file.write_all(&bytes).map_err(|source| Error::Write { path: path.clone(), source })?;
        }
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(Self { listed: Listed { path, size: FILE_BYTES }, _open: file })
    }
}

/// Times of a read in our loop and in a bare one, nanoseconds, round by round.
fn reading(clock: &dyn Clock, file: &Listed, rounds: usize, seed: u64) -> Result<Vec<(f64, f64)>, Error> {
    let opened = File::open(&file.path);
    let opened = opened.map_err(|source| Error::Open { path: file.path.clone(), source })?;
    let blocks = (file.size / BLOCK_BYTES).max(1);
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES as usize);
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds {
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
        times.push((ours / operations, bare / operations));
    }
    Ok(times)
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
    let source = MemorySource::new(usize::try_from(TRANSFER_BYTES).unwrap_or(usize::MAX));
    Ok(train(job, &Layout::Whole(samples), &source)?.au.unwrap_or(0.0))
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
    fn both_loops_read_a_file_in_memory() {
        let file = MemoryFile::new().unwrap();
        let times = reading(&Monotonic, &file.listed, 1, 3).unwrap();
        assert!(times.len() == 1 && times[0].0 > 0.0 && times[0].1 > 0.0, "{times:?}");
        let path = file.listed.path.clone();
        drop(file);
        assert!(
            !std::fs::read_link(path).is_ok_and(|link| link.to_string_lossy().contains("millrace-bench"))
        );
    }

    #[test]
    fn the_middle_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
