//! What has been asked of S3 so far, and how did it go?

use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{OriginErrorKind, Request};

/// Counters of one worker's traffic with S3; all only ever grow.
#[derive(Debug)]
pub struct Counters {
    gets: AtomicU64,
    lists: AtomicU64,
    bytes: AtomicU64,
    retries: AtomicU64,
    throttles: AtomicU64,
    errors: [AtomicU64; OriginErrorKind::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            gets: AtomicU64::new(0),
            lists: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            throttles: AtomicU64::new(0),
            errors: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

/// The counters at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountersNow {
    /// GetObject requests sent, tries counted each.
    pub gets: u64,
    /// ListObjectsV2 requests sent, tries counted each.
    pub lists: u64,
    /// Bytes of objects received, also of answers that were dropped later.
    pub bytes: u64,
    /// Requests sent again.
    pub retries: u64,
    /// Answers that asked us to slow down.
    pub throttles: u64,
    /// Failed tries by kind, in the order of [`OriginErrorKind::ALL`].
    pub errors: [(OriginErrorKind, u64); OriginErrorKind::ALL.len()],
}

impl Counters {
    /// Reads all counters.
    pub fn now(&self) -> CountersNow {
        let Self { gets, lists, bytes, retries, throttles, errors } = self;
        CountersNow {
            gets: gets.load(Ordering::Relaxed),
            lists: lists.load(Ordering::Relaxed),
            bytes: bytes.load(Ordering::Relaxed),
            retries: retries.load(Ordering::Relaxed),
            throttles: throttles.load(Ordering::Relaxed),
            errors: std::array::from_fn(|i| (OriginErrorKind::ALL[i], errors[i].load(Ordering::Relaxed))),
        }
    }

    pub(super) fn sent(&self, request: Request) {
        match request {
            Request::Get => self.gets.fetch_add(1, Ordering::Relaxed),
            Request::List => self.lists.fetch_add(1, Ordering::Relaxed),
        };
    }

    pub(super) fn received(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn failed(&self, kind: OriginErrorKind) {
        if kind == OriginErrorKind::Throttled {
            self.throttles.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(position) = OriginErrorKind::ALL.iter().position(|known| *known == kind) {
            self.errors[position].fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl CountersNow {
    /// Failed tries of one kind.
    pub fn of(&self, kind: OriginErrorKind) -> u64 {
        self.errors.iter().find(|(known, _)| *known == kind).map_or(0, |(_, count)| *count)
    }
}
