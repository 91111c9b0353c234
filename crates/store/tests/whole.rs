//! Files that the kernel reads itself: verified first, never changed while they are held, dropped whole when they are bad.

#![allow(clippy::unwrap_used, reason = "a test may fail in any line")]

mod rig;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_api::block::{CHUNK_BYTES, Span};
use millrace_store::{BootTag, Class, Eviction, Pin, Store, StoreConfig, Verification, Whole, Written};
use rig::{Hands, MIB, chunk_bytes, config, flip, large, pack, path_of, put, put_all};

fn in_boot(dir: &Path, boot: &[u8]) -> Store {
    Store::open_in_boot(config(dir, 64 * MIB, Eviction::Lru), BootTag::of(boot)).unwrap()
}

fn verify(store: &Store, span: &Span) -> Verification {
    store.verify(span, &mut |_| true)
}

/// A verified object.
fn verified(store: &Store, number: u64, size: u64) -> Span {
    let span = large(number, size);
    assert_eq!(put_all(store, &span), Written::Kept);
    assert_eq!(verify(store, &span), Verification::Verified);
    span
}

fn check(file: &File, span: &Span) {
    for chunk in span.chunks() {
        let expected = chunk_bytes(span, chunk);
        let mut found = vec![0; expected.len()];
        file.read_exact_at(&mut found, u64::from(chunk) * CHUNK_BYTES).unwrap();
        assert!(found == expected, "chunk {chunk}");
    }
    assert_eq!(file.metadata().unwrap().len(), span.size);
}

#[test]
fn only_whole_verified_files_of_one_object_are_handed_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = in_boot(dir.path(), b"one");
    let span = large(1, 3 * MIB + 5);
    assert_eq!((store.whole(&span), verify(&store, &span)), (Whole::Incomplete, Verification::Incomplete));
    put(&store, &span, 0..48, Class::Owned);
    assert_eq!((store.whole(&span), verify(&store, &span)), (Whole::Incomplete, Verification::Incomplete));
    put(&store, &span, 48..49, Class::Owned);
    assert_eq!(store.whole(&span), Whole::Unverified);
    assert!(store.pin(&span).is_none());
    assert_eq!(verify(&store, &span), Verification::Verified);
    let Whole::Verified { tag } = store.whole(&span) else { panic!("verified") };
    let pin = store.pin(&span).unwrap();
    assert_eq!(pin.tag, tag);
    check(&pin.file, &span);
    let member = pack(9, &[CHUNK_BYTES, 100])[0];
    put_all(&store, &member);
    assert_eq!((store.whole(&member), verify(&store, &member)), (Whole::Packed, Verification::Incomplete));
    assert!(store.pin(&member).is_none());
}

#[test]
fn another_boot_verifies_again_and_another_process_of_the_same_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let first = in_boot(dir.path(), b"one");
    let span = verified(&first, 1, 2 * MIB);
    assert!(matches!(in_boot(dir.path(), b"one").whole(&span), Whole::Verified { .. }));
    drop(first);
    let second = in_boot(dir.path(), b"two");
    assert_eq!(second.whole(&span), Whole::Unverified);
    assert!(second.pin(&span).is_none());
    assert_eq!(verify(&second, &span), Verification::Verified);
    assert!(second.pin(&span).is_some());
}

#[test]
fn verification_that_is_called_off_decides_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = in_boot(dir.path(), b"one");
    let span = large(1, 3 * MIB);
    put_all(&store, &span);
    let mut pieces = Vec::new();
    let found = store.verify(&span, &mut |bytes| {
        pieces.push(bytes);
        pieces.len() < 2
    });
    assert_eq!((found, pieces), (Verification::Undecided, vec![MIB, MIB]));
    assert_eq!(store.whole(&span), Whole::Unverified);
}

#[test]
fn bad_chunk_is_dropped_alone_before_and_with_its_file_after_it_was_handed_over() {
    let dir = tempfile::tempdir().unwrap();
    let store = in_boot(dir.path(), b"one");
    let span = large(1, 2 * MIB);
    put_all(&store, &span);
    flip(&path_of(dir.path(), &span, "data"), MIB + 7);
    assert_eq!(verify(&store, &span), Verification::Bad);
    assert_eq!(store.present(&span.file, 0..32).missing().next(), Some(16..17));
    assert_eq!(store.present(&span.file, 0..32).count(), 31);
    put_all(&store, &span);
    assert_eq!(verify(&store, &span), Verification::Verified);

    let pin = store.pin(&span).unwrap();
    flip(&path_of(dir.path(), &span, "data"), MIB + 7);
    assert_eq!(verify(&store, &span), Verification::Bad);
    assert_eq!(store.whole(&span), Whole::Incomplete);
    assert_eq!(store.present(&span.file, 0..32).count(), 0);
    assert_eq!(pin.file.metadata().unwrap().nlink(), 0);
    assert_eq!(store.stats().corrupt_chunks, 2);
    let bad = verified(&store, 1, 2 * MIB);
    check(&store.pin(&bad).unwrap().file, &bad);
    assert_ne!(store.pin(&bad).unwrap().tag, pin.tag);
}

