//! How large and how fast is an index of many files?

use std::time::Instant;

use super::super::{DirIndex, FileEntry, FileIndex, IndexView, Node};
use super::{build, file};

/// Builds an index of `count` files in folders of a thousand; returns it and the bytes of all names.
fn many(count: u32) -> (Vec<u8>, usize) {
    let paths: Vec<String> = (0..count).map(|n| format!("train/{:05}/{n:09}.jpg", n / 1000)).collect();
    let entries: Vec<FileEntry<'_>> = paths.iter().map(|path| file(path, 100_000)).collect();
    (build(&entries), paths.iter().map(|path| path.rsplit('/').next().unwrap().len()).sum())
}

/// Names of random files with their numbers, made as a request would bring them, not read from the index.
fn names(files: u32, count: u32) -> Vec<(u32, String)> {
    let mut at = 1u32;
    let next = |_| {
        at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let number = ((u64::from(at) * u64::from(files)) >> 32) as u32;
        (number, format!("{number:09}.jpg"))
    };
    (0..count).map(next).collect()
}

/// Looks names up, each in its folder: directory 0 is the root and 1 `train`.
fn look_up_all(view: &IndexView<'_>, names: &[(u32, String)]) {
    for (number, name) in names {
        let found = view.lookup(DirIndex(2 + number / 1000), name.as_bytes());
        assert_eq!(found, Some(Node::File(FileIndex(*number))));
    }
}

#[test]
fn an_index_stays_below_100_bytes_a_file_beside_the_names() {
    let (bytes, text) = many(20_000);
    let view = IndexView::open(&bytes).unwrap();
    assert_eq!(view.verify(), Ok(()));
    assert!((bytes.len() - text) / 20_000 < 100, "{}", (bytes.len() - text) / 20_000);
    look_up_all(&view, &names(20_000, 50_000));
}

#[test]
#[ignore = "a measurement: cargo test --release -p millrace-api -- --ignored --nocapture measured"]
fn ten_million_files_measured() {
    for count in [1_000_000, 10_000_000] {
        let start = Instant::now();
        let (bytes, text) = many(count);
        let built = start.elapsed();
        let view = IndexView::open(&bytes).unwrap();
        let start = Instant::now();
        for _ in 0..1000 {
            std::hint::black_box(IndexView::open(std::hint::black_box(&bytes)).unwrap());
        }
        let opened = start.elapsed() / 1000;
        let start = Instant::now();
        view.verify().unwrap();
        let verified = start.elapsed();
        let names = names(count, 2_000_000);
        let start = Instant::now();
        look_up_all(&view, &names);
        let rate = 2.0 / start.elapsed().as_secs_f64();
        let each = (bytes.len() - text) as f64 / f64::from(count);
        println!(
            "{count} files: built in {built:?}, opened in {opened:?}, verified in {verified:?}, {each:.1} B a file, \
             {rate:.2} M look-ups/s, longest probe {}",
            view.header.longest_probe
        );
    }
}
