//! Which worker owns a block?
//!
//! Weighted rendezvous hashing: every process computes the same owner from the membership alone, and when a worker
//! joins or leaves only the blocks that it gains or had are moved. A worker's score for a key is `-weight / ln(u)`
//! with `u` a uniform hash of (worker name, key) in (0, 1); the highest score owns.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Most workers in a membership: the bound on `spec.workers.replicas`.
pub const MAX_WORKERS: usize = 256;

/// Longest worker name, bytes: a DNS label, as pod names are.
pub const MAX_WORKER_NAME_BYTES: usize = 63;

/// What a block is placed by: source, path and block index, never its ETag, so that changed content stays in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlacementKey(pub u64);

impl PlacementKey {
    /// The key of block `block` of the large object shown at `path` (from the mount's root, no leading slash).
    pub fn of_block(path: &[u8], block: u32) -> Self {
        Self(xxh3_64_with_seed(path, 0x6d69_6c6c_0000_0000 | u64::from(block)))
    }

    /// The key of the pack that starts after `boundary`, the path of the last object of the pack before it in the
    /// same source (the source's path for a source's first pack).
    pub fn of_pack(boundary: &[u8]) -> Self {
        Self(xxh3_64_with_seed(boundary, 0x7061_636b_0000_0000))
    }
}

/// One worker, as everybody sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    /// Unique and stable name: the pod's name. At most [`MAX_WORKER_NAME_BYTES`].
    pub name: String,
    /// Data port, as `host:port`.
    pub address: String,
    /// Share of the blocks relative to other workers, from 1; in practice its cache capacity in GiB.
    pub weight: u32,
}

/// The workers of a dataset at one point of its life.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// Grows with every change.
    pub epoch: u64,
    /// In no particular order; names are unique.
    pub workers: Vec<Worker>,
}

impl Membership {
    /// The index of the owner of `key` in `workers`; `None` where there is no worker.
    pub fn owner(&self, key: PlacementKey) -> Option<usize> {
        (0..self.workers.len()).max_by(|&a, &b| self.compare(key, a, b))
    }

    /// All workers, best first: the owner, then whom to ask when it does not answer.
    pub fn order(&self, key: PlacementKey) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.workers.len()).collect();
        order.sort_by(|&a, &b| self.compare(key, b, a));
        order
    }

    /// Orders two workers by score, ties by name so that every process agrees.
    fn compare(&self, key: PlacementKey, a: usize, b: usize) -> Ordering {
        let (a, b) = (&self.workers[a], &self.workers[b]);
        score(a, key).total_cmp(&score(b, key)).then_with(|| a.name.cmp(&b.name))
    }
}

fn score(worker: &Worker, key: PlacementKey) -> f64 {
    let hash = xxh3_64_with_seed(worker.name.as_bytes(), key.0);
    // 53 bits and a half: never 0 and never 1, so the logarithm is finite and negative.
    let uniform = ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -f64::from(worker.weight.max(1)) / uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn membership(weights: &[u32]) -> Membership {
        let worker = |(i, &weight): (usize, &u32)| Worker {
            name: format!("imagenet-{i}"),
            address: format!("10.0.0.{i}:7420"),
            weight,
        };
        Membership { epoch: 1, workers: weights.iter().enumerate().map(worker).collect() }
    }

    #[test]
    fn owners_are_pinned() {
        let three = membership(&[1, 1, 1]);
        let owners: Vec<_> = (0..12)
            .map(|block| three.owner(PlacementKey::of_block(b"train/a.bin", block)).unwrap())
            .collect();
        assert_eq!(owners, [1, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 2]);
        assert_eq!(PlacementKey::of_block(b"train/a.bin", 3).0, 13_069_877_038_720_884_020);
        assert_eq!(PlacementKey::of_pack(b"train").0, 9_769_828_391_277_721_037);
    }

    #[test]
    fn shares_follow_weights() {
        let five = membership(&[2, 1, 1, 1, 1]);
        let mut counts = [0u32; 5];
        for block in 0..60_000 {
            counts[five.owner(PlacementKey::of_block(b"x", block)).unwrap()] += 1;
        }
        assert!((19_000..21_000).contains(&counts[0]), "{counts:?}");
        assert!(counts[1..].iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn nobody_owns_anything_in_an_empty_membership() {
        assert_eq!(Membership::default().owner(PlacementKey(1)), None);
    }

    proptest! {
        #[test]
        fn a_leaving_worker_moves_only_its_own_blocks(keys in prop::collection::vec(any::<u64>(), 200), gone in 0usize..6) {
            let before = membership(&[1, 3, 1, 1, 2, 1]);
            let mut after = before.clone();
            after.workers.remove(gone);
            for key in keys.into_iter().map(PlacementKey) {
                let old = &before.workers[before.owner(key).unwrap()];
                let new = &after.workers[after.owner(key).unwrap()];
                prop_assert!(old == new || old.name == before.workers[gone].name);
                let order = before.order(key);
                prop_assert_eq!(order[0], before.owner(key).unwrap());
                prop_assert!(old == new || *new == before.workers[order[1]], "the next in order takes over");
            }
        }

        #[test]
        fn the_order_of_the_list_does_not_matter(key in any::<u64>(), rotation in 0usize..6) {
            let one = membership(&[1, 3, 1, 1, 2, 1]);
            let mut other = one.clone();
            other.workers.rotate_left(rotation);
            let key = PlacementKey(key);
            prop_assert_eq!(&one.workers[one.owner(key).unwrap()], &other.workers[other.owner(key).unwrap()]);
        }
    }
}