#[test]
fn bad_chunk_that_a_reader_finds_takes_a_file_with_it_that_the_kernel_holds() {
    let dir = tempfile::tempdir().unwrap();
    let store = in_boot(dir.path(), b"one");
    let span = verified(&store, 1, 2 * MIB);
    let pin = store.pin(&span).unwrap();
    flip(&path_of(dir.path(), &span, "data"), 5);
    let mut buffer = vec![0; MIB as usize];
    assert_eq!(store.read_into(&span, 0..16, &mut buffer), 0);
    assert_eq!(pin.file.metadata().unwrap().nlink(), 0);
    // Not a byte of it became a hole.
    let mut second = vec![0; CHUNK_BYTES as usize];
    pin.file.read_exact_at(&mut second, 0).unwrap();
    let differing = second.iter().zip(chunk_bytes(&span, 0)).filter(|(found, wanted)| **found != *wanted);
    assert_eq!(differing.count(), 1);
}

#[test]
fn eviction_never_touches_what_is_held_and_takes_the_rest_whole() {
    let dir = tempfile::tempdir().unwrap();
    let hands = Hands::new();
    let store = || {
        let config = StoreConfig { clock: hands.clock(), ..config(dir.path(), 13 * MIB, Eviction::Lru) };
        Store::open_in_boot(config, BootTag::of(b"one")).unwrap()
    };
    let (one, other) = (store(), store());
    let spans: Vec<Span> = (0..4).map(|number| verified(&one, number, 3 * MIB)).collect();
    let pins: Vec<Pin> = spans.iter().map(|span| one.pin(span).unwrap()).collect();
    hands.forward(60_000);
    let more = large(10, 3 * MIB);
    assert!(matches!(put_all(&other, &more), Written::NotKept(_)), "all is held");
    spans.iter().zip(&pins).for_each(|(span, pin)| check(&pin.file, span));
    let mut pins = pins;
    let let_go = pins.remove(2);
    drop(let_go.file);
    hands.forward(60_000);
    assert_eq!(put_all(&other, &more), Written::Kept);
    assert_eq!(other.present(&spans[2].file, 0..48).count(), 0, "gone whole");
    for (span, pin) in [&spans[0], &spans[1], &spans[3]].into_iter().zip(&pins) {
        check(&pin.file, span);
        assert!(other.pin(span).is_some());
    }
}

#[test]
fn file_that_was_handed_over_once_is_never_punched() {
    let dir = tempfile::tempdir().unwrap();
    let hands = Hands::new();
    let config = StoreConfig { clock: hands.clock(), ..config(dir.path(), 9 * MIB, Eviction::Lru) };
    let store = Store::open_in_boot(config, BootTag::of(b"one")).unwrap();
    let (handed, kept) = (verified(&store, 1, 4 * MIB), verified(&store, 2, 4 * MIB));
    drop(store.pin(&handed).unwrap());
    // What a process may have mapped, which nobody can see.
    let mapped = File::open(path_of(dir.path(), &handed, "data")).unwrap();
    let punched = File::open(path_of(dir.path(), &kept, "data")).unwrap();
    hands.forward(60_000);
    let more = large(3, 2 * MIB);
    assert_eq!(put_all(&store, &more), Written::Kept);
    hands.forward(60_000);
    assert_eq!(put_all(&store, &large(4, 4 * MIB)), Written::Kept);
    check(&mapped, &handed);
    assert!(store.whole(&handed) == Whole::Incomplete || store.whole(&kept) == Whole::Incomplete);
    assert!(punched.metadata().unwrap().nlink() == 0 || store.whole(&kept) != Whole::Unverified);
}

#[test]
fn verified_file_that_lost_a_block_is_not_handed_out() {
    let dir = tempfile::tempdir().unwrap();
    let hands = Hands::new();
    let config = StoreConfig { clock: hands.clock(), ..config(dir.path(), 5 * MIB, Eviction::Lru) };
    let store = Store::open_in_boot(config, BootTag::of(b"one")).unwrap();
    let span = verified(&store, 1, 4 * MIB);
    hands.forward(60_000);
    assert_eq!(put_all(&store, &large(2, 2 * MIB)), Written::Kept);
    assert_eq!(store.whole(&span), Whole::Incomplete);
    assert!(store.pin(&span).is_none());
    let left = store.present(&span.file, 0..64).count();
    assert!(left > 0 && left < 64, "blocks go one by one: {left}");
}

