//! Does a store give back what it was given, within its bounds?

#![allow(clippy::unwrap_used, reason = "tests")]

mod rig;

use std::os::unix::fs::FileExt;

use millrace_api::crc::crc32c;
use millrace_store::{Class, Eviction, Medium, NotKept, Store, StoreConfig, TierConfig, Written};
use rig::*;

#[test]
fn chunks_of_large_objects_and_packs_read_back_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Store::open(config(dir.path(), 64 * MIB, Eviction::Never)).unwrap();
    let object = large(1, 3 * MIB + 77);
    let members = pack(2, &[1, 4096, 70_000, 5000, 65_536]);
    let store = open();
    assert_eq!(put(&store, &object, 3..9, Class::Owned), Written::Kept);
    assert_eq!(put(&store, &object, 48..49, Class::Owned), Written::Kept);
    for member in [0, 2, 4] {
        assert_eq!(put_all(&store, &members[member]), Written::Kept);
    }
    for store in [store.clone(), open()] {
        assert_eq!(chunks_of(&store, &object), [3, 4, 5, 6, 7, 8, 48]);
        assert_eq!(chunks_of(&store, &members[0]), [0]);
        assert!(chunks_of(&store, &members[1]).is_empty());
        assert_eq!(chunks_of(&store, &members[2]), [0, 1]);
        assert!(chunks_of(&store, &members[3]).is_empty());
        assert_eq!(chunks_of(&store, &members[4]), [0]);
    }
    assert_eq!(put_all(&store, &members[1]), Written::Kept);
    assert!(!store.complete(&members[0].file));
    assert_eq!(put_all(&store, &members[3]), Written::Kept);
    assert!(store.complete(&members[0].file));
    assert_eq!(store.block_chunks_present(&object.file, 0), 6);
    assert_eq!(store.block_chunks_present(&object.file, 1), 0);
    assert_eq!(store.block_chunks_present(&object.file, 3), 1);
}

#[test]
fn a_hit_is_the_longest_run_with_its_checksums_for_sendfile() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path(), 64 * MIB, Eviction::Never)).unwrap();
    let object = large(1, 2 * MIB + 5);
    put(&store, &object, 2..7, Class::Owned);
    put(&store, &object, 30..33, Class::Owned);
    let hit = store.read(&object, 3..40).unwrap();
    assert_eq!((hit.offset, hit.len, hit.crcs.len()), (3 * 65_536, 4 * 65_536, 4));
    let mut bytes = vec![0; hit.len as usize];
    hit.file.read_exact_at(&mut bytes, hit.offset).unwrap();
    for (piece, crc) in bytes.chunks(65_536).zip(&hit.crcs) {
        assert_eq!(crc32c(piece), *crc);
    }
    assert_eq!(store.read(&object, 31..33).unwrap().len, 65_536 + 5, "the last chunk is short");
    assert!(store.read(&object, 7..9).is_none());
    assert!(store.read(&object, 33..40).is_none(), "past the end");
    let members = pack(2, &[100, 70_000]);
    put_all(&store, &members[1]);
    let hit = store.read(&members[1], 0..2).unwrap();
    assert_eq!((hit.offset, hit.len, hit.crcs.len()), (4096, 70_000, 2));
}

#[test]
fn read_into_stops_where_the_buffer_ends() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path(), 64 * MIB, Eviction::Never)).unwrap();
    let object = large(1, MIB + 5);
    put_all(&store, &object);
    let mut buffer = vec![0; 3 * 65_536];
    assert_eq!(store.read_into(&object, 0..17, &mut buffer), 3);
    assert_eq!(store.read_into(&object, 0..17, &mut buffer[..65_535]), 0);
    assert_eq!(store.read_into(&object, 15..17, &mut buffer[..65_536 + 5]), 2);
    assert_eq!(store.read_into(&object, 15..17, &mut buffer[..65_536 + 4]), 1);
    let stats = store.stats();
    assert_eq!((stats.hit_chunks, stats.hit_bytes), (6, 5 * 65_536 + 5 + 65_536 - 5 - 65_531));
}

#[test]
fn a_quota_is_filled_to_the_last_page_and_never_passed() {
    let dir = tempfile::tempdir().unwrap();
    let quota = 8 * MIB;
    let store = Store::open(config(dir.path(), quota, Eviction::Never)).unwrap();
    let mut kept = 0;
    for number in 0..5 {
        let object = large(number, 2 * MIB);
        for chunk in object.chunks() {
            kept += u32::from(put(&store, &object, chunk..chunk + 1, Class::Owned) == Written::Kept);
        }
    }
    // Each file's sidecar takes a page, which costs the last chunk.
    assert_eq!(kept, 127);
    let usage = store.usage();
    assert_eq!(usage.used_bytes(), 127 * 65_536 + 4 * 4096);
    assert!(allocated(dir.path()) <= quota, "{} allocated", allocated(dir.path()));
    let small = pack(9, &[40_000]);
    assert_eq!(put_all(&store, &small[0]), Written::Kept, "a page more for its sidecar, ten for its bytes");
    assert_eq!(store.usage().used_bytes(), quota - 4096, "127 chunks, 5 sidecars, 10 pages");
    assert!(store.stats().not_kept[NotKept::Quota as usize] > 0);
    drop(store);
    let again = Store::open(config(dir.path(), quota, Eviction::Never)).unwrap();
    assert_eq!(again.usage().used_bytes(), quota - 4096, "counted again");
}

