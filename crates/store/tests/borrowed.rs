//! Files of another process's store are read where they lie, kept from its eviction while the kernel has them, and left alone
//! where they are wrong.

#![allow(clippy::unwrap_used, reason = "a test may fail in any line")]

mod rig;

use std::path::PathBuf;

use millrace_api::block::Span;
use millrace_store::{BorrowedFolder, Class, Eviction, Store, StoreConfig, Verification, Whole, Written};
use rig::{Hands, MIB, chunks_of, config, flip, large, pack, path_of, put, put_all};
use tempfile::TempDir;

/// A worker's store below a folder of pods, and a node's own that has borrowed it.
struct Pair {
    pods: TempDir,
    _node_dir: TempDir,
    worker: Store,
    node: Store,
    hands: Hands,
}

const BELOW: &str = "6e9f/volumes/kubernetes.io~empty-dir/tier-0";

impl Pair {
    fn new(worker_quota: u64) -> Self {
        let (pods, node_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let hands = Hands::new();
        let of_worker = config(&pods.path().join(BELOW), worker_quota, Eviction::Lru);
        let worker = Store::open(StoreConfig { clock: hands.clock(), ..of_worker }).unwrap();
        let of_node = config(node_dir.path(), 64 * MIB, Eviction::Lru);
        let node = Store::open(StoreConfig { clock: hands.clock(), ..of_node }).unwrap();
        let pair = Self { pods, _node_dir: node_dir, worker, node, hands };
        assert_eq!(pair.node.borrow(&[pair.folder()]), 1);
        pair
    }

    fn folder(&self) -> BorrowedFolder {
        BorrowedFolder { base: self.pods.path().canonicalize().unwrap(), below: BELOW.into() }
    }

    fn path(&self, span: &Span, kind: &str) -> PathBuf {
        path_of(&self.pods.path().join(BELOW), span, kind)
    }
}

#[test]
fn what_a_neighbour_has_is_read_there_and_not_kept_twice() {
    let pair = Pair::new(64 * MIB);
    let (whole, part, packed) = (large(1, 2 * MIB + 5), large(2, 4 * MIB), pack(3, &[100, 70_000])[1]);
    put_all(&pair.worker, &whole);
    put(&pair.worker, &part, 3..9, Class::Owned);
    put_all(&pair.worker, &packed);
    assert!(pair.node.complete(&whole.file) && !pair.node.complete(&part.file));
    assert_eq!(chunks_of(&pair.node, &whole).len(), 33);
    assert_eq!(chunks_of(&pair.node, &part), (3..9).collect::<Vec<_>>());
    assert_eq!(chunks_of(&pair.node, &packed), [0, 1]);
    let stats = pair.node.stats();
    assert_eq!((pair.node.usage().used_bytes(), stats.written_bytes), (0, 0));
    assert_eq!(stats.borrowed_bytes, stats.hit_bytes);
    // What only the node has comes first, and is not lost among it.
    put(&pair.node, &part, 9..11, Class::Owned);
    assert_eq!(chunks_of(&pair.node, &part), (3..11).collect::<Vec<_>>());
    assert_eq!(pair.node.borrow(&[]), 0);
    assert_eq!(chunks_of(&pair.node, &part), [9, 10]);
    assert!(!pair.node.complete(&whole.file));
}

#[test]
fn a_file_that_the_kernel_has_from_a_neighbour_outlives_its_neighbours_eviction() {
    let pair = Pair::new(8 * MIB);
    let span = large(1, 3 * MIB);
    put_all(&pair.worker, &span);
    assert_eq!(pair.node.whole(&span), Whole::Unverified);
    assert_eq!(pair.node.verify(&span, &mut |_| true), Verification::Verified);
    let pin = pair.node.pin(&span).unwrap();
    assert_eq!(pair.node.whole(&span), Whole::Verified { tag: pin.tag });
    assert!(pin.is_borrowed && pair.node.stats().borrowed_pins == 1);
    pair.hands.forward(60_000);
    for number in 2..6 {
        assert_eq!(put_all(&pair.worker, &large(number, 3 * MIB)), Written::Kept, "{number}");
    }
    assert_eq!(chunks_of(&pair.worker, &span).len(), 48, "evicted under the kernel");
    drop(pin);
    pair.hands.forward(60_000);
    for number in 6..10 {
        put_all(&pair.worker, &large(number, 3 * MIB));
    }
    assert!(chunks_of(&pair.worker, &span).is_empty(), "kept for ever");
    assert!(pair.node.pin(&span).is_none());
}

#[test]
fn what_the_kernel_does_not_take_from_a_neighbour_is_read_all_the_same() {
    let pair = Pair::new(8 * MIB);
    let span = large(1, 3 * MIB);
    put_all(&pair.worker, &span);
    assert_eq!(pair.node.verify(&span, &mut |_| true), Verification::Verified);
    pair.node.keep_borrowed_from_kernel();
    assert_eq!(pair.node.whole(&span), Whole::Incomplete);
    assert!(pair.node.pin(&span).is_none());
    assert_eq!(chunks_of(&pair.node, &span).len(), 48);
}

#[test]
fn wrong_bytes_of_a_neighbour_are_not_believed_and_left_to_it() {
    let pair = Pair::new(64 * MIB);
    let (bad, good, torn) = (large(1, 2 * MIB), large(2, 2 * MIB), large(3, 2 * MIB));
    [bad, good, torn].iter().for_each(|span| assert_eq!(put_all(&pair.worker, span), Written::Kept));
    flip(&pair.path(&bad, "data"), 70_000);
    flip(&pair.path(&torn, "map"), 20);
    assert_eq!(chunks_of(&pair.node, &bad), [0], "the chunk before it");
    assert!(!pair.node.complete(&bad.file), "it is not to be asked for again");
    assert_eq!(pair.node.whole(&bad), Whole::Incomplete);
    assert!(chunks_of(&pair.node, &torn).is_empty());
    assert_eq!(chunks_of(&pair.node, &good).len(), 32);
    for span in [bad, torn] {
        assert!(pair.path(&span, "data").exists() && pair.path(&span, "map").exists());
    }
    // Of its own it can keep them all the same.
    put_all(&pair.node, &bad);
    assert_eq!(chunks_of(&pair.node, &bad).len(), 32);
}

#[test]
fn no_link_is_followed_out_of_a_borrowed_folder_and_no_pipe_waited_for() {
    let pair = Pair::new(64 * MIB);
    let spans = [large(1, MIB), large(2, MIB), large(3, MIB)];
    spans.iter().for_each(|span| assert_eq!(put_all(&pair.worker, span), Written::Kept));
    let elsewhere = tempfile::tempdir().unwrap();
    let [linked, piped, moved] = spans.map(|span| pair.path(&span, "data"));
    let copy = elsewhere.path().join("data");
    std::fs::rename(&linked, &copy).unwrap();
    std::os::unix::fs::symlink(&copy, &linked).unwrap();
    std::fs::remove_file(&piped).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &piped,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let shard = moved.parent().unwrap().to_owned();
    std::fs::rename(&shard, elsewhere.path().join("shard")).unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("shard"), &shard).unwrap();
    for span in &spans {
        assert!(chunks_of(&pair.node, span).is_empty(), "{:?}", span.file.content);
        assert_eq!(pair.node.whole(span), Whole::Incomplete);
    }
    let link = pair.pods.path().join("link");
    std::os::unix::fs::symlink(pair.pods.path().join(BELOW), &link).unwrap();
    let linked = BorrowedFolder { below: "link".into(), ..pair.folder() };
    assert_eq!(pair.node.borrow(&[linked]), 0);
    let above = BorrowedFolder { below: "../tier-0".into(), base: pair.pods.path().join(BELOW) };
    assert_eq!(pair.node.borrow(&[above]), 0);
}
