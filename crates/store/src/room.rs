//! Is enough of the file system left to others?

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::statvfs;

use crate::stats::NotKept;

/// How long an answer of statvfs is good for while there is plenty.
const SAMPLE_AGE: Duration = Duration::from_secs(1);

/// How long it is good for once it says that there is too little: space may have come free.
const SHORT_SAMPLE_AGE: Duration = Duration::from_millis(50);

/// How often it is said that too little is left.
const SAY_EVERY: Duration = Duration::from_secs(600);

/// Inodes of a store file: data, sidecar, and for the first of its folder the folder.
const INODES_A_FILE: u64 = 3;

/// What a file system must have left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floors {
    pub bytes: u64,
    pub inodes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    bytes: u64,
    inodes: u64,
}

/// The free space of a tier's file system, sampled.
#[derive(Debug)]
pub(crate) struct Room {
    floors: Floors,
    sample: Mutex<Option<Sample>>,
    /// What this process wrote since the sample, bytes.
    spent_bytes: AtomicU64,
    /// Store files that it made since.
    spent_files: AtomicU64,
    /// When it was last said that too little is left.
    said: Mutex<Option<Instant>>,
}

impl Room {
    /// Watches for `floors`; all zero asks nothing of the system.
    pub fn new(floors: Floors) -> Self {
        Self {
            floors,
            sample: Mutex::new(None),
            spent_bytes: AtomicU64::new(0),
            spent_files: AtomicU64::new(0),
            said: Mutex::new(None),
        }
    }

    /// Whether `bytes` and `files` more store files leave the floors untouched.
    pub fn check(&self, dir: &Path, bytes: u64, files: u64) -> Result<(), NotKept> {
        if self.floors.bytes == 0 && self.floors.inodes == 0 {
            return Ok(());
        }
        let mut kept = self.sample.lock();
        let mut answer = Err(NotKept::FreeSpace);
        for longest in [SAMPLE_AGE, SHORT_SAMPLE_AGE] {
            let sample = match *kept {
                Some(sample) if sample.at.elapsed() < longest => sample,
                _ => {
                    let sample = take(dir).map_err(|error| NotKept::of_io(&error))?;
                    self.spent_bytes.store(0, Ordering::Relaxed);
                    self.spent_files.store(0, Ordering::Relaxed);
                    *kept.insert(sample)
                }
            };
            let spent_files = if files > 0 { self.spent_files.load(Ordering::Relaxed) } else { 0 };
            let bytes = self.spent_bytes.load(Ordering::Relaxed) + bytes;
            answer = judge(&self.floors, &sample, bytes, spent_files + files);
            if answer.is_ok() {
                return answer;
            }
        }
        if let (Err(reason), Some(sample)) = (&answer, *kept) {
            self.say(dir, *reason, &sample);
        }
        answer
    }

    /// Tells the log now and then: a cache that silently keeps nothing is what a user would not find.
    fn say(&self, dir: &Path, reason: NotKept, sample: &Sample) {
        let mut said = self.said.lock();
        if said.is_some_and(|at| at.elapsed() < SAY_EVERY) {
            return;
        }
        *said = Some(Instant::now());
        let Sample { at: _, bytes, inodes } = sample;
        let Floors { bytes: floor_bytes, inodes: floor_inodes } = self.floors;
        let reason = reason.label();
        tracing::warn!(
            ?dir,
            reason,
            free_bytes = bytes,
            floor_bytes,
            free_inodes = inodes,
            floor_inodes,
            "store folder keeps nothing more: free space on its disk, or use another"
        );
    }

    /// Notes bytes written and store files made since the sample.
    pub fn spend(&self, bytes: u64, files: u64) {
        self.spent_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.spent_files.fetch_add(files, Ordering::Relaxed);
    }

    /// Forgets the sample, after space was freed.
    pub fn forget(&self) {
        *self.sample.lock() = None;
    }
}

fn judge(floors: &Floors, sample: &Sample, bytes: u64, files: u64) -> Result<(), NotKept> {
    if sample.bytes < floors.bytes.saturating_add(bytes) {
        return Err(NotKept::FreeSpace);
    }
    if files > 0 && sample.inodes < floors.inodes.saturating_add(INODES_A_FILE * files) {
        return Err(NotKept::FreeInodes);
    }
    Ok(())
}

fn take(dir: &Path) -> io::Result<Sample> {
    let stat = statvfs(dir)?;
    // Some file systems make inodes as they go and say 0 of 0.
    let inodes = if stat.f_files == 0 { u64::MAX } else { stat.f_favail };
    Ok(Sample { at: Instant::now(), bytes: stat.f_bavail.saturating_mul(stat.f_frsize), inodes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floors_hold_for_bytes_and_inodes() {
        let floors = Floors { bytes: 100, inodes: 10 };
        let sample = Sample { at: Instant::now(), bytes: 200, inodes: 13 };
        assert_eq!(judge(&floors, &sample, 100, 1), Ok(()));
        assert_eq!(judge(&floors, &sample, 101, 0), Err(NotKept::FreeSpace));
        assert_eq!(judge(&floors, &sample, 0, 2), Err(NotKept::FreeInodes));
        let none_left = Sample { inodes: 0, ..sample };
        assert_eq!(
            judge(&floors, &none_left, 100, 0),
            Ok(()),
            "a chunk of a file that is there needs no inode"
        );
    }
}
