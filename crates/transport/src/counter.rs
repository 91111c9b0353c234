//! What does a data port count?

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that others read while it changes.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }
}

/// What a server counts, from its start.
#[derive(Debug, Default)]
pub struct ServerCounters {
    /// Connections open now, past their hello.
    pub connections: Counter,
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections that ended in their hello: wrong key, wrong version, too slow, another protocol.
    pub refused: Counter,
    /// Reads and batch reads, whole requests.
    pub reads: Counter,
    /// Requests in flight now.
    pub in_flight: Counter,
    /// Payload sent from files, bytes.
    pub file_bytes: Counter,
    /// Payload sent from memory, bytes.
    pub memory_bytes: Counter,
    /// Error frames sent.
    pub errors: Counter,
    /// Pending frames sent.
    pub pending: Counter,
    /// Requests that the client cancelled.
    pub cancelled: Counter,
    /// Connections closed because the client took no bytes.
    pub stalled: Counter,
    /// Frames whose pages had to be read from disk first.
    pub paged_in: Counter,
    /// Ranges of store files that could not be read, and were sent as zeros for the client to refuse.
    pub unreadable: Counter,
    /// Frames that could not be understood.
    pub bad_frames: Counter,
}

/// What a client counts, from its start.
#[derive(Debug, Default)]
pub struct ClientCounters {
    /// Reads and batch reads begun.
    pub reads: Counter,
    /// Requests sent to workers for them.
    pub requests: Counter,
    /// Verified chunks received.
    pub chunks: Counter,
    /// Bytes of those, without framing.
    pub bytes: Counter,
    /// Chunks that did not fit their CRC or length.
    pub bad_chunks: Counter,
    /// Chunks asked for again: elsewhere, or because they were bad.
    pub asked_again: Counter,
    /// Times that a worker was found silent.
    pub silent: Counter,
    /// Connections that ended.
    pub lost: Counter,
    /// Connections that could not be opened.
    pub not_connected: Counter,
    /// Signs of life while an answer was awaited.
    pub pending: Counter,
    /// Requests cancelled.
    pub cancelled: Counter,
    /// Reads of objects that ended in an error.
    pub failed: Counter,
    /// Newer memberships taken over.
    pub memberships: Counter,
}
