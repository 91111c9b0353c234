//! Does the right content go when a store is full?

#![allow(clippy::unwrap_used, reason = "tests")]

mod rig;

use std::collections::HashSet;
use std::os::unix::fs::FileExt;

use millrace_api::crc::crc32c;
use millrace_store::{Class, Eviction, Medium, NotKept, Store, StoreConfig, TierConfig, Written};
use rig::*;

/// A store of 8 MiB with a clock that the test moves.
fn small(dir: &tempfile::TempDir, eviction: Eviction) -> (Store, Hands) {
    let hands = Hands::new();
    let config = StoreConfig { clock: hands.clock(), ..config(dir.path(), 8 * MIB, eviction) };
    (Store::open(config).unwrap(), hands)
}

#[test]
fn a_full_store_that_never_evicts_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let (store, hands) = small(&dir, Eviction::Never);
    let first = large(1, 7 * MIB);
    assert_eq!(put_all(&store, &first), Written::Kept);
    hands.forward(60_000);
    assert_eq!(put_all(&store, &large(2, 2 * MIB)), Written::NotKept(NotKept::Quota));
    assert_eq!(chunks_of(&store, &first).len(), 112);
    assert_eq!(store.stats().evicted_blocks, 0);
}

#[test]
fn lru_evicts_the_block_that_was_not_read_for_the_longest_time() {
    let dir = tempfile::tempdir().unwrap();
    let (store, hands) = small(&dir, Eviction::Lru);
    // Blocks 0 to 6 of one object, written in order.
    let object = large(1, 7 * MIB);
    for block in 0..7 {
        put(&store, &object, block * 16..block * 16 + 16, Class::Owned);
        hands.forward(3_000);
    }
    // Read in another order.
    for block in [3, 0, 6, 1, 5, 2, 4] {
        assert!(get(&store, &object, block * 16 + 5));
        hands.forward(3_000);
    }
    let present = |block| store.block_chunks_present(&object.file, block) == 16;
    for (gone, number) in [3, 0, 6, 1, 5].into_iter().zip(10..) {
        // The first fits beside the object.
        assert_eq!(put_all(&store, &large(number, MIB)), Written::Kept);
        if number == 10 {
            assert!((0..7).filter(|block| present(*block)).count() >= 6);
        }
        hands.forward(3_000);
        let _ = gone;
    }
    assert!(present(4) && present(2), "read last, kept longest");
    assert!(!present(3) && !present(0), "read first, gone first");
    assert!(allocated(dir.path()) <= 8 * MIB);
    assert!(store.usage().used_bytes() <= 8 * MIB);
}

#[test]
fn unused_content_goes_first_in_either_mode() {
    for eviction in [Eviction::Never, Eviction::Lru] {
        let dir = tempfile::tempdir().unwrap();
        let (store, hands) = small(&dir, eviction);
        let objects: Vec<_> = (0..7).map(|number| large(number, MIB)).collect();
        for object in &objects {
            put_all(&store, object);
            hands.forward(3_000);
        }
        // The newest of all.
        let unused = [objects[5].file.content, objects[6].file.content];
        store.mark_unused(unused);
        assert_eq!(chunks_of(&store, &objects[6]).len(), 16, "still there, and in use again");
        hands.forward(3_000);
        assert_eq!(put_all(&store, &large(10, MIB + 64 * KIB)), Written::Kept);
        let kept: Vec<usize> = (0..7).filter(|at| !chunks_of(&store, &objects[*at]).is_empty()).collect();
        assert_eq!(kept, [0, 1, 2, 3, 4, 6], "{eviction:?}");
    }
}

