//! What does a store do when its disk is full, read-only, damaged or emptied under it?

#![allow(clippy::unwrap_used, reason = "tests")]

mod rig;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use millrace_store::{Class, Eviction, NotKept, OpenStore, Store, StoreConfig, Written};
use rig::*;

fn flip(path: &Path, at: u64, bit: u32) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
}

#[test]
fn flipped_bits_are_never_served_and_the_rest_is_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let objects = [large(1, 2 * MIB + 100), pack(2, &[10, 5_000, 70_000, 64 * KIB])[2]];
    let mut random = Random(0x1234_5678_9abc_def1);
    for round in 0..60 {
        // Opened before the flip in some rounds, after it in others.
        let early = Store::open(config(dir.path(), 64 * MIB, Eviction::Never)).unwrap();
        for object in &objects {
            assert_eq!(put_all(&early, object), Written::Kept);
        }
        let paths = [files_of(dir.path(), "data"), files_of(dir.path(), "map")].concat();
        for _ in 0..3 {
            let path = &paths[random.below(paths.len() as u64) as usize];
            let len = fs::metadata(path).unwrap().len();
            flip(path, random.below(len), random.below(8) as u32);
        }
        let store = if round % 2 == 0 {
            early
        } else {
            drop(early);
            Store::open(config(dir.path(), 64 * MIB, Eviction::Never)).unwrap()
        };
        for object in &objects {
            // `get` compares what comes; most comes.
            chunks_of(&store, object);
            assert_eq!(put_all(&store, object), Written::Kept);
            assert_eq!(chunks_of(&store, object).len(), object.chunks().len(), "round {round}");
        }
        assert!(store.usage().used_bytes() <= 3 * MIB);
    }
}

#[test]
fn a_bad_chunk_is_dropped_counted_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path(), 64 * MIB, Eviction::Never)).unwrap();
    let object = large(1, MIB);
    put_all(&store, &object);
    let used = store.usage().used_bytes();
    assert!(!store.drop_chunk(&object, 3), "its bytes are right: they were changed on their way");
    flip(&files_of(dir.path(), "data")[0], 3 * 65_536 + 9, 0);
    let mut buffer = vec![0; MIB as usize];
    assert_eq!(store.read_into(&object, 0..16, &mut buffer), 3, "the run ends before it");
    assert_eq!(store.stats().corrupt_chunks, 1);
    assert_eq!(store.usage().used_bytes(), used - 65_536);
    assert!(!get(&store, &object, 3) && get(&store, &object, 4));
    flip(&files_of(dir.path(), "data")[0], 5 * 65_536, 7);
    assert!(store.drop_chunk(&object, 5));
    assert_eq!(put(&store, &object, 3..6, Class::Owned), Written::Kept);
    assert_eq!(store.read_into(&object, 0..16, &mut buffer), 16);
    assert_eq!(store.usage().used_bytes(), used);
}

#[test]
fn vanished_and_cut_files_are_fetched_again() {
    let object = large(1, MIB + 7);
    let harms: [fn(&Path); 7] = [
        |dir| fs::remove_file(&files_of(dir, "data")[0]).unwrap(),
        |dir| fs::remove_file(&files_of(dir, "map")[0]).unwrap(),
        |dir| fs::remove_dir_all(dir.join("blocks")).unwrap(),
        |dir| {
            OpenOptions::new().write(true).open(&files_of(dir, "data")[0]).unwrap().set_len(70_000).unwrap()
        },
        |dir| OpenOptions::new().write(true).open(&files_of(dir, "map")[0]).unwrap().set_len(150).unwrap(),
        |dir| OpenOptions::new().write(true).open(&files_of(dir, "map")[0]).unwrap().set_len(3).unwrap(),
        |dir| fs::remove_file(dir.join("usage")).unwrap(),
    ];
    for (number, harm) in harms.iter().enumerate() {
        for is_open in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let open = || Store::open(config(dir.path(), 64 * MIB, Eviction::Never)).unwrap();
            let store = open();
            put_all(&store, &object);
            let store = if is_open {
                harm(dir.path());
                store
            } else {
                drop(store);
                harm(dir.path());
                open()
            };
            chunks_of(&store, &object);
            assert!(
                store
                    .read(&object, 0..17)
                    .is_none_or(|hit| { hit.file.metadata().unwrap().len() >= hit.offset + hit.len })
            );
            assert_eq!(put_all(&store, &object), Written::Kept, "harm {number}, {is_open}");
            assert_eq!(chunks_of(&store, &object).len(), 17, "harm {number}, {is_open}");
            drop(store);
            let store = open();
            let usage = store.usage();
            assert!(usage.used_bytes() <= MIB + 3 * 4096, "harm {number}, {is_open}: {usage:?}");
        }
    }
}

