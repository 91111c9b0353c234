//! In which slot of the hash table does a node lie?

use std::io::{self, Read};

use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::format::{NONE, Slot};
use super::view::DirIndex;

/// What a node is put in the table by, as [`super::Assembler`] streams it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct HashRecord {
    pub hash: U64,
    pub node: U32,
}

/// A position that moves on through the table, round its end.
pub(super) struct Place {
    at: usize,
    len: usize,
    left: usize,
}

impl Place {
    /// Where the search for `hash` starts; `None` in a table without slots.
    pub fn first(hash: u64, len: usize) -> Option<Self> {
        let at = (u128::from(hash) * len as u128) >> 64;
        Some(Self { at: at as usize, len, left: len.checked_sub(1)? })
    }

    pub fn at(&self) -> usize {
        self.at
    }

    /// Goes to the next slot; false where all have been visited.
    pub fn advance(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.at = if self.at + 1 == self.len { 0 } else { self.at + 1 };
        true
    }
}

/// The hash of a name in a directory.
pub(super) fn name_hash(dir: DirIndex, name: &[u8]) -> u64 {
    xxh3_64_with_seed(name, u64::from(dir.0))
}

/// How many slots the table of an index with this many nodes (the root not counted) has: two thirds are in use.
pub(super) fn slot_count(nodes: u64) -> u64 {
    nodes + nodes.div_ceil(2)
}

/// Fills the table from the hashes that an [`super::Assembler`] wrote, in their order, and says how many slots the
/// longest look-up visits.
///
/// # Errors
/// Those of `hashes`; `InvalidData` where there are more hashes than slots.
pub fn fill_slots(slots: &mut [Slot], mut hashes: impl Read) -> io::Result<u32> {
    slots.fill(Slot::EMPTY);
    let mut longest = 0;
    let mut batch = vec![HashRecord::new_zeroed(); 8192];
    loop {
        let count = read_records(&mut hashes, &mut batch)?;
        for record in &batch[..count] {
            let visited = put(slots, record).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "more hashes than slots in an index")
            })?;
            longest = longest.max(visited);
        }
        if count < batch.len() {
            return Ok(longest);
        }
    }
}

fn put(slots: &mut [Slot], record: &HashRecord) -> Option<u32> {
    let hash = record.hash.get();
    let mut place = Place::first(hash, slots.len())?;
    let mut visited = 1;
    loop {
        let slot = slots.get_mut(place.at())?;
        if slot.node.get() == NONE {
            *slot = Slot { tag: U32::new(hash as u32), node: record.node };
            return Some(visited);
        }
        place.advance().then_some(())?;
        visited += 1;
    }
}

/// Fills `batch` as far as there are whole records.
fn read_records(from: &mut impl Read, batch: &mut [HashRecord]) -> io::Result<usize> {
    let bytes = batch.as_mut_bytes();
    let mut filled = 0;
    while filled < bytes.len() {
        match from.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled / size_of::<HashRecord>())
}