#[test]
fn retain_marks_all_that_is_not_live_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let objects: Vec<_> = (0..7).map(|number| large(number, MIB)).collect();
    {
        let (store, _) = small(&dir, Eviction::Never);
        objects.iter().for_each(|object| assert_eq!(put_all(&store, object), Written::Kept));
        let live: HashSet<_> = objects[..2].iter().map(|object| object.file.content).collect();
        store.retain(|content| live.contains(&content));
    }
    let (store, _) = small(&dir, Eviction::Never);
    assert_eq!(put_all(&store, &large(20, 5 * MIB)), Written::Kept);
    assert_eq!(put_all(&store, &large(21, 2 * MIB)), Written::NotKept(NotKept::Quota));
    assert!(objects[..2].iter().all(|object| chunks_of(&store, object).len() == 16));
    assert!(objects[2..].iter().all(|object| chunks_of(&store, object).is_empty()));
}

#[test]
fn a_full_store_does_not_search_again_and_again() {
    // In memory, since only the number of steps counts.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let hands = Hands::new();
    let quota = 16 * MIB;
    let store =
        Store::open(StoreConfig { clock: hands.clock(), ..config(dir.path(), quota, Eviction::Never) })
            .unwrap();
    let mut number = 0;
    while put_all(&store, &pack(number, &[4096])[0]) == Written::Kept {
        number += 1;
    }
    assert_eq!(number, 2048);
    let since = std::time::Instant::now();
    for other in 0..2_000 {
        assert_eq!(put_all(&store, &pack(10_000 + other, &[4096])[0]), Written::NotKept(NotKept::Quota));
    }
    let each = since.elapsed() / 2_000;
    assert!(each.as_micros() < 3_000, "{each:?} a refused write: 2,048 files were searched each time");
}

#[test]
fn a_block_that_was_just_handed_out_is_not_punched() {
    let dir = tempfile::tempdir().unwrap();
    let (store, hands) = small(&dir, Eviction::Lru);
    let object = large(1, 7 * MIB);
    put_all(&store, &object);
    hands.forward(10_000);
    let hit = store.read(&object, 0..16).unwrap();
    for block in 1..7 {
        get(&store, &object, block * 16);
    }
    // All blocks are leased: new content is not kept.
    assert_eq!(put_all(&store, &large(2, 2 * MIB)), Written::NotKept(NotKept::Quota));
    hands.forward(1_000);
    let mut bytes = vec![0; hit.len as usize];
    hit.file.read_exact_at(&mut bytes, hit.offset).unwrap();
    assert!(bytes.chunks(65_536).zip(&hit.crcs).all(|(piece, crc)| crc32c(piece) == *crc));
    hands.forward(2_000);
    assert_eq!(put_all(&store, &large(2, 2 * MIB)), Written::Kept);
}

#[test]
fn readers_of_a_removed_pack_keep_what_they_were_handed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, hands) = small(&dir, Eviction::Lru);
    let member = pack(1, &[300_000])[0];
    put_all(&store, &member);
    let hit = store.read(&member, 0..5).unwrap();
    hands.forward(3_000);
    put_all(&store, &large(2, 8 * MIB - 128 * KIB));
    put_all(&store, &large(3, MIB));
    assert!(chunks_of(&store, &member).is_empty(), "evicted");
    let mut bytes = vec![0; hit.len as usize];
    hit.file.read_exact_at(&mut bytes, hit.offset).unwrap();
    assert!(bytes.chunks(65_536).zip(&hit.crcs).all(|(piece, crc)| crc32c(piece) == *crc));
}

#[test]
fn a_lowered_quota_holds_from_the_next_opening_on() {
    let dir = tempfile::tempdir().unwrap();
    let objects = [large(1, 5 * MIB), large(2, 2 * MIB)];
    let (store, hands) = small(&dir, Eviction::Never);
    for object in &objects {
        assert_eq!(put_all(&store, object), Written::Kept);
        hands.forward(3_000);
    }
    drop(store);
    let open = |quota| {
        let config = StoreConfig { clock: hands.clock(), ..config(dir.path(), quota, Eviction::Never) };
        Store::open(config).unwrap()
    };
    let store = open(4 * MIB);
    let used = store.usage().used_bytes();
    assert!(used <= 4 * MIB && used > 3 * MIB - 64 * KIB, "{used}");
    assert!(allocated(dir.path()) <= 4 * MIB);
    assert_eq!(chunks_of(&store, &objects[1]).len(), 32, "what was written first goes first");
    drop(store);
    assert_eq!(open(0).usage().used_bytes(), 0);
}