#[test]
fn the_bound_on_files_holds() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), 64 * MIB, Eviction::Never);
    config.limits.max_files = 3;
    let store = Store::open(config).unwrap();
    let written: Vec<Written> = (0..5).map(|number| put_all(&store, &large(number, MIB))).collect();
    assert_eq!(
        written[2..],
        [Written::Kept, Written::NotKept(NotKept::Files), Written::NotKept(NotKept::Files)]
    );
    assert_eq!(store.usage().tiers[0].files, 3);
}

#[test]
fn reads_for_others_have_a_share_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), 20 * MIB, Eviction::Never);
    config.limits.read_through_percent = 10;
    let store = Store::open(config).unwrap();
    for number in 0..20 {
        put_all(&store, &large(number, MIB));
    }
    let owned = store.usage().tiers[0];
    assert!(owned.used_bytes <= 18 * MIB && owned.used_bytes > 17 * MIB, "{owned:?}");
    let others: Vec<_> = (100..105).map(|number| large(number, MIB - 64 * KIB)).collect();
    for other in &others {
        assert_eq!(put(&store, other, 0..15, Class::ReadThrough), Written::Kept);
        let usage = store.usage().tiers[0];
        assert!(usage.read_through_bytes <= 2 * MIB && usage.used_bytes <= 20 * MIB, "{usage:?}");
    }
    assert!(chunks_of(&store, &others[0]).is_empty(), "the first of them made room for the last");
    assert_eq!(chunks_of(&store, &others[4]).len(), 15);
    assert_eq!(chunks_of(&store, &large(0, MIB)).len(), 16, "what is owned stays");
}

#[test]
fn what_was_read_through_becomes_owned_when_its_owner_writes_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), 40 * MIB, Eviction::Never);
    config.limits.read_through_percent = 10;
    let store = Store::open(config).unwrap();
    let object = large(1, MIB);
    put(&store, &object, 0..8, Class::ReadThrough);
    assert_eq!(store.usage().tiers[0].read_through_bytes, MIB / 2);
    put(&store, &object, 0..9, Class::Owned);
    assert_eq!(store.usage().tiers[0].read_through_bytes, 0);
    assert_eq!(store.usage().used_bytes(), 9 * 65_536 + 4096);
}

#[test]
fn a_full_memory_tier_overflows_to_the_disk_tier() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let tier = |dir: &tempfile::TempDir, medium, quota_bytes| TierConfig {
        dir: dir.path().join("made"),
        medium,
        quota_bytes,
    };
    let store = Store::open(StoreConfig {
        tiers: vec![tier(&dirs[0], Medium::Memory, 2 * MIB), tier(&dirs[1], Medium::Disk, 8 * MIB)],
        limits: no_floors(),
        ..StoreConfig::default()
    })
    .unwrap();
    let objects: Vec<_> = (0..6).map(|number| large(number, MIB)).collect();
    for object in &objects {
        assert_eq!(put_all(&store, object), Written::Kept);
        assert_eq!(put_all(&store, object), Written::Kept, "again");
    }
    for object in &objects {
        assert_eq!(chunks_of(&store, object).len(), 16);
        assert!(store.complete(&object.file));
    }
    let tiers = store.usage().tiers;
    assert!(tiers[0].used_bytes > MIB && tiers[0].used_bytes <= 2 * MIB, "{tiers:?}");
    assert!(
        tiers.iter().map(|tier| tier.used_bytes).sum::<u64>() <= 6 * MIB + 7 * 4096,
        "nothing is kept twice"
    );
}

#[test]
fn a_store_without_tiers_or_quota_keeps_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for tiers in
        [vec![], vec![TierConfig { dir: dir.path().to_owned(), medium: Medium::Disk, quota_bytes: 0 }]]
    {
        let store = Store::open(StoreConfig { tiers, ..StoreConfig::default() }).unwrap();
        assert_eq!(put_all(&store, &large(1, MIB)), Written::NotKept(NotKept::Disabled));
        assert!(store.read(&large(1, MIB), 0..1).is_none());
    }
}

#[test]
fn bytes_that_do_not_fit_the_object_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(config(dir.path(), 64 * MIB, Eviction::Never)).unwrap();
    let object = large(1, MIB + 5);
    let invalid = Written::NotKept(NotKept::Invalid);
    assert_eq!(store.write(&object, 0, &[0; 65_535], 0, Class::Owned), invalid);
    assert_eq!(store.write(&object, 17, &[0; 5], 0, Class::Owned), invalid);
    assert_eq!(store.write_run(&object, 0, &[[0; 65_536]], &[], Class::Owned), invalid);
    assert_eq!(store.write_run::<[u8; 1]>(&object, 0, &[], &[], Class::Owned), invalid);
    assert_eq!(store.usage().used_bytes(), 0);
}

#[test]
fn only_so_many_files_are_held_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), 64 * MIB, Eviction::Never);
    config.limits.open_files = 8;
    let store = Store::open(config).unwrap();
    let objects: Vec<_> = (0..100).map(|number| pack(number, &[100])[0]).collect();
    for object in &objects {
        assert_eq!(put_all(&store, object), Written::Kept);
    }
    assert!(objects.iter().all(|object| get(&store, object, 0)));
    let inside = |link: std::path::PathBuf| {
        std::fs::read_link(link).is_ok_and(|target| target.starts_with(dir.path()))
    };
    let open =
        std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(|entry| inside(entry.path())).count();
    assert!(open <= 2 * 8 + 2, "{open} descriptors");
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let error = Store::open(config(&dir.path().join("file/tier"), MIB, Eviction::Never)).unwrap_err();
    assert!(error.to_string().contains("file/tier"), "{error}");
}
