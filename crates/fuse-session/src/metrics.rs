//! How many requests came, how did they end, and how many are open?

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::io::Errno;

use crate::opcode::Opcode;

/// Slots for opcodes, indexed by number; the largest is 53.
const OPCODE_SLOTS: usize = 64;

/// Classes of errors, few enough for a metric label.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ErrorClass {
    /// No such name or attribute (ENOENT, ENODATA).
    NotFound,
    /// A change of a read-only file system (EROFS).
    ReadOnly,
    /// Not implemented (ENOSYS, EOPNOTSUPP).
    NotSupported,
    /// No permission (EACCES, EPERM).
    NotAllowed,
    /// The reader was interrupted (EINTR).
    Interrupted,
    /// Content could not be had (EIO, ETIMEDOUT).
    Content,
    /// Anything else.
    Other,
}

impl ErrorClass {
    /// Every class.
    pub const ALL: [Self; 7] = [
        Self::NotFound,
        Self::ReadOnly,
        Self::NotSupported,
        Self::NotAllowed,
        Self::Interrupted,
        Self::Content,
        Self::Other,
    ];

    /// Gives the class of an error.
    pub fn of(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NODATA => Self::NotFound,
            Errno::ROFS => Self::ReadOnly,
            Errno::NOSYS | Errno::OPNOTSUPP => Self::NotSupported,
            Errno::ACCESS | Errno::PERM => Self::NotAllowed,
            Errno::INTR => Self::Interrupted,
            Errno::IO | Errno::TIMEDOUT => Self::Content,
            _ => Self::Other,
        }
    }

    /// Gives the name used as metric label.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::ReadOnly => "read_only",
            Self::NotSupported => "not_supported",
            Self::NotAllowed => "not_allowed",
            Self::Interrupted => "interrupted",
            Self::Content => "content",
            Self::Other => "other",
        }
    }
}

/// Counters of one connection.
#[derive(Debug)]
pub(crate) struct Metrics {
    requests: [AtomicU64; OPCODE_SLOTS],
    unknown: AtomicU64,
    errors: [AtomicU64; ErrorClass::ALL.len()],
    /// Requests that the kernel sent again after RESEND.
    pub resent: AtomicU64,
    /// INTERRUPTs that found their request.
    pub interrupted: AtomicU64,
    /// Requests dropped without an answer, answered EIO.
    pub dropped: AtomicU64,
    /// Answers that came after the kernel had given up on their request.
    pub late: AtomicU64,
    /// Answers that the kernel did not take.
    pub refused: AtomicU64,
    /// Messages that could not be parsed.
    pub malformed: AtomicU64,
    /// Requests turned away because too many were in flight.
    pub turned_away: AtomicU64,
    /// Panics of the file system.
    pub panics: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: [const { AtomicU64::new(0) }; OPCODE_SLOTS],
            unknown: AtomicU64::new(0),
            errors: Default::default(),
            resent: AtomicU64::new(0),
            interrupted: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            late: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        }
    }
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Metrics {
    /// Counts a request by the number of its operation.
    pub fn request(&self, number: u32) {
        let known = Opcode::from_number(number).and_then(|opcode| self.requests.get(opcode as usize));
        count(known.unwrap_or(&self.unknown));
    }

    /// Counts an answer that is an error.
    pub fn error(&self, errno: Errno) {
        if let Some(counter) = self.errors.get(ErrorClass::of(errno) as usize) {
            count(counter);
        }
    }

    /// Reads all counters; they move on meanwhile, so sums may be off by what is in flight.
    pub fn snapshot(&self, in_flight: u64) -> MetricsSnapshot {
        let requests = |opcode: &Opcode| {
            let count = self.requests.get(*opcode as usize).map_or(0, |counter| counter.load(Relaxed));
            (*opcode, count)
        };
        let errors = |class: ErrorClass| {
            (class, self.errors.get(class as usize).map_or(0, |counter| counter.load(Relaxed)))
        };
        MetricsSnapshot {
            requests: Opcode::ALL.iter().map(requests).collect(),
            unknown: self.unknown.load(Relaxed),
            errors: ErrorClass::ALL.into_iter().map(errors).collect(),
            in_flight,
            resent: self.resent.load(Relaxed),
            interrupted: self.interrupted.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            late: self.late.load(Relaxed),
            refused: self.refused.load(Relaxed),
            malformed: self.malformed.load(Relaxed),
            turned_away: self.turned_away.load(Relaxed),
            panics: self.panics.load(Relaxed),
        }
    }
}

/// The counters of a connection at one moment; all count up but `in_flight`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MetricsSnapshot {
    /// Requests by operation, sorted by opcode, zeros included.
    pub requests: Vec<(Opcode, u64)>,
    /// Requests with an opcode that this crate does not know.
    pub unknown: u64,
    /// Answers that were errors, by class.
    pub errors: Vec<(ErrorClass, u64)>,
    /// Requests taken and not answered.
    pub in_flight: u64,
    /// Requests that the kernel sent again after RESEND.
    pub resent: u64,
    /// Requests whose reader was interrupted while they were in flight.
    pub interrupted: u64,
    /// Requests that were dropped without an answer and so got EIO; a bug of the file system.
    pub dropped: u64,
    /// Answers that came after the kernel had given up on their request (killed reader, aborted, sent again).
    pub late: u64,
    /// Answers that the kernel refused; a bug of this crate or of the file system.
    pub refused: u64,
    /// Messages from the kernel that could not be parsed.
    pub malformed: u64,
    /// Requests answered ENOMEM because too many were in flight.
    pub turned_away: u64,
    /// Panics of the file system, answered EIO.
    pub panics: u64,
}

impl MetricsSnapshot {
    /// Gives the number of requests of one operation.
    pub fn requests_of(&self, opcode: Opcode) -> u64 {
        self.requests.iter().find(|(counted, _)| *counted == opcode).map_or(0, |(_, count)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_has_its_own_slot() {
        let metrics = Metrics::default();
        Opcode::ALL.iter().for_each(|opcode| metrics.request(*opcode as u32));
        metrics.request(7);
        let snapshot = metrics.snapshot(0);
        assert!(snapshot.requests.iter().all(|(_, count)| *count == 1), "{snapshot:?}");
        assert_eq!(snapshot.unknown, 1);
    }

    #[test]
    fn errors_are_counted_by_class() {
        let metrics = Metrics::default();
        for errno in [Errno::NOENT, Errno::NODATA, Errno::ROFS, Errno::DOM] {
            metrics.error(errno);
        }
        let errors = metrics.snapshot(0).errors;
        let counted: Vec<_> = errors.into_iter().filter(|(_, count)| *count > 0).collect();
        let expected = [(ErrorClass::NotFound, 2), (ErrorClass::ReadOnly, 1), (ErrorClass::Other, 1)];
        assert_eq!(counted, expected);
    }
}