/// A store of 4 MiB in memory and 8 MiB on disk, each but for its sidecars.
fn two_tiers(dirs: &[tempfile::TempDir; 2], eviction: Eviction) -> (Store, Hands) {
    let hands = Hands::new();
    let tier = |dir: &tempfile::TempDir, medium, quota_bytes| TierConfig {
        dir: dir.path().to_owned(),
        medium,
        quota_bytes,
    };
    let tiers = vec![
        tier(&dirs[0], Medium::Memory, 4 * MIB + 64 * KIB),
        tier(&dirs[1], Medium::Disk, 8 * MIB + 128 * KIB),
    ];
    let config = StoreConfig { tiers, eviction, limits: no_floors(), clock: hands.clock() };
    (Store::open(config).unwrap(), hands)
}

#[test]
fn nothing_is_evicted_while_a_slower_tier_has_room() {
    for eviction in [Eviction::Never, Eviction::Lru] {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let (store, hands) = two_tiers(&dirs, eviction);
        let objects: Vec<_> = (0..12).map(|number| large(number, MIB)).collect();
        for (object, number) in objects.iter().zip(0..) {
            assert_eq!(put_all(&store, object), Written::Kept, "{eviction:?} {number}");
            // Not even what is unused.
            store.mark_unused((number == 1).then_some(object.file.content));
            hands.forward(3_000);
        }
        assert_eq!(store.stats().evicted_blocks, 0, "{eviction:?}");
        assert!(objects.iter().all(|object| chunks_of(&store, object).len() == 16), "{eviction:?}");
        let tiers = store.usage().tiers;
        assert!(tiers[0].used_bytes >= 4 * MIB && tiers[1].used_bytes >= 8 * MIB, "{tiers:?}");
    }
}

#[test]
fn the_block_that_was_not_read_for_the_longest_time_goes_from_whatever_tier() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (store, hands) = two_tiers(&dirs, Eviction::Lru);
    let objects: Vec<_> = (0..12).map(|number| large(number, MIB)).collect();
    for object in &objects {
        assert_eq!(put_all(&store, object), Written::Kept);
        hands.forward(3_000);
    }
    // The first four are in memory; two of them are read again, and one of those on disk is not.
    for at in [0, 1, 4, 5, 7, 8, 9, 10, 11, 2, 3] {
        assert_eq!(chunks_of(&store, &objects[at]).len(), 16);
        hands.forward(3_000);
    }
    for (number, gone) in [(20, 6), (21, 0), (22, 1), (23, 4)] {
        assert_eq!(put_all(&store, &large(number, MIB)), Written::Kept);
        hands.forward(3_000);
        assert_eq!(store.block_chunks_present(&objects[gone].file, 0), 0, "{gone} goes for {number}");
    }
    let kept = objects.iter().filter(|object| store.complete(&object.file)).count();
    assert_eq!(kept, 8, "one block went for each new one");
    assert!((20..24).all(|number| store.complete(&large(number, MIB).file)));
}

#[test]
fn what_is_spare_goes_before_what_is_in_use_in_all_tiers() {
    for eviction in [Eviction::Never, Eviction::Lru] {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let (store, hands) = two_tiers(&dirs, eviction);
        let objects: Vec<_> = (0..12).map(|number| large(number, MIB)).collect();
        for object in &objects {
            assert_eq!(put_all(&store, object), Written::Kept);
            hands.forward(3_000);
        }
        // In the slower tier, and the newest.
        store.mark_unused([objects[11].file.content]);
        assert_eq!(put_all(&store, &large(20, MIB)), Written::Kept);
        let kept: Vec<_> = objects.iter().map(|object| store.complete(&object.file)).collect();
        assert_eq!(kept.iter().filter(|is_kept| **is_kept).count(), 11, "{eviction:?} {kept:?}");
        assert!(!kept[11], "{eviction:?}");
    }
}
