//! Which requests wait until their connection has room for one more?
//!
//! They are taken off the socket although they cannot begin, so that a cancel or a ping behind them is seen. How many is
//! bounded; beyond that the client waits in its socket, as do its cancels.

use std::collections::VecDeque;

use millrace_api::wire::{MAX_PLAIN_BODY_BYTES, Request};

/// Requests of one connection that wait.
const MAX_WAITING: usize = 64;

/// Bytes of their frames: two of the largest.
const MAX_WAITING_BYTES: u32 = 2 * MAX_PLAIN_BODY_BYTES;

#[derive(Debug)]
struct Waits {
    id: u64,
    bytes: u32,
    request: Request,
}

/// Requests of one connection in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    requests: VecDeque<Waits>,
    bytes: u32,
}

impl Waiting {
    /// Whether a request takes room on its connection until it is answered.
    pub(super) fn concerns(request: &Request) -> bool {
        match request {
            Request::Read(_) | Request::BatchRead(_) | Request::GetIndex(_) => true,
            Request::Cancel
            | Request::GetMembership
            | Request::Ping
            | Request::GetMountSettings
            | Request::Announce(_) => false,
        }
    }

    /// Whether no further one may be added.
    pub(super) fn is_full(&self) -> bool {
        self.requests.len() >= MAX_WAITING || self.bytes >= MAX_WAITING_BYTES
    }

    /// Adds a request whose frame's body has `bytes`.
    pub(super) fn push(&mut self, id: u64, bytes: u32, request: Request) {
        self.bytes += bytes;
        self.requests.push_back(Waits { id, bytes, request });
    }

    /// Takes the one that came first.
    pub(super) fn pop(&mut self) -> Option<(u64, Request)> {
        let Waits { id, bytes, request } = self.requests.pop_front()?;
        self.bytes -= bytes;
        Some((id, request))
    }

    /// Forgets a request; false where it does not wait.
    pub(super) fn cancel(&mut self, id: u64) -> bool {
        let found = self.requests.iter().position(|waits| waits.id == id);
        let cancelled = found.and_then(|at| self.requests.remove(at));
        self.bytes -= cancelled.as_ref().map_or(0, |waits| waits.bytes);
        cancelled.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_and_the_bytes_of_what_waits_are_bounded() {
        let mut waiting = Waiting::default();
        for id in 0..MAX_WAITING as u64 {
            assert!(!waiting.is_full());
            waiting.push(id, 100, Request::Ping);
        }
        assert!(waiting.is_full());
        assert!(waiting.cancel(5) && !waiting.cancel(5) && !waiting.is_full());
        assert_eq!(waiting.pop().map(|(id, _)| id), Some(0));
        let mut waiting = Waiting::default();
        waiting.push(1, MAX_PLAIN_BODY_BYTES, Request::Ping);
        assert!(!waiting.is_full());
        waiting.push(2, MAX_PLAIN_BODY_BYTES, Request::Ping);
        assert!(waiting.is_full());
        assert!(waiting.cancel(1) && waiting.pop().is_some() && waiting.pop().is_none());
        assert_eq!(waiting.bytes, 0);
    }
}