#[test]
fn a_store_of_another_version_is_emptied_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Store::open(config(dir.path(), 64 * MIB, Eviction::Never));
    let object = large(1, MIB);
    let store = open().unwrap();
    put_all(&store, &object);
    flip(&dir.path().join("usage"), 8, 4);
    let error = open().unwrap_err();
    assert!(matches!(error, OpenStore::InUseByOtherVersion { version: 17, .. }), "{error}");
    drop(store);
    let store = open().unwrap();
    assert_eq!(store.stats().damaged_files, 1);
    assert_eq!(store.usage().used_bytes(), 0);
    assert!(chunks_of(&store, &object).is_empty());
    assert_eq!(put_all(&store, &object), Written::Kept);
    drop(store);
    // One sidecar of another version among others.
    flip(&files_of(dir.path(), "map")[0], 8, 4);
    let store = open().unwrap();
    assert_eq!(store.stats().damaged_files, 1);
    assert!(chunks_of(&store, &object).is_empty());
    assert_eq!(put_all(&store, &object), Written::Kept);
}

#[test]
fn a_full_file_system_serves_without_keeping_and_recovers() {
    let Some(disk) = SmallDisk::new("size=4m") else { return };
    let hands = Hands::new();
    let config = StoreConfig { clock: hands.clock(), ..config(disk.path(), 64 * MIB, Eviction::Never) };
    let store = Store::open(config).unwrap();
    let objects: Vec<_> = (0..6).map(|number| large(number, MIB)).collect();
    let written: Vec<Written> = objects.iter().map(|object| put_all(&store, object)).collect();
    assert_eq!(written[..3], [Written::Kept; 3]);
    assert_eq!(written[5], Written::NotKept(NotKept::NoSpace));
    for object in &objects {
        chunks_of(&store, object);
    }
    assert!(store.stats().not_kept[NotKept::NoSpace as usize] > 0);
    assert_eq!(store.stats().corrupt_chunks, 0);
    let used = store.usage().used_bytes();
    assert!(used >= allocated(disk.path()), "{used} < {}", allocated(disk.path()));
    assert!(used <= 4 * MIB);
    store.mark_unused([objects[0].file.content]);
    hands.forward(2_000);
    assert_eq!(put_all(&store, &objects[4]), Written::Kept, "unused content made room");
    assert_eq!(chunks_of(&store, &objects[4]).len(), 16);
}

#[test]
fn a_file_system_without_inodes_serves_without_keeping() {
    // The root, lock, usage and the folder of blocks; each object needs up to three.
    let Some(disk) = SmallDisk::new("size=64m,nr_inodes=12") else { return };
    let hands = Hands::new();
    let config = StoreConfig { clock: hands.clock(), ..config(disk.path(), 64 * MIB, Eviction::Never) };
    let store = Store::open(config).unwrap();
    let objects: Vec<_> = (0..6).map(|number| large(number, MIB)).collect();
    let written: Vec<Written> = objects.iter().map(|object| put_all(&store, object)).collect();
    assert_eq!(written[0], Written::Kept);
    assert_eq!(written[5], Written::NotKept(NotKept::NoSpace));
    let files = store.usage().tiers[0].files as usize;
    assert_eq!(files, files_of(disk.path(), "map").len());
    assert_eq!(files, files_of(disk.path(), "data").len());
}