#[test]
fn scrub_finds_what_rots_after_it_was_verified_and_resumes_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let store = in_boot(dir.path(), b"one");
    let spans: Vec<Span> = (0..8).map(|number| verified(&store, number, 2 * MIB)).collect();
    let incomplete = large(100, 2 * MIB);
    put(&store, &incomplete, 0..3, Class::Owned);
    let pins: Vec<Pin> = spans.iter().map(|span| store.pin(span).unwrap()).collect();
    let scrubbed = store.scrub(&mut |_| true).unwrap();
    assert_eq!((scrubbed.files, scrubbed.bad_files), (8, 0));
    flip(&path_of(dir.path(), &spans[5], "data"), 2 * MIB - 1);
    // Called off after each file, it still comes round.
    let mut bad = 0;
    for _ in 0..8 {
        let mut bytes = 0;
        let mut go_on = |more| {
            bytes += more;
            bytes < 2 * MIB
        };
        bad += store.scrub(&mut go_on).unwrap().bad_files;
    }
    assert_eq!((bad, store.whole(&spans[5])), (1, Whole::Incomplete));
    assert_eq!(store.present(&incomplete.file, 0..3).count(), 3);
    spans
        .iter()
        .zip(&pins)
        .filter(|(span, _)| **span != spans[5])
        .for_each(|(span, pin)| check(&pin.file, span));
}

#[test]
fn scrub_is_one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (in_boot(dir.path(), b"one"), in_boot(dir.path(), b"one"));
    verified(&one, 1, MIB);
    let mut seen = Vec::new();
    one.scrub(&mut |_| {
        seen.push(other.scrub(&mut |_| true).unwrap().files);
        true
    })
    .unwrap();
    assert!(!seen.is_empty() && seen.iter().all(|files| *files == 0), "{seen:?}");
    assert_eq!(other.scrub(&mut |_| true).unwrap().files, 1);
}

#[test]
fn rotten_seal_and_rotten_sidecar_cost_a_verification_or_the_file_never_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let store = in_boot(dir.path(), b"one");
    let span = verified(&store, 1, 2 * MIB);
    let pin = store.pin(&span).unwrap();
    flip(&path_of(dir.path(), &span, "map"), 57);
    assert_eq!(store.whole(&span), Whole::Unverified);
    assert!(store.pin(&span).is_none());
    assert_eq!(verify(&store, &span), Verification::Verified);
    // An entry: its chunk counts as absent, and must not be punched out of what the kernel reads.
    flip(&path_of(dir.path(), &span, "map"), 64 + 2 * 8 + 3);
    drop(store);
    let store = in_boot(dir.path(), b"one");
    assert_ne!(verify(&store, &span), Verification::Verified);
    assert_eq!(store.whole(&span), Whole::Incomplete);
    check(&pin.file, &span);
}

/// What the kernel holds is right at any moment, while another process writes and evicts as fast as it can.
#[test]
fn pins_and_evictions_race_without_a_wrong_byte() {
    let dir = tempfile::tempdir().unwrap();
    let hands = Hands::new();
    let open = || {
        let config = StoreConfig { clock: hands.clock(), ..config(dir.path(), 8 * MIB, Eviction::Lru) };
        Arc::new(Store::open_in_boot(config, BootTag::of(b"one")).unwrap())
    };
    let (reader, writer) = (open(), open());
    let spans: Vec<Span> = (0..6).map(|number| large(number, 2 * MIB)).collect();
    let is_over = AtomicBool::new(false);
    let mut pinned = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !is_over.load(Ordering::Relaxed) {
                let span = &spans[round % spans.len()];
                put_all(&writer, span);
                verify(&writer, span);
                hands.forward(3_000);
                round += 1;
            }
        });
        let mut held: Vec<(Span, Pin)> = Vec::new();
        let start = std::time::Instant::now();
        let mut round = 0;
        while pinned < 500 && start.elapsed() < std::time::Duration::from_secs(20) {
            round += 1;
            let span = spans[round * 7 % spans.len()];
            if let Some(pin) = reader.pin(&span) {
                pinned += 1;
                held.push((span, pin));
            }
            if let Some((span, pin)) = held.get(round % held.len().max(1)) {
                check_part(&pin.file, span, (round % 32) as u32);
            }
            if held.len() > 2 {
                let (span, pin) = held.remove(0);
                check(&pin.file, &span);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(pinned > 20, "{pinned}");
    assert!(writer.stats().evicted_blocks > 0);
    assert_eq!(reader.stats().corrupt_chunks + writer.stats().corrupt_chunks, 0);
}

fn check_part(file: &File, span: &Span, chunk: u32) {
    let expected = chunk_bytes(span, chunk);
    let mut found = vec![0; expected.len()];
    file.read_exact_at(&mut found, u64::from(chunk) * CHUNK_BYTES).unwrap();
    assert!(found == expected, "chunk {chunk}");
}
