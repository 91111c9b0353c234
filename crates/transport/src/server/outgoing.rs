//! What is sent next on a connection?
//!
//! Three queues: small frames first, then what somebody waits for, then what is read ahead. A long piece is sent frame by
//! frame, so that it holds up a more urgent one by 1 MiB at most. Frames of one request keep their order, since a request
//! has one priority.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use millrace_api::block::CHUNK_BYTES;
use millrace_api::wire::{DataHead, IndexPartHead, MAX_FRAME_CHUNKS};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::Unwanted;
use crate::Priority;

/// Pieces of each priority that wait on one connection: enough to keep a socket busy, small beside a block.
const MAX_PIECES: usize = 16;

/// Small frames that wait, bytes, before the connection takes no further request (a client that sends and never reads).
pub(super) const MAX_SMALL_BYTES: usize = 256 << 10;

/// The queues of one connection.
#[derive(Debug)]
pub(super) struct Outgoing {
    queues: Mutex<Queues>,
    wake: Notify,
    foreground: Arc<Semaphore>,
    prefetch: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Queues {
    small: Vec<u8>,
    foreground: VecDeque<Piece>,
    prefetch: VecDeque<Piece>,
    is_sending: bool,
}

/// Something to be sent in the order of its priority.
#[derive(Debug)]
pub(super) enum Piece {
    /// A whole frame, encoded: an error, which must not overtake the data before it.
    Frame { bytes: Vec<u8>, _room: Room },
    /// Chunks.
    Data(DataPiece),
    /// A part of an index file.
    Index { request: u64, head: IndexPartHead, file: Arc<File>, _room: Room },
}

/// Room in a queue, given back when the piece is sent or dropped.
pub(super) type Room = OwnedSemaphorePermit;

/// Consecutive chunks of one object that are not yet sent.
#[derive(Debug)]
pub(super) struct DataPiece {
    pub request: u64,
    pub item: u32,
    pub first_chunk: u32,
    /// One for each chunk left, the first first.
    pub crcs: VecDeque<u32>,
    pub payload: Payload,
    /// Whether nothing follows for the request.
    pub is_last: bool,
    pub _room: Room,
    /// Share of the memory that all connections may queue.
    pub _memory: Option<OwnedSemaphorePermit>,
}

/// Where bytes come from.
#[derive(Debug)]
pub(super) enum Payload {
    File { file: Arc<File>, offset: u64, len: u64 },
    Memory(VecDeque<Bytes>),
}

/// What the writer sends next; frame prefixes have been appended to its buffer.
#[derive(Debug)]
pub(super) enum Work {
    /// The buffer is all.
    Plain,
    /// The buffer, then this payload (of one frame).
    Payload(Payload),
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self {
            queues: Mutex::default(),
            wake: Notify::new(),
            foreground: Arc::new(Semaphore::new(MAX_PIECES)),
            prefetch: Arc::new(Semaphore::new(MAX_PIECES)),
        }
    }

    /// Waits for room for a piece.
    pub(super) async fn room(&self, priority: Priority) -> Result<Room, Unwanted> {
        let semaphore = match priority {
            Priority::Foreground => &self.foreground,
            Priority::Prefetch => &self.prefetch,
        };
        Arc::clone(semaphore).acquire_owned().await.map_err(|_| Unwanted)
    }

    /// Queues a piece.
    pub(super) fn push(&self, priority: Priority, piece: Piece) {
        let mut queues = self.queues.lock();
        match priority {
            Priority::Foreground => queues.foreground.push_back(piece),
            Priority::Prefetch => queues.prefetch.push_back(piece),
        }
        drop(queues);
        self.wake.notify_one();
    }

    /// Queues a small frame before everything else.
    pub(super) fn push_small(&self, encode: impl FnOnce(&mut Vec<u8>)) {
        encode(&mut self.queues.lock().small);
        self.wake.notify_one();
    }

    /// Whether so many small frames wait that no further request should be read.
    pub(super) fn is_choked(&self) -> bool {
        self.queues.lock().small.len() > MAX_SMALL_BYTES
    }

    /// Whether all that was queued is in the socket.
    pub(super) fn is_drained(&self) -> bool {
        let queues = self.queues.lock();
        !queues.is_sending
            && queues.small.is_empty()
            && queues.foreground.is_empty()
            && queues.prefetch.is_empty()
    }

    /// Wakes all who wait for room: nobody will send any more.
    pub(super) fn close(&self) {
        self.foreground.close();
        self.prefetch.close();
    }

    /// Waits for the next frame, whose bytes before the payload are put into `prefix`.
    pub(super) async fn next(&self, epoch: impl Fn() -> u64, prefix: &mut Vec<u8>) -> Work {
        loop {
            if let Some(work) = self.take(&epoch, prefix) {
                return work;
            }
            self.wake.notified().await;
        }
    }

    fn take(&self, epoch: impl Fn() -> u64, prefix: &mut Vec<u8>) -> Option<Work> {
        prefix.clear();
        let mut queues = self.queues.lock();
        if !queues.small.is_empty() {
            // Capacity goes back and forth between the two buffers.
            std::mem::swap(&mut queues.small, prefix);
            queues.is_sending = true;
            return Some(Work::Plain);
        }
        let is_foreground = !queues.foreground.is_empty();
        let queue = if is_foreground { &mut queues.foreground } else { &mut queues.prefetch };
        let Some(mut piece) = queue.pop_front() else {
            queues.is_sending = false;
            return None;
        };
        let work = match &mut piece {
            Piece::Frame { bytes, .. } => {
                prefix.append(bytes);
                Work::Plain
            }
            Piece::Index { request, head, file, .. } => {
                head.encode(*request, prefix);
                let (offset, len) = (head.offset, head.payload_len.into());
                Work::Payload(Payload::File { file: Arc::clone(file), offset, len })
            }
            Piece::Data(data) => {
                let payload = data.take_frame(epoch(), prefix);
                if !data.crcs.is_empty() {
                    queue.push_front(piece);
                }
                Work::Payload(payload)
            }
        };
        queues.is_sending = true;
        Some(work)
    }
}

impl DataPiece {
    /// Takes one frame off the front and appends its bytes before the payload to `prefix`.
    fn take_frame(&mut self, epoch: u64, prefix: &mut Vec<u8>) -> Payload {
        let count = self.crcs.len().min(usize::from(MAX_FRAME_CHUNKS));
        let (payload, payload_len) = match &mut self.payload {
            Payload::File { file, offset, len } => {
                let frame_len = (*len).min(count as u64 * CHUNK_BYTES);
                let frame = Payload::File { file: Arc::clone(file), offset: *offset, len: frame_len };
                (*offset, *len) = (*offset + frame_len, *len - frame_len);
                (frame, frame_len)
            }
            Payload::Memory(chunks) => {
                let frame: VecDeque<Bytes> = chunks.drain(..count).collect();
                let frame_len = frame.iter().map(|chunk| chunk.len() as u64).sum();
                (Payload::Memory(frame), frame_len)
            }
        };
        let head = DataHead {
            item: self.item,
            first_chunk: self.first_chunk,
            count: count as u16,
            payload_len: payload_len as u32,
            epoch,
        };
        let mut crcs = [0; MAX_FRAME_CHUNKS as usize];
        crcs.iter_mut().zip(self.crcs.drain(..count)).for_each(|(slot, crc)| *slot = crc);
        self.first_chunk += count as u32;
        head.encode(self.request, self.is_last && self.crcs.is_empty(), &crcs[..count], prefix);
        payload
    }
}
