//! What does a store say is there?

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

/// Consecutive chunks that are there, ready for sendfile. The receiver checks the checksums, nobody has yet.
///
/// The bytes stay readable through `file` for some seconds at least, whatever is evicted; after that they may read as zeros.
#[derive(Debug, Clone)]
pub struct Hit {
    /// The store file.
    pub file: Arc<File>,
    /// Where the first chunk begins in it.
    pub offset: u64,
    /// Length of all chunks together, bytes.
    pub len: u64,
    /// CRC32C of each chunk.
    pub crcs: Vec<u32>,
}

/// Which slots of a range are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    pub(crate) slots: Range<u32>,
    pub(crate) bits: Vec<u64>,
}

impl Presence {
    /// Nothing is there.
    pub(crate) fn none(slots: Range<u32>) -> Self {
        let words = slots.len().div_ceil(64);
        Self { slots, bits: vec![0; words] }
    }

    pub(crate) fn insert(&mut self, slot: u32) {
        let bit = (slot - self.slots.start) as usize;
        self.bits[bit / 64] |= 1 << (bit % 64);
    }

    /// Whether a slot is there; false outside the range.
    pub fn contains(&self, slot: u32) -> bool {
        let bit = (slot.wrapping_sub(self.slots.start)) as usize;
        self.slots.contains(&slot) && self.bits[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// How many slots are there.
    pub fn count(&self) -> u32 {
        self.bits.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether all slots of the range are there.
    pub fn is_full(&self) -> bool {
        self.count() as usize == self.slots.len()
    }

    /// The runs of slots that are not there, in order.
    pub fn missing(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let mut next = self.slots.start;
        std::iter::from_fn(move || {
            let start = (next..self.slots.end).find(|slot| !self.contains(*slot))?;
            let end = (start..self.slots.end).find(|slot| self.contains(*slot)).unwrap_or(self.slots.end);
            next = end;
            Some(start..end)
        })
    }
}