#[test]
fn the_floors_of_space_and_inodes_are_left_to_others() {
    let Some(disk) = SmallDisk::new("size=8m,nr_inodes=40") else { return };
    let mut by_space = config(disk.path(), 64 * MIB, Eviction::Never);
    by_space.limits.free_space_floor_bytes = 5 * MIB;
    let store = Store::open(by_space).unwrap();
    for number in 0..6 {
        put_all(&store, &large(number, MIB));
    }
    assert_eq!(put_all(&store, &large(9, MIB)), Written::NotKept(NotKept::FreeSpace));
    let free = rustix::fs::statvfs(disk.path()).unwrap();
    assert!(free.f_bavail * free.f_frsize >= 5 * MIB);
    assert!(store.usage().used_bytes() > 2 * MIB);
    drop(store);
    let mut by_inodes = config(disk.path(), 64 * MIB, Eviction::Never);
    by_inodes.limits.free_inodes_floor = 20;
    let store = Store::open(by_inodes).unwrap();
    let refused =
        (20..40).map(|number| put_all(&store, &pack(number, &[100])[0])).find(|it| *it != Written::Kept);
    assert_eq!(refused, Some(Written::NotKept(NotKept::FreeInodes)));
    assert!(rustix::fs::statvfs(disk.path()).unwrap().f_favail >= 20);
}

#[test]
fn a_read_only_file_system_serves_what_it_has_and_recovers() {
    let Some(disk) = SmallDisk::new("size=16m") else { return };
    let hands = Hands::new();
    let open = || {
        let config = StoreConfig { clock: hands.clock(), ..config(disk.path(), 64 * MIB, Eviction::Lru) };
        Store::open(config).unwrap()
    };
    let object = large(1, MIB);
    put_all(&open(), &object);
    disk.read_only(true);
    let store = open();
    assert_eq!(chunks_of(&store, &object).len(), 16);
    assert_eq!(store.read(&object, 0..16).unwrap().crcs.len(), 16);
    assert_eq!(store.usage().used_bytes(), MIB + 4096);
    let other = large(2, MIB);
    assert_eq!(put_all(&store, &other), Written::NotKept(NotKept::ReadOnly));
    store.mark_unused([object.file.content]);
    disk.read_only(false);
    assert_eq!(put_all(&store, &other), Written::NotKept(NotKept::ReadOnly), "left alone for a while");
    hands.forward(6_000);
    assert_eq!(put_all(&store, &other), Written::Kept);
    assert_eq!(chunks_of(&store, &other).len(), 16);
    assert_eq!(store.stats().damaged_files + store.stats().corrupt_chunks, 0);
}

#[test]
fn left_overs_of_killed_processes_are_removed_and_foreign_files_stay() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Store::open(config(dir.path(), 64 * MIB, Eviction::Never)).unwrap();
    let object = large(1, MIB);
    put(&open(), &object, 0..4, Class::Owned);
    let shard = files_of(dir.path(), "data")[0].parent().unwrap().to_owned();
    let orphan = shard.join(format!("{}.data", content(77)));
    let unnamed = shard.join(format!("{}.new", content(78)));
    let foreign = shard.join("notes.txt");
    for path in [&orphan, &unnamed, &foreign] {
        fs::write(path, vec![1; 100_000]).unwrap();
    }
    // Data whose entry was never written.
    let data = OpenOptions::new().write(true).open(&files_of(dir.path(), "data")[0]);
    data.unwrap().write_all_at(&vec![1; 512 << 10], 512 << 10).unwrap();
    let store = open();
    assert!(!orphan.exists() && !unnamed.exists() && foreign.exists());
    assert_eq!(store.usage().used_bytes(), 4 * 65_536 + 4096);
    assert!(allocated(dir.path()) < 4 * 65_536 + 100_000, "{}", allocated(dir.path()));
    assert_eq!(chunks_of(&store, &object), [0, 1, 2, 3]);
}
