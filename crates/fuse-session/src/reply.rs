//! How is a request answered, at once or later?

use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::channel::Channel;
use crate::filesystem::Opened;
use crate::interruption::Interruption;
use crate::metrics::count;

/// A request that was taken and must be answered once; EIO when it is dropped.
#[derive(Debug)]
pub(crate) struct Pending {
    channel: Arc<Channel>,
    unique: u64,
    interruption: Arc<Interruption>,
    is_answered: bool,
}

impl Pending {
    /// Enters a request among those in flight; answers ENOMEM when there are too many.
    pub fn take(channel: &Arc<Channel>, unique: u64) -> Option<Self> {
        let Some(interruption) = channel.in_flight.enter(unique) else {
            count(&channel.metrics.turned_away);
            channel.answer(unique, Some(Errno::NOMEM), &[]);
            return None;
        };
        Some(Self { channel: Arc::clone(channel), unique, interruption, is_answered: false })
    }

    pub fn interruption(&self) -> &Arc<Interruption> {
        &self.interruption
    }

    pub fn error(mut self, errno: Errno) {
        self.answer(Some(errno), &[]);
    }

    pub fn pieces(self, pieces: &[&[u8]]) {
        self.deliver(pieces);
    }

    /// Answers with these pieces, and gives whether the kernel took them.
    pub fn deliver(mut self, pieces: &[&[u8]]) -> bool {
        self.answer(None, pieces)
    }

    /// Answers with a struct, or with the error.
    pub fn value<T: IntoBytes + Immutable>(self, result: Result<T, Errno>) {
        match result {
            Ok(value) => self.pieces(&[value.as_bytes()]),
            Err(errno) => self.error(errno),
        }
    }

    /// Answers with bytes, or with the error.
    pub fn bytes(self, result: Result<&[u8], Errno>) {
        match result {
            Ok(bytes) => self.pieces(&[bytes]),
            Err(errno) => self.error(errno),
        }
    }

    /// Answers with nothing but success, or with the error.
    pub fn done(self, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.pieces(&[]),
            Err(errno) => self.error(errno),
        }
    }

    fn answer(&mut self, error: Option<Errno>, pieces: &[&[u8]]) -> bool {
        self.is_answered = true;
        // Before the answer: whoever sees the answer may look at the counters. An INTERRUPT in between is sent back to
        // the kernel, which by then no longer knows the request.
        self.channel.in_flight.leave(self.unique);
        self.channel.answer(self.unique, error, pieces)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_answered {
            count(&self.channel.metrics.dropped);
            self.answer(Some(Errno::IO), &[]);
        }
    }
}

/// The owed answer to an OPEN; may travel to another thread or task. EIO, and counted, when it is dropped.
#[derive(Debug)]
pub struct OpenReply {
    pending: Pending,
}

impl OpenReply {
    pub(crate) fn new(pending: Pending) -> Self {
        Self { pending }
    }

    /// Gives the object that tells when the caller gives up.
    pub fn interruption(&self) -> &Arc<Interruption> {
        self.pending.interruption()
    }

    /// Answers that the file is open. False where the kernel does not take it (the connection is gone, or the request was
    /// sent again and this is the answer to its first id): then nothing was opened by it.
    #[must_use]
    pub fn opened(self, opened: Opened) -> bool {
        self.pending.deliver(&[opened.reply().as_bytes()])
    }

    /// Answers with an error.
    pub fn error(self, errno: Errno) {
        self.pending.error(errno);
    }
}

/// The owed answer to a READ; may travel to another thread or task. EIO, and counted, when it is dropped.
#[derive(Debug)]
pub struct ReadReply {
    pending: Pending,
    size: u32,
}

impl ReadReply {
    pub(crate) fn new(pending: Pending, size: u32) -> Self {
        Self { pending, size }
    }

    /// Gives the bytes that were asked for; fewer may be given, which means the end of the file.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Gives the object that tells when the reader gives up.
    pub fn interruption(&self) -> &Arc<Interruption> {
        self.pending.interruption()
    }

    /// Answers with these bytes; the kernel copies them from where they are.
    pub fn bytes(self, bytes: &[u8]) {
        self.send(&[bytes]);
    }

    /// Answers with these pieces, one behind the other; the kernel copies them from where they are.
    pub fn pieces<P: AsRef<[u8]>>(self, pieces: &[P]) {
        match pieces {
            [piece] => self.send(&[piece.as_ref()]),
            pieces => {
                let pieces: Vec<&[u8]> = pieces.iter().map(AsRef::as_ref).collect();
                self.send(&pieces);
            }
        }
    }

    /// Answers with an error.
    pub fn error(self, errno: Errno) {
        self.pending.error(errno);
    }

    /// Sends what fits; more than was asked for is a bug that must not become bytes at the wrong place.
    fn send(self, pieces: &[&[u8]]) {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        if length > self.size as usize {
            tracing::error!(length, size = self.size, "answer to a read is longer than what was asked for");
            return self.pending.error(Errno::IO);
        }
        self.pending.pieces(pieces);
    }
}
