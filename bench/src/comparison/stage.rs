//! What is seen of a contender while it works?

use anyhow::{Context, Result};
use millrace_workload::caches;

use crate::cases::scene::Scene;
use crate::lab::Lab;
use crate::rig::usage::MemoryWatch;

const MIB: f64 = (1 << 20) as f64;

/// One round of one case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// The figure.
    pub value: f64,
    /// What was done: files, megabytes, reads, entries.
    pub items: f64,
    /// What the reader got, bytes.
    pub read_bytes: u64,
    /// What was seen meanwhile.
    pub seen: Seen,
}

/// What was seen beside the figure.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Seen {
    /// Whether S3 is where the bytes come from.
    pub is_of_s3: bool,
    /// S3 requests.
    pub requests: u64,
    /// Bytes of bodies out of S3.
    pub bytes: u64,
    /// The most anonymous memory of all its processes, bytes; `None` without processes of its own.
    pub memory_bytes: Option<u64>,
}

impl Sample {
    /// S3 requests for each item.
    pub fn requests_per_item(&self) -> Option<f64> {
        (self.seen.is_of_s3 && self.items > 0.0).then(|| self.seen.requests as f64 / self.items)
    }

    /// Bytes out of S3 for each byte read.
    pub fn bytes_per_byte(&self) -> Option<f64> {
        (self.seen.is_of_s3 && self.read_bytes > 0).then(|| self.seen.bytes as f64 / self.read_bytes as f64)
    }

    /// Anonymous memory, MiB.
    pub fn memory_mib(&self) -> Option<f64> {
        self.seen.memory_bytes.map(|bytes| bytes as f64 / MIB)
    }
}

/// Does something and watches the contender's processes and S3 meanwhile.
///
/// # Errors
/// That of `work`, or where the S3 server is gone.
pub fn watched<T>(
    scene: &mut Scene,
    is_of_s3: bool,
    pids: &[u32],
    work: impl FnOnce(&Scene) -> Result<T>,
) -> Result<(T, Seen)> {
    scene.origin.reset()?;
    let watches: Vec<MemoryWatch> = pids.iter().map(|pid| MemoryWatch::start(*pid)).collect();
    let done = work(scene)?;
    let most = watches.into_iter().map(MemoryWatch::most).sum();
    let counters = scene.origin.counters().context("count the requests")?;
    let memory_bytes = (!pids.is_empty()).then_some(most);
    let requests = counters.requests.values().sum();
    Ok((done, Seen { is_of_s3, requests, bytes: counters.body_bytes, memory_bytes }))
}

/// Empties the kernel's caches, and keeps the host's memory out of what follows.
///
/// # Errors
/// Where this user may not, or the folder in memory cannot be written.
pub fn forget(lab: &Lab) -> Result<()> {
    lab.check()?;
    caches::drop_all()?;
    lab.hold_memory()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_bytes_are_told_of_those_who_ask_s3() {
        let seen = Seen { is_of_s3: true, requests: 30, bytes: 200, memory_bytes: Some(3 << 20) };
        let mut sample = Sample { value: 1.0, items: 10.0, read_bytes: 100, seen };
        assert_eq!((sample.requests_per_item(), sample.bytes_per_byte()), (Some(3.0), Some(2.0)));
        assert_eq!(sample.memory_mib(), Some(3.0));
        sample.read_bytes = 0;
        assert_eq!(sample.bytes_per_byte(), None);
        sample.seen.is_of_s3 = false;
        assert_eq!((sample.requests_per_item(), sample.bytes_per_byte()), (None, None));
    }
}
