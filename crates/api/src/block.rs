//! Which chunk and which block does a byte belong to?
//!
//! A *chunk* is 64 KiB of one object, counted from the object's start: the unit that is fetched first, sent and checked.
//! A *block* is what is placed, evicted and accounted: `block_size` bytes of a large object, or a whole pack.
//!
//! Bytes live in *store files*: one for each large object, one for each pack. A [`Span`] says where in its store file an
//! object lies, so that all code below the index handles large and packed objects alike:
//!
//! | object | store file | offset of chunk `i` in the store file | slot of chunk `i` |
//! |---|---|---|---|
//! | large (1 MiB and up) | its own | `i * 64 KiB` | `i` |
//! | small | its pack | `span.offset + i * 64 KiB` | `span.first_slot + i` |

use std::ops::Range;

use crate::ids::{BlockId, ContentId};

/// Length of a chunk, bytes. Every chunk but an object's last is this long.
pub const CHUNK_BYTES: u64 = 64 * 1024;

/// Objects of at least this many bytes get a store file of their own; smaller ones are packed.
pub const LARGE_OBJECT_BYTES: u64 = 1 << 20;

/// Offsets of objects inside a pack are multiples of this, so that their pages can be mapped.
pub const PACK_ALIGN_BYTES: u64 = 4096;

/// Smallest block size of a dataset, bytes.
pub const MIN_BLOCK_BYTES: u64 = 1 << 20;

/// Largest block size of a dataset, bytes.
pub const MAX_BLOCK_BYTES: u64 = 64 << 20;

/// Block size where the Dataset names none, bytes.
pub const DEFAULT_BLOCK_BYTES: u64 = 8 << 20;

/// A dataset's block size: a power of two from 1 MiB to 64 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockSize(u64);

impl BlockSize {
    /// Checks a size in bytes; `None` where it is not a power of two from 1 MiB to 64 MiB.
    pub fn new(bytes: u64) -> Option<Self> {
        (bytes.is_power_of_two() && (MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&bytes))
            .then_some(Self(bytes))
    }

    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }

    /// How many chunks fill a block.
    pub fn chunks(self) -> u32 {
        (self.0 / CHUNK_BYTES) as u32
    }
}

impl Default for BlockSize {
    fn default() -> Self {
        Self(DEFAULT_BLOCK_BYTES)
    }
}

/// The number of chunks of an object of `size` bytes; 0 for an empty one.
pub fn chunk_count(size: u64) -> u32 {
    u32::try_from(size.div_ceil(CHUNK_BYTES)).expect("S3 objects end at 50 TiB, far below 2^32 chunks")
}

/// The chunks that the bytes `offset..offset + len` of an object of `size` bytes touch; empty at or past its end.
pub fn chunks_of_range(size: u64, offset: u64, len: u64) -> Range<u32> {
    let end = offset.saturating_add(len).min(size);
    if offset >= end {
        return 0..0;
    }
    chunk_count(offset + 1) - 1..chunk_count(end)
}

/// The file that holds an object's bytes in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreFile {
    /// Whose bytes these are.
    pub content: ContentId,
    /// Length of the store file, bytes (for a pack, alignment gaps included).
    pub len: u64,
    /// How many chunk slots the file has.
    pub slots: u32,
    /// How many slots a block has: the block size in chunks, or all slots of a pack.
    pub slots_per_block: u32,
}

impl StoreFile {
    /// The block that a slot belongs to.
    pub fn block_of(&self, slot: u32) -> BlockId {
        BlockId { content: self.content, index: slot / self.slots_per_block.max(1) }
    }

    /// How many blocks the file has.
    pub fn blocks(&self) -> u32 {
        self.slots.div_ceil(self.slots_per_block.max(1))
    }

    /// The slots of a block; empty past the last block.
    pub fn slots_of(&self, block: u32) -> Range<u32> {
        let start = u64::from(block) * u64::from(self.slots_per_block);
        let end = (start + u64::from(self.slots_per_block)).min(u64::from(self.slots));
        start.min(end) as u32..end as u32
    }
}

/// Where one object's bytes lie in its store file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The file the object is in.
    pub file: StoreFile,
    /// Byte offset of the object in the file; 0 for a large object.
    pub offset: u64,
    /// Slot of the object's first chunk; 0 for a large object.
    pub first_slot: u32,
    /// Size of the object, bytes.
    pub size: u64,
}

/// One chunk, as the store sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkPlace {
    /// Index into the store file's presence bitmap and CRC table.
    pub slot: u32,
    /// Byte offset in the store file.
    pub offset: u64,
    /// Length, bytes: 64 KiB, or less for the last chunk of an object.
    pub len: u32,
}

impl Span {
    /// The span of a large object, which fills its store file.
    pub fn of_large(content: ContentId, size: u64, block: BlockSize) -> Self {
        let file =
            StoreFile { content, len: size, slots: chunk_count(size), slots_per_block: block.chunks() };
        Self { file, offset: 0, first_slot: 0, size }
    }

    /// The object's chunks.
    pub fn chunks(&self) -> Range<u32> {
        0..chunk_count(self.size)
    }

    /// The slots of some of the object's chunks.
    pub fn slots(&self, chunks: Range<u32>) -> Range<u32> {
        self.first_slot + chunks.start..self.first_slot + chunks.end
    }

