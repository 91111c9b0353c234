//! Which small objects share a block?
//!
//! The small objects of a source, in path order (large and empty ones between them do not count), are cut into *packs*.
//! A pack ends after an object with `hash(path) / 2^64 < max(size, 4 KiB) / target`, and before an object that would make
//! it longer than twice the target; the target is the block size. So an end depends on the object beside it alone, or at
//! most on the objects back to the end before, and what comes or goes inside one pack leaves the others as they are.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::block::{BlockSize, LARGE_OBJECT_BYTES, PACK_ALIGN_BYTES, chunk_count};

/// Keeps the hash that ends packs apart from the one that places them.
const END_SEED: u64 = 0x7061_636b_2d65_6e64;

/// How many times the block size a pack may be long.
pub const MAX_PACK_BLOCKS: u64 = 2;

/// Whether an object of this size, bytes, goes into a pack: it is small and not empty.
pub fn is_packed(size: u64) -> bool {
    (1..LARGE_OBJECT_BYTES).contains(&size)
}

/// Whether a pack ends after the object shown at `path`.
pub fn ends_after(path: &[u8], size: u64, block: BlockSize) -> bool {
    let hash = u128::from(xxh3_64_with_seed(path, END_SEED));
    hash * u128::from(block.bytes()) < u128::from(size.max(PACK_ALIGN_BYTES)) << 64
}

/// Where an object lies in its pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackPlace {
    /// Whether it is the first of a new pack.
    pub is_first: bool,
    /// Byte offset in the pack, a multiple of 4 KiB.
    pub offset: u64,
    /// Slot of its first chunk in the pack.
    pub first_slot: u32,
}

/// Cuts the small objects of one source into packs.
#[derive(Debug, Clone)]
pub struct PackCutter {
    block: BlockSize,
    offset: u64,
    slots: u32,
    is_ended: bool,
}

impl PackCutter {
    /// Starts before a source's first object.
    pub fn new(block: BlockSize) -> Self {
        Self { block, offset: 0, slots: 0, is_ended: true }
    }

    /// Places the next object in path order, of which [`is_packed`] is true.
    pub fn place(&mut self, path: &[u8], size: u64) -> PackPlace {
        let room = size.next_multiple_of(PACK_ALIGN_BYTES);
        let is_first = self.is_ended || self.offset + room > MAX_PACK_BLOCKS * self.block.bytes();
        if is_first {
            (self.offset, self.slots) = (0, 0);
        }
        let place = PackPlace { is_first, offset: self.offset, first_slot: self.slots };
        self.offset += room;
        self.slots += chunk_count(size);
        self.is_ended = ends_after(path, size, self.block);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn block() -> BlockSize {
        BlockSize::new(1 << 20).unwrap()
    }

    /// The packs of a source as lists of (path, size), and whether each was ended by its last path's hash.
    fn packs(objects: &BTreeMap<u32, u64>) -> Vec<Vec<(u32, u64)>> {
        let mut cutter = PackCutter::new(block());
        let mut packs: Vec<Vec<_>> = Vec::new();
        for (&number, &size) in objects {
            if cutter.place(&path(number), size).is_first {
                packs.push(Vec::new());
            }
            packs.last_mut().unwrap().push((number, size));
        }
        packs
    }

    fn path(number: u32) -> Vec<u8> {
        format!("train/{number:08}.jpg").into_bytes()
    }

    fn is_end(&(number, size): &(u32, u64)) -> bool {
        ends_after(&path(number), size, block())
    }

    fn objects() -> impl Strategy<Value = BTreeMap<u32, u64>> {
        prop::collection::btree_map(0u32..100_000, 1u64..300_000, 1..400)
    }

    #[test]
    fn small_means_1_byte_to_below_1_mib() {
        assert_eq!([0, 1, (1 << 20) - 1, 1 << 20].map(is_packed), [false, true, true, false]);
    }

    #[test]
    fn ends_are_pinned() {
        let ends: Vec<u32> = (0..2000).filter(|&n| ends_after(&path(n), 5000, block())).collect();
        assert_eq!(ends, [386, 535, 625, 1215]);
    }

    #[test]
    fn packs_are_on_average_near_the_target() {
        let objects: BTreeMap<u32, u64> =
            (0..40_000).map(|n| (n, 1000 + u64::from(n * 7919 % 60_000))).collect();
        let count = packs(&objects).len() as u64;
        let mean = objects.values().sum::<u64>() / count;
        // Uncut the mean is the target; the cut at twice the target takes 1/e^2 of it.
        let target = block().bytes();
        assert!((target * 7 / 10..target * 11 / 10).contains(&mean), "{mean}");
    }

    #[test]
    fn an_object_that_counts_as_much_as_the_target_always_ends_a_pack() {
        // With the smallest target and the largest small object the odds are just below one.
        let ends = (0..1000).filter(|&n| ends_after(&path(n), LARGE_OBJECT_BYTES - 1, block())).count();
        assert!(ends >= 998, "{ends}");
    }

    proptest! {
        #[test]
        fn objects_lie_aligned_one_after_the_other_within_twice_the_target(objects in objects()) {
            let mut cutter = PackCutter::new(block());
            let (mut end, mut slots) = (0, 0);
            for (&number, &size) in &objects {
                let place = cutter.place(&path(number), size);
                if place.is_first {
                    (end, slots) = (0, 0);
                }
                prop_assert_eq!(place.offset, u64::next_multiple_of(end, 4096));
                prop_assert_eq!(place.first_slot, slots);
                end = place.offset + size;
                slots += chunk_count(size);
                prop_assert!(end <= 2 << 20);
            }
        }

        #[test]
        fn churn_in_a_pack_changes_no_pack_beyond_the_next_end(
            before in objects(), at in 0u32..100_000, new_size in prop::option::of(1u64..300_000),
        ) {
            let mut after = before.clone();
            match new_size {
                Some(size) => after.insert(at, size),
                None => after.remove(&at),
            };
            // The ends by hash on both sides of the change bound what may differ.
            let is_common_end = |n: u32| before.get(&n) == after.get(&n) && before.get(&n).is_some_and(|&size| is_end(&(n, size)));
            let low = before.range(..at).rev().map(|(&n, _)| n).find(|&n| is_common_end(n));
            let high = before.range(at + 1..).map(|(&n, _)| n).find(|&n| is_common_end(n));
            let outside = |packs: Vec<Vec<(u32, u64)>>| -> Vec<Vec<(u32, u64)>> {
                packs.into_iter()
                    .filter(|pack| {
                        let first = pack[0].0;
                        low.is_some_and(|low| first <= low) || high.is_some_and(|high| first > high)
                    })
                    .collect()
            };
            prop_assert_eq!(outside(packs(&before)), outside(packs(&after)));
        }
    }
}
