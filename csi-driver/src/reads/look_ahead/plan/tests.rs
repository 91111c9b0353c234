//! Simulations: readers, a link and the planner in virtual time.

use std::collections::HashSet;

use millrace_api::block::BlockSize;
use millrace_api::index::{FileEntry, SourceEntry, build_in_memory};
use proptest::prelude::*;

use super::*;

const FILE_BYTES: u64 = 100 << 10;

/// A version of `dirs` folders with `files` files of `size` bytes each.
fn version(dirs: u32, files: u32, size: u64) -> Vec<u8> {
    let source = SourceEntry {
        path: String::new(),
        endpoint: "http://h:9".into(),
        bucket: "b".into(),
        prefix: String::new(),
        region: String::new(),
    };
    let paths: Vec<String> =
        (0..dirs).flat_map(|dir| (0..files).map(move |file| format!("d{dir:04}/{file:05}"))).collect();
    let entry = |path: &String| (path.clone(), size);
    let listed: Vec<(String, u64)> = paths.iter().map(entry).collect();
    let entries: Vec<FileEntry<'_>> = listed
        .iter()
        .map(|(path, size)| FileEntry {
            path: path.as_bytes(),
            source: 0,
            size: *size,
            modified_ms: 0,
            etag: "e",
            archived: false,
        })
        .collect();
    build_in_memory(BlockSize::default(), &[source], &entries).unwrap()
}

/// What a simulated epoch came to.
#[derive(Debug, Default)]
struct Ran {
    misses: u32,
    taken: Vec<(What, Why)>,
    idle_during_quiet: u32,
}

/// A reader reads `order`, computing for `think` after each file; a file that is missing costs `wait`. Fetches ahead of it
/// take `fetch` each, one after the other, and bring what they say.
fn run(
    index: IndexView<'_>,
    fits: bool,
    order: impl Iterator<Item = u32>,
    [think, wait, fetch]: [Duration; 3],
    idle_after: Duration,
) -> Ran {
    let (mut planner, mut ran) = (Planner::new(index, fits), Ran::default());
    let (mut stored, mut now, mut busy_until) = (HashSet::new(), Duration::ZERO, Duration::ZERO);
    let mut last_stall = Duration::ZERO;
    let mut under_way: Option<What> = None;
    let mut ahead =
        |planner: &mut Planner, stored: &mut HashSet<u32>, until: Duration, ran: &mut Ran, last| {
            while busy_until <= until {
                if let Some(what) = under_way.take() {
                    match what {
                        What::Pack(pack, _) => stored.extend(index.pack_members(pack).map(|file| file.0)),
                        What::Part(file, ..) => stored.extend([file.0]),
                    }
                }
                match planner.take(index, busy_until) {
                    Some((what, why)) => {
                        if why == Why::Idle && busy_until.saturating_sub(last) < QUIET {
                            ran.idle_during_quiet += 1;
                        }
                        ran.taken.push((what, why));
                        under_way = Some(what);
                        busy_until += fetch;
                    }
                    None => busy_until += Duration::from_micros(500),
                }
            }
        };
    for file in order {
        let is_miss = !stored.contains(&file);
        planner.read(index, Seen { file: FileIndex(file), bytes: FILE_BYTES, is_start: true, is_miss });
        if is_miss {
            ran.misses += 1;
            planner.stall_begins(now);
            last_stall = now + wait;
            now += wait;
            ahead(&mut planner, &mut stored, now, &mut ran, last_stall);
            stored.insert(file);
            planner.stall_ends(now);
        }
        now += think;
        ahead(&mut planner, &mut stored, now, &mut ran, last_stall);
    }
    ahead(&mut planner, &mut stored, now + idle_after, &mut ran, last_stall);
    ran
}

fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    let mut state = seed;
    for at in (1..order.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
    order
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_shuffled_epoch_misses_about_once_a_pack_and_fills_each_once() {
    let bytes = version(10, 400, FILE_BYTES);
    let index = IndexView::open(&bytes).unwrap();
    let ran = run(index, true, shuffled(4000, 7).into_iter(), [MS, MS * 12, MS * 10], MS * 10_000);
    let packs = index.totals().packs;
    assert!(ran.misses <= 3 * packs, "{} misses, {packs} packs", ran.misses);
    let filled: Vec<u32> = ran
        .taken
        .iter()
        .map(|(what, _)| if let What::Pack(pack, _) = what { pack.0 } else { panic!() })
        .collect();
    let distinct: HashSet<u32> = filled.iter().copied().collect();
    assert_eq!((filled.len(), distinct.len()), (packs as usize, packs as usize));
    assert_eq!(ran.idle_during_quiet, 0);
}

#[test]
fn idle_bandwidth_completes_the_node_store_once_an_epoch_is_under_way() {
    let bytes = version(10, 400, FILE_BYTES);
    let index = IndexView::open(&bytes).unwrap();
    let ran = run(index, true, shuffled(4000, 3).into_iter().take(8), [MS, MS, MS], MS * 1000);
    let idle = ran.taken.iter().filter(|(_, why)| *why == Why::Idle).count();
    assert_eq!(ran.taken.len() as u32, index.totals().packs, "all of it");
    assert!(idle > 0);
    let look = run(index, true, 0..1, [MS, MS, MS], MS * 1000);
    assert_eq!(look.taken.len(), 1, "one look brings one pack");
}

#[test]
fn a_version_that_does_not_fit_is_neither_filled_nor_completed() {
    let bytes = version(10, 400, FILE_BYTES);
    let index = IndexView::open(&bytes).unwrap();
    let ran = run(index, false, shuffled(4000, 5).into_iter(), [MS, MS, MS], MS * 1000);
    let fetched = ran.taken.iter().filter(|(_, why)| *why != Why::Next).count();
    assert_eq!(fetched, 0);
    assert!(ran.taken.len() < 200, "{} of 4000 taken for reads in order", ran.taken.len());
}

#[test]
fn files_read_in_listing_order_are_there_before_their_reader() {
    for size in [FILE_BYTES, 3 << 20] {
        let bytes = version(3, 300, size);
        let index = IndexView::open(&bytes).unwrap();
        let ran = run(index, false, 0..900, [MS * 5, MS * 12, MS], MS * 100);
        assert!(ran.misses <= 3 * (IN_ORDER + 8), "{} misses of 900 at {size}", ran.misses);
        assert!(ran.taken.iter().all(|(_, why)| *why == Why::Next));
        let distinct: HashSet<_> = ran.taken.iter().collect();
        assert_eq!(distinct.len(), ran.taken.len(), "each once");
    }
}

#[test]
fn the_first_stall_ends_idle_fetches_until_it_has_been_quiet() {
    let bytes = version(2, 400, FILE_BYTES);
    let index = IndexView::open(&bytes).unwrap();
    let mut planner = Planner::new(index, true);
    planner.read(index, Seen { file: FileIndex(0), bytes: FILE_BYTES, is_start: true, is_miss: true });
    assert_eq!(planner.take(index, MS).map(|(_, why)| why), Some(Why::Touched));
    assert_eq!(planner.take(index, QUIET).map(|(_, why)| why), Some(Why::Idle));
    planner.stall_begins(MS * 100);
    planner.stall_begins(MS * 101);
    assert_eq!(planner.take(index, MS * 1000), None);
    planner.stall_ends(MS * 1000);
    assert_eq!(planner.take(index, MS * 2000), None, "one still waits");
    planner.stall_ends(MS * 2000);
    assert_eq!(planner.take(index, MS * 2000 + QUIET - MS), None);
    assert!(planner.take(index, MS * 2000 + QUIET).is_some());
    planner.stop_filling();
    assert_eq!(planner.take(index, MS * 9000), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever the reads: nothing is idle while somebody waits, nothing is taken twice, all bounds hold.
    #[test]
    fn bounds_hold(reads in prop::collection::vec((0u32..600, any::<bool>(), any::<bool>()), 1..400), fits: bool) {
        let bytes = version(3, 200, FILE_BYTES);
        let index = IndexView::open(&bytes).unwrap();
        let mut planner = Planner::new(index, fits);
        let mut filled = HashSet::new();
        for (at, (file, is_start, is_miss)) in reads.into_iter().enumerate() {
            let now = MS * 7 * at as u32;
            planner.read(index, Seen { file: FileIndex(file), bytes: FILE_BYTES, is_start, is_miss });
            if is_miss {
                planner.stall_begins(now);
            }
            if let Some((what, why)) = planner.take(index, now) {
                prop_assert!(why != Why::Idle || !is_miss);
                if let What::Pack(pack, _) = what {
                    prop_assert!(fits && filled.insert(pack));
                }
            }
            if is_miss {
                planner.stall_ends(now);
            }
            prop_assert!(planner.touched.len() <= MAX_TOUCHED && planner.dirs.len() <= MAX_DIRS);
            prop_assert!(planner.next.len() <= MAX_NEXT_FILES as usize);
        }
    }
}

#[test]
fn large_files_come_idly_in_parts_and_a_glance_at_one_brings_none() {
    let bytes = version(1, 4, 200 << 20);
    let index = IndexView::open(&bytes).unwrap();
    let mut planner = Planner::new(index, true);
    let seen = |bytes| Seen { file: FileIndex(2), bytes, is_start: false, is_miss: true };
    planner.read(index, seen(1 << 20));
    assert_eq!(planner.take(index, QUIET), None);
    planner.read(index, seen(60 << 20));
    let part = |file, from: u64| What::Part(FileIndex(file), from << 20, (from + 64) << 20);
    let first = planner.take(index, QUIET);
    assert_eq!(first, Some((part(0, 0), Why::Idle)));
    planner.give_back(part(0, 0));
    let parts: Vec<What> = std::iter::from_fn(|| planner.take(index, QUIET)).map(|(what, _)| what).collect();
    assert_eq!((parts.len(), parts[0], parts[3], parts[4]), (16, part(0, 0), part(0, 192), part(1, 0)));
}
