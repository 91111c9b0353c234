//! Does a store agree with the simplest thing that could stand in for it, whatever is done to it?

#![allow(clippy::unwrap_used, reason = "tests")]

mod rig;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_api::block::{CHUNK_BYTES, Span};
use millrace_store::{Class, Eviction, Store, StoreConfig, Written};
use proptest::prelude::*;
use rig::*;

#[derive(Debug, Clone)]
enum Step {
    Write { object: usize, first: u32, count: u32, class: Class },
    Read { object: usize, first: u32, count: u32 },
    Hit { object: usize, first: u32, count: u32 },
    MarkUnused { object: usize },
    Reopen,
    Wait { millis: u64 },
    OpenSecond,
}

fn objects() -> Vec<Span> {
    let mut objects =
        vec![large(1, MIB), large(2, 2 * MIB + 1), large(3, 3 * MIB + 4097), large(4, MIB + 70_000)];
    objects.extend(pack(5, &[1, 4096, 4097, 65_536, 65_537, 200_000]));
    objects.extend(pack(6, &[500_000, 300_000]));
    objects
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0_usize..12, 0_u32..50, 1_u32..20);
    let class = prop_oneof![4 => Just(Class::Owned), 1 => Just(Class::ReadThrough)];
    prop_oneof![
        8 => (range.clone(), class)
            .prop_map(|((object, first, count), class)| Step::Write { object, first, count, class }),
        6 => range.clone().prop_map(|(object, first, count)| Step::Read { object, first, count }),
        3 => range.prop_map(|(object, first, count)| Step::Hit { object, first, count }),
        1 => (0_usize..12).prop_map(|object| Step::MarkUnused { object }),
        1 => Just(Step::Reopen),
        2 => (0_u64..5_000).prop_map(|millis| Step::Wait { millis }),
        1 => Just(Step::OpenSecond),
    ]
}

/// Runs steps; `may_lose` where eviction may take what was written.
fn run(steps: &[Step], quota: u64, eviction: Eviction, may_lose: bool) {
    let dir = tempfile::tempdir().unwrap();
    let hands = Hands::new();
    let open = || {
        let mut config = StoreConfig { clock: hands.clock(), ..config(dir.path(), quota, eviction) };
        config.limits.read_through_percent = 10;
        config.limits.open_files = 2;
        Store::open(config).unwrap()
    };
    let objects = objects();
    // Chunk -> was it ever kept: the bytes follow from its name.
    let mut model: HashMap<(usize, u32), ()> = HashMap::new();
    let mut stores = vec![open()];
    for step in steps {
        let store = stores.last().unwrap();
        match step {
            Step::Write { object, first, count, class } => {
                let span = &objects[*object];
                let chunks = clip(span, *first, *count);
                if chunks.is_empty() {
                    continue;
                }
                if put(store, span, chunks.clone(), *class) == Written::Kept {
                    model.extend(chunks.map(|chunk| ((*object, chunk), ())));
                }
            }
            Step::Read { object, first, count } => {
                let span = &objects[*object];
                let chunks = clip(span, *first, *count);
                let mut buffer = vec![0; chunks.len() * CHUNK_BYTES as usize];
                let found = store.read_into(span, chunks.clone(), &mut buffer);
                for chunk in chunks.start..chunks.start + found {
                    assert!(model.contains_key(&(*object, chunk)), "{chunk} of {object} was never kept");
                    let at = (chunk - chunks.start) as usize * CHUNK_BYTES as usize;
                    let expected = chunk_bytes(span, chunk);
                    assert!(buffer[at..at + expected.len()] == expected);
                }
                let next = chunks.start + found;
                assert!(
                    may_lose || next == chunks.end || !model.contains_key(&(*object, next)),
                    "lost {next}"
                );
            }
            Step::Hit { object, first, count } => {
                let span = &objects[*object];
                let chunks = clip(span, *first, *count);
                let expected =
                    chunks.clone().take_while(|chunk| model.contains_key(&(*object, *chunk))).count();
                let found = store.read(span, chunks).map_or(0, |hit| hit.crcs.len());
                assert!(if may_lose { found <= expected } else { found == expected });
            }
            Step::MarkUnused { object } => store.mark_unused([objects[*object].file.content]),
            Step::Wait { millis } => hands.forward(*millis),
            Step::Reopen => {
                stores.clear();
                stores.push(open());
            }
            Step::OpenSecond => {
                if stores.len() < 3 {
                    stores.push(open());
                }
            }
        }
        let usage = stores[0].usage();
        assert!(usage.used_bytes() <= quota, "{usage:?}");
        assert!(usage.tiers[0].read_through_bytes <= quota / 10, "{usage:?}");
    }
    // What was counted along the way is what is there.
    let counted = stores[0].usage();
    stores.clear();
    assert_eq!(open().usage(), counted);
    assert!(allocated(dir.path()) <= counted.used_bytes() + 128 * KIB, "{} allocated", allocated(dir.path()));
}

fn clip(span: &Span, first: u32, count: u32) -> std::ops::Range<u32> {
    let end = span.chunks().end;
    first % end..(first % end + count).min(end)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn without_pressure_nothing_is_lost(steps in proptest::collection::vec(step(), 1..60)) {
        run(&steps, 512 * MIB, Eviction::Lru, false);
    }

    #[test]
    fn under_pressure_bytes_stay_right_and_bounds_hold(steps in proptest::collection::vec(step(), 1..120)) {
        run(&steps, 3 * MIB, Eviction::Lru, true);
    }

    #[test]
    fn a_store_that_never_evicts_stays_in_its_bounds(steps in proptest::collection::vec(step(), 1..80)) {
        run(&steps, 4 * MIB, Eviction::Never, true);
    }
}

#[test]
fn threads_that_read_write_and_evict_at_once_see_right_bytes() {
    let dir = tempfile::tempdir().unwrap();
    // Time flies, so that leases end while their readers read.
    let hands = Hands::new();
    let mut config = StoreConfig { clock: hands.clock(), ..config(dir.path(), 6 * MIB, Eviction::Lru) };
    config.limits.open_files = 3;
    // Two stores on one folder stand for two processes.
    let stores = [Store::open(config.clone()).unwrap(), Store::open(config).unwrap()];
    let objects: Vec<Span> =
        (0..5).map(|number| large(number, 2 * MIB)).chain(pack(9, &[300_000; 4])).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (stores, objects, stop) = (&stores, &objects, &stop);
            scope.spawn(move || {
                let store = &stores[thread as usize % 2];
                let mut random = Random(thread + 1);
                while !stop.load(Ordering::Relaxed) {
                    let span = &objects[random.below(objects.len() as u64) as usize];
                    let chunk = random.below(u64::from(span.chunks().end)) as u32;
                    if !get(store, span, chunk) {
                        put(store, span, chunk..(chunk + 4).min(span.chunks().end), Class::Owned);
                    }
                    let used = store.usage().used_bytes();
                    assert!(used <= 6 * MIB, "{used}");
                }
            });
        }
        for _ in 0..4_000 {
            hands.forward(500);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let [one, two] = &stores;
    assert_eq!(one.stats().corrupt_chunks + two.stats().corrupt_chunks, 0, "punched under a reader");
    assert!(one.stats().evicted_blocks + two.stats().evicted_blocks > 10);
    assert!(one.stats().hit_chunks > 1_000, "{:?}", one.stats());
    let counted = one.usage();
    drop(stores);
    let again = Store::open(rig::config(dir.path(), 6 * MIB, Eviction::Lru)).unwrap().usage();
    assert_eq!(again, counted);
}
