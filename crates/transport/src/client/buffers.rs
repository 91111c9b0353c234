//! Where are payloads received, without a fresh megabyte of zeroed pages for each frame?
//!
//! Fresh pages cost about as much as receiving into them (a fault per 4 KiB), so buffers of a few sizes are used again when
//! the last slice of their frame is dropped. Smaller frames are allocated: they come from the allocator's own lists.

use std::sync::Arc;

use bytes::Bytes;
use millrace_api::wire::MAX_PAYLOAD_BYTES;
use parking_lot::Mutex;

/// Payloads up to this long are allocated each on their own, bytes.
const SMALL_BYTES: usize = 64 << 10;

/// Sizes that are kept, bytes: a packed object of the usual 100 KiB does not hold a whole megabyte.
const SIZES: [usize; 3] = [128 << 10, 256 << 10, MAX_PAYLOAD_BYTES as usize];

/// Bytes of each size kept for use: a read-ahead window of large ones, and most of what a mount fetches ahead of small ones.
const KEPT_BYTES: usize = 16 << 20;

/// Buffers of one size.
type List = Mutex<Vec<Box<[u8]>>>;

/// Buffers that wait to be used again, by their size.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    lists: [List; SIZES.len()],
}

/// A buffer of at least the length asked for.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Box<[u8]>,
    len: usize,
    home: Option<Arc<Buffers>>,
}

impl Buffers {
    /// A buffer for `len` bytes, at most [`MAX_PAYLOAD_BYTES`]; what it contains is not defined.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Buffer {
        let Some((size, list)) = self.list(len).filter(|_| len > SMALL_BYTES) else {
            return Buffer { bytes: vec![0; len].into(), len, home: None };
        };
        let kept = list.lock().pop();
        let bytes = kept.unwrap_or_else(|| vec![0; size].into());
        Buffer { bytes, len, home: Some(Arc::clone(self)) }
    }

    /// The smallest size that holds `len` bytes, and its buffers.
    fn list(&self, len: usize) -> Option<(usize, &List)> {
        SIZES.into_iter().zip(&self.lists).find(|(size, _)| len <= *size)
    }
}

impl Buffer {
    pub(super) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    pub(super) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let list = self.home.as_ref().and_then(|home| home.list(self.bytes.len()));
        let Some((size, list)) = list else { return };
        let mut list = list.lock();
        if list.len() < KEPT_BYTES / size {
            list.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_is_used_again_once_its_last_slice_is_gone() {
        let buffers = Arc::new(Buffers::default());
        let mut first = buffers.take(1 << 20);
        first.as_mut()[0] = 7;
        let place = first.as_ref().as_ptr();
        let slice = first.freeze().slice(..10);
        assert_ne!(buffers.take(1 << 20).as_ref().as_ptr(), place, "still in use");
        assert_eq!(slice[0], 7);
        drop(slice);
        assert!((0..2).any(|_| buffers.lists[2].lock().pop().is_some_and(|kept| kept.as_ptr() == place)));
    }

    #[test]
    fn kept_buffers_are_bounded() {
        let buffers = Arc::new(Buffers::default());
        let many: Vec<_> = (0..200).map(|_| buffers.take(100_000)).collect();
        drop(many);
        assert_eq!(buffers.lists[0].lock().len(), KEPT_BYTES / SIZES[0]);
    }
}
