//! Where do the pieces of an answer go?

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_api::block::CHUNK_BYTES;
use millrace_api::wire::{self, ErrorCode, ErrorFrame, WHOLE_REQUEST};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::outgoing::{DataPiece, Outgoing, Payload, Piece};
use super::{Answer, ReadError, Unwanted};
use crate::Priority;
use crate::counter::ServerCounters;

/// Unit in which queued memory is counted, bytes.
pub(super) const MEMORY_UNIT_BYTES: usize = 1024;

/// Takes the pieces of one answer. Clones belong to the same answer.
#[derive(Debug, Clone)]
pub struct AnswerSink {
    item: Arc<Item>,
}

/// What all answers on one connection share.
#[derive(Debug)]
pub(super) struct Line {
    pub outgoing: Outgoing,
    /// In units of [`MEMORY_UNIT_BYTES`], for all connections.
    pub memory: Arc<Semaphore>,
    pub memory_units: usize,
    pub counters: Arc<ServerCounters>,
    pub started: Instant,
}

/// One request in work.
#[derive(Debug)]
pub(super) struct Ticket {
    pub line: Arc<Line>,
    pub request: u64,
    pub priority: Priority,
    /// Chunks not yet answered, of all items. Held while a piece is queued, so that the last one is queued last.
    left: Mutex<u32>,
    /// When the client last heard of it, milliseconds since the connection's start.
    heard_ms: AtomicU64,
}

#[derive(Debug)]
struct Item {
    ticket: Arc<Ticket>,
    number: u32,
    chunks: Range<u32>,
    left: Mutex<u32>,
}

impl Ticket {
    pub(super) fn new(line: &Arc<Line>, request: u64, priority: Priority, chunks: u32) -> Arc<Self> {
        let heard_ms = AtomicU64::new(line.now_ms());
        Arc::new(Self { line: Arc::clone(line), request, priority, left: Mutex::new(chunks), heard_ms })
    }

    /// Whether the client has heard nothing of this request for `silence_ms`; if so it is taken to be told now.
    pub(super) fn is_due(&self, now_ms: u64, silence_ms: u64) -> bool {
        let is_due = now_ms.saturating_sub(self.heard_ms.load(Ordering::Relaxed)) >= silence_ms;
        if is_due {
            self.heard_ms.store(now_ms, Ordering::Relaxed);
        }
        is_due
    }

    /// Queues an error for the whole request.
    pub(super) async fn fail(&self, error: ReadError, epoch: u64) {
        let left = *self.left.lock();
        self.send_error(WHOLE_REQUEST, left, error, epoch).await;
    }

    /// Queues an error that ends `chunks` chunks.
    async fn send_error(&self, item: u32, chunks: u32, error: ReadError, epoch: u64) {
        let Ok(room) = self.line.outgoing.room(self.priority).await else { return };
        self.line.counters.errors.add(1);
        let mut left = self.left.lock();
        *left = left.saturating_sub(chunks);
        let ReadError { code, message } = error;
        let frame = ErrorFrame { item, code, epoch, message, is_last: *left == 0 };
        let mut bytes = Vec::with_capacity(64);
        wire::Answer::Error(frame).encode(self.request, &mut bytes);
        self.line.outgoing.push(self.priority, Piece::Frame { bytes, _room: room });
    }
}

impl Line {
    pub(super) fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

impl AnswerSink {
    pub(super) fn new(ticket: &Arc<Ticket>, number: u32, chunks: Range<u32>) -> Self {
        let left = Mutex::new(chunks.end - chunks.start);
        Self { item: Arc::new(Item { ticket: Arc::clone(ticket), number, chunks, left }) }
    }

    /// Queues a piece; waits while the client is slower than the worker.
    ///
    /// # Errors
    /// [`Unwanted`] when the connection is gone.
    ///
    /// # Panics
    /// Where the piece is not what was asked for: chunks outside the request or answered before, no CRC for a chunk, a
    /// chunk that is short and not the last. That is a fault of the worker's own.
    ///
    /// # Cancel safety
    /// A dropped call has either queued the piece or not; nothing is sent twice.
    pub async fn send(&self, answer: Answer) -> Result<(), Unwanted> {
        let Item { ticket, number, chunks, left } = &*self.item;
        let line = &ticket.line;
        let (first_chunk, crcs, payload, in_memory) = take_apart(answer);
        let count = crcs.len() as u32;
        if count == 0 {
            return Ok(());
        }
        assert!(
            chunks.start <= first_chunk
                && first_chunk.checked_add(count).is_some_and(|end| end <= chunks.end),
            "{count} chunks from {first_chunk} in answer to {chunks:?}"
        );
        let memory = match in_memory {
            0 => None,
            bytes => {
                // One piece may be larger than all room: then it waits until it is alone.
                let units = bytes.div_ceil(MEMORY_UNIT_BYTES).min(line.memory_units);
                Some(Arc::clone(&line.memory).acquire_many_owned(units as u32).await.map_err(|_| Unwanted)?)
            }
        };
        let room = line.outgoing.room(ticket.priority).await?;
        let mut item_left = left.lock();
        *item_left = item_left.checked_sub(count).expect("each chunk is answered once");
        let mut all_left = ticket.left.lock();
        *all_left = all_left.saturating_sub(count);
        ticket.heard_ms.store(line.now_ms(), Ordering::Relaxed);
        let piece = DataPiece {
            request: ticket.request,
            item: *number,
            first_chunk,
            crcs,
            payload,
            is_last: *all_left == 0,
            _room: room,
            _memory: memory,
        };
        line.outgoing.push(ticket.priority, Piece::Data(piece));
        Ok(())
    }

    /// Queues what the client must know about chunks that did not come.
    pub(super) async fn finish(&self, result: Result<(), ReadError>, epoch: u64) {
        let Item { ticket, number, left, .. } = &*self.item;
        let left = *left.lock();
        let error = match result {
            _ if left == 0 => return,
            Ok(()) => {
                ReadError::new(ErrorCode::Internal, format!("the worker ended with {left} chunks unanswered"))
            }
            Err(error) => error,
        };
        ticket.send_error(*number, left, error, epoch).await;
    }
}

/// First chunk, CRCs, payload, and how much memory the payload holds.
fn take_apart(answer: Answer) -> (u32, VecDeque<u32>, Payload, usize) {
    match answer {
        Answer::FileRange { file, offset, len, first_chunk, crcs } => {
            assert_eq!(crcs.len() as u64, len.div_ceil(CHUNK_BYTES), "one CRC a chunk of {len} bytes");
            (first_chunk, crcs.into(), Payload::File { file, offset, len }, 0)
        }
        Answer::Bytes { first_chunk, chunks } => {
            let (chunks, crcs): (VecDeque<_>, VecDeque<_>) = chunks.into_iter().unzip();
            let whole = chunks.iter().rev().skip(1).all(|chunk| chunk.len() as u64 == CHUNK_BYTES);
            let last = chunks.back().is_none_or(|chunk| (1..=CHUNK_BYTES).contains(&(chunk.len() as u64)));
            assert!(whole && last, "only the last chunk of an object is short");
            let bytes = chunks.iter().map(|chunk| chunk.len()).sum();
            (first_chunk, crcs, Payload::Memory(chunks), bytes)
        }
    }
}