    /// Where chunk `chunk` of the object lies; `None` past its end.
    pub fn place(&self, chunk: u32) -> Option<ChunkPlace> {
        let start = u64::from(chunk) * CHUNK_BYTES;
        (start < self.size).then(|| ChunkPlace {
            slot: self.first_slot + chunk,
            offset: self.offset + start,
            len: (self.size - start).min(CHUNK_BYTES) as u32,
        })
    }

    /// The block that holds chunk `chunk` of the object.
    pub fn block_of(&self, chunk: u32) -> BlockId {
        self.file.block_of(self.first_slot + chunk)
    }

    /// The object's chunks that lie in block `block` of its store file; empty where none does.
    pub fn chunks_in_block(&self, block: u32) -> Range<u32> {
        let slots = self.file.slots_of(block);
        let start = slots.start.max(self.first_slot);
        let end = slots.end.min(self.first_slot + chunk_count(self.size));
        if start >= end { 0..0 } else { start - self.first_slot..end - self.first_slot }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spans() -> impl Strategy<Value = Span> {
        let block = (0u32..7).prop_map(|power| BlockSize::new(1 << (20 + power)).unwrap());
        let large = (block, LARGE_OBJECT_BYTES..200 << 20)
            .prop_map(|(block, size)| Span::of_large(ContentId([1; 16]), size, block));
        let packed = (1..LARGE_OBJECT_BYTES, 0u64..500, 0u32..500, 0u32..500).prop_map(
            |(size, page, before, after)| {
                let offset = page * PACK_ALIGN_BYTES;
                let slots = before + chunk_count(size) + after;
                let file = StoreFile {
                    content: ContentId([2; 16]),
                    len: offset + size,
                    slots,
                    slots_per_block: slots,
                };
                Span { file, offset, first_slot: before, size }
            },
        );
        prop_oneof![large, packed]
    }

    proptest! {
        #[test]
        fn a_range_touches_exactly_the_chunks_that_share_a_byte_with_it(
            size in 0u64..1 << 20, offset in 0u64..1 << 20, len in 0u64..1 << 20,
        ) {
            let touched: Vec<u32> = chunks_of_range(size, offset, len).collect();
            let end = (offset + len).min(size);
            let shares = |&chunk: &u32| {
                let start = u64::from(chunk) * CHUNK_BYTES;
                start.max(offset) < (start + CHUNK_BYTES).min(end)
            };
            let expected: Vec<u32> = (0..chunk_count(size)).filter(shares).collect();
            prop_assert_eq!(touched, expected);
        }

        #[test]
        fn the_chunks_of_an_object_lie_one_after_the_other_and_hold_all_of_it(span in spans()) {
            let mut end = span.offset;
            for chunk in span.chunks() {
                let place = span.place(chunk).unwrap();
                prop_assert_eq!((place.slot, place.offset), (span.first_slot + chunk, end));
                prop_assert!(place.slot < span.file.slots);
                end += u64::from(place.len);
            }
            prop_assert_eq!(end, span.offset + span.size);
            prop_assert_eq!(span.place(span.chunks().end), None);
            let slots = span.chunks().filter_map(|chunk| span.place(chunk)).map(|place| place.slot);
            prop_assert!(span.slots(span.chunks()).eq(slots));
        }

        #[test]
        fn every_chunk_is_in_one_block(span in spans()) {
            let blocks = span.file.blocks();
            let chunks: Vec<u32> = (0..=blocks).flat_map(|block| span.chunks_in_block(block)).collect();
            prop_assert_eq!(chunks, span.chunks().collect::<Vec<_>>());
            for chunk in span.chunks() {
                let block = span.block_of(chunk).index;
                prop_assert!(block < blocks && span.chunks_in_block(block).contains(&chunk));
            }
            let slots: Vec<u32> = (0..=blocks).flat_map(|block| span.file.slots_of(block)).collect();
            prop_assert_eq!(slots, (0..span.file.slots).collect::<Vec<_>>());
        }
    }

    #[test]
    fn block_sizes_are_powers_of_two_from_1_to_64_mib() {
        assert_eq!(BlockSize::new(8 << 20), Some(BlockSize::default()));
        for wrong in [0, 1 << 19, (8 << 20) + 1, 3 << 20, 128 << 20] {
            assert_eq!(BlockSize::new(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_range_touches_the_chunks_its_bytes_are_in() {
        assert_eq!(chunks_of_range(200_000, 0, 1), 0..1);
        assert_eq!(chunks_of_range(200_000, 65_535, 2), 0..2);
        assert_eq!(chunks_of_range(200_000, 65_536, 1), 1..2);
        assert_eq!(chunks_of_range(200_000, 199_999, 50), 3..4);
        assert_eq!(chunks_of_range(200_000, 200_000, 1), 0..0);
        assert_eq!(chunks_of_range(0, 0, 1), 0..0);
        assert_eq!(chunks_of_range(u64::MAX >> 8, 0, 0), 0..0);
    }

    #[test]
    fn a_large_object_is_cut_into_blocks_and_a_short_last_one() {
        let block = BlockSize::new(1 << 20).unwrap();
        let span = Span::of_large(ContentId([1; 16]), (2 << 20) + 10, block);
        assert_eq!(span.file.blocks(), 3);
        assert_eq!(span.chunks_in_block(1), 16..32);
        assert_eq!(span.chunks_in_block(2), 32..33);
        assert_eq!(span.chunks_in_block(3), 0..0);
        assert_eq!(span.place(32), Some(ChunkPlace { slot: 32, offset: 2 << 20, len: 10 }));
        assert_eq!(span.place(33), None);
        assert_eq!(span.block_of(31).index, 1);
    }
}
