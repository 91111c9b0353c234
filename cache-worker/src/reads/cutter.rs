//! How do the pieces of a body become chunks?
//!
//! Pure. Chunks are counted from the object's start, so a body that begins at a chunk's start is cut every 64 KiB and
//! ends with the object's shorter last chunk, or at a chunk's end.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use millrace_api::block::{CHUNK_BYTES, LARGE_OBJECT_BYTES};

/// Cuts the body that covers some chunks of an object.
#[derive(Debug)]
pub struct Cutter {
    /// Bytes of the body that no chunk has yet been made of.
    left: u64,
    pieces: VecDeque<Bytes>,
    held: usize,
    /// Whether chunks share the memory of pieces, so that nothing is copied. The HTTP client receives into buffers of up to
    /// 400 KiB: a short body fills a part of one, all of which its chunks would keep for as long as they wait for the disk.
    shares: bool,
}

impl Cutter {
    /// Expects a body of `len` bytes that begins at a chunk's start.
    pub fn new(len: u64) -> Self {
        Self { left: len, pieces: VecDeque::new(), held: 0, shares: len >= LARGE_OBJECT_BYTES }
    }

    /// Takes the next piece of the body. What goes beyond the expected length is dropped.
    pub fn push(&mut self, mut piece: Bytes) {
        let room = self.left - self.held as u64;
        if piece.len() as u64 > room {
            piece.truncate(room as usize);
        }
        if !piece.is_empty() {
            self.held += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// The next chunk, once all of it has arrived.
    pub fn next_chunk(&mut self) -> Option<Bytes> {
        let len = self.left.min(CHUNK_BYTES) as usize;
        if len == 0 || self.held < len {
            return None;
        }
        self.held -= len;
        self.left -= len as u64;
        if self.shares {
            let first = self.pieces.front_mut()?;
            if first.len() > len {
                return Some(first.split_to(len));
            }
            if first.len() == len {
                return self.pieces.pop_front();
            }
        }
        let mut chunk = BytesMut::with_capacity(len);
        while chunk.len() < len {
            let piece = self.pieces.front_mut()?;
            let part = piece.split_to(piece.len().min(len - chunk.len()));
            chunk.extend_from_slice(&part);
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
        Some(chunk.freeze())
    }

    /// Whether all chunks have been made.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_pieces_make_the_same_chunks(len in 1usize..400_000, cuts in prop::collection::vec(1usize..200_000, 0..12), extra in 0usize..100) {
            let body: Vec<u8> = (0..len + extra).map(|i| (i * 31 % 251) as u8).collect();
            let mut cutter = Cutter::new(len as u64);
            let (mut at, mut chunks) = (0, Vec::new());
            for cut in cuts.into_iter().chain([body.len()]) {
                let end = (at + cut).min(body.len());
                cutter.push(Bytes::copy_from_slice(&body[at..end]));
                at = end;
                chunks.extend(std::iter::from_fn(|| cutter.next_chunk()));
            }
            prop_assert!(cutter.is_done());
            prop_assert!(chunks.iter().rev().skip(1).all(|chunk| chunk.len() as u64 == CHUNK_BYTES));
            prop_assert_eq!(chunks.concat(), &body[..len]);
        }
    }

    #[test]
    fn a_short_body_is_not_done() {
        let mut cutter = Cutter::new(100);
        cutter.push(Bytes::from_static(b"abc"));
        assert!(cutter.next_chunk().is_none());
        assert!(!cutter.is_done());
    }

    #[test]
    fn chunks_of_a_short_body_do_not_keep_its_buffer() {
        let shares = |len: u64| {
            let buffer = Bytes::from(vec![7; 200 << 10]);
            let mut cutter = Cutter::new(len);
            cutter.push(buffer.slice(..100 << 10));
            let chunk = cutter.next_chunk().expect("a chunk is there");
            assert_eq!(chunk, buffer.slice(..64 << 10));
            chunk.as_ptr() == buffer.as_ptr()
        };
        assert!(!shares(100 << 10));
        assert!(shares(16 << 20));
    }
}
