//! What does the assembler make of entries that come wrong, twice, or in each other's way?

use std::io::{self, Cursor, Write};

use proptest::prelude::*;

use super::super::format::Slot;
use super::super::{
    AssembleIndex, Assembler, FileEntry, IndexView, LeftOutReason, Node, SourceEntry, Streams,
    build_in_memory,
};
use super::{block, build, file, source};

fn assembler(sources: &[SourceEntry]) -> Result<Assembler<Vec<u8>>, AssembleIndex> {
    Assembler::new(block(), sources.to_vec(), Streams::default())
}

fn paths(bytes: &[u8]) -> Vec<String> {
    let view = IndexView::open(bytes).unwrap();
    let path =
        |file| String::from_utf8(view.path(Node::File(super::super::FileIndex(file))).unwrap()).unwrap();
    (0..view.totals().files).map(path).collect()
}

#[test]
fn a_directory_hides_the_file_of_its_path() {
    let bytes = build(&[file("a", 1), file("a/b", 1), file("a.x", 1), file("a!", 1)]);
    assert_eq!(paths(&bytes), ["a/b", "a!", "a.x"]);
    let view = IndexView::open(&bytes).unwrap();
    let left_out: Vec<_> = view.left_out().collect();
    assert_eq!(left_out, [(0, &b"data/a"[..], LeftOutReason::HiddenByDirectory)]);
}

#[test]
fn an_empty_directory_hides_the_file_of_its_path_in_either_order() {
    for marker_first in [false, true] {
        let mut assembler = assembler(&[source("", "data/")]).unwrap();
        if marker_first {
            assembler.directory(b"a").unwrap();
        }
        assembler.file(&file("a", 1)).unwrap();
        if !marker_first {
            assembler.directory(b"a").unwrap();
        }
        let bytes = super::super::memory::finish_in_memory(assembler).unwrap();
        let view = IndexView::open(&bytes).unwrap();
        assert_eq!((view.totals().files, view.totals().dirs, view.totals().left_out), (0, 2, 1));
    }
}

#[test]
fn a_key_that_is_listed_twice_is_shown_once_with_its_newest_state() {
    let old = file("a", 1);
    let new = FileEntry { size: 2, modified_ms: old.modified_ms + 1, ..old };
    let one = build(&[old, new, old]);
    assert_eq!(one, build(&[new, old]));
    let view = IndexView::open(&one).unwrap();
    assert_eq!((view.totals().files, view.totals().bytes, view.totals().left_out), (1, 2, 0));
}

#[test]
fn wrong_callers_are_refused() {
    let one = [source("train", "")];
    let offer = |entries: &[FileEntry<'_>]| -> Result<(), AssembleIndex> {
        let mut assembler = assembler(&one)?;
        entries.iter().try_for_each(|entry| assembler.file(entry))
    };
    assert!(matches!(offer(&[file("train/b", 1), file("train/a", 1)]), Err(AssembleIndex::Order { .. })));
    assert!(matches!(offer(&[file("train", 1)]), Err(AssembleIndex::Source { .. })));
    assert!(matches!(offer(&[file("other/a", 1)]), Err(AssembleIndex::Source { .. })));
    let unknown = FileEntry { source: 1, ..file("train/a", 1) };
    assert!(matches!(offer(&[unknown]), Err(AssembleIndex::Source { source_number: 1, .. })));
    for path in ["", "train/", "train//a", "train/../a", "/train/a", "train/\0"] {
        assert!(matches!(offer(&[file(path, 1)]), Err(AssembleIndex::Path { .. })), "{path:?}");
    }
    let long = "x".repeat(65_536);
    let etag = FileEntry { etag: &long, ..file("train/a", 1) };
    assert!(matches!(offer(&[etag]), Err(AssembleIndex::Etag { len: 65_536, .. })));
    let sizes = [FileEntry { size: u64::MAX, ..file("train/a", 1) }, file("train/b", 1)];
    let built = build_in_memory(block(), &one, &sizes);
    assert!(matches!(built, Err(AssembleIndex::TooMany { what: "bytes", .. })));
}

#[test]
fn sources_that_overlap_or_are_not_paths_are_refused() {
    let refused = |paths: &[&str]| {
        let sources: Vec<_> = paths.iter().map(|path| source(path, "")).collect();
        assembler(&sources).err()
    };
    for pair in [["a", "a"], ["a", "a/b"], ["", "a"], ["b", "a"]] {
        assert!(matches!(refused(&pair), Some(AssembleIndex::SourcePaths { .. })), "{pair:?}");
    }
    assert!(matches!(refused(&["/a"]), Some(AssembleIndex::SourceText { field: "path", .. })));
    assert!(matches!(refused(&["x"; 17]), Some(AssembleIndex::SourceCount { count: 17 })));
    let long = SourceEntry { prefix: "x".repeat(65_536), ..source("", "") };
    assert!(matches!(assembler(&[long]), Err(AssembleIndex::SourceText { field: "prefix", .. })));
    assert!(refused(&["a", "a.b", "c/d", "c/e"]).is_none());
}

#[test]
fn packs_end_with_their_source() {
    let sources = [source("a", "a/"), source("b", "b/")];
    let other = FileEntry { source: 1, ..file("b/x", 10) };
    let bytes = build_in_memory(block(), &sources, &[file("a/x", 10), other]).unwrap();
    let view = IndexView::open(&bytes).unwrap();
    assert_eq!((view.verify(), view.totals().packs), (Ok(()), 2));
}

struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_reported_with_its_stream() {
    let streams =
        Streams { files: Full, children: Full, packs: Full, members: Full, hashes: Full, text: Full };
    let mut assembler = Assembler::new(block(), vec![source("", "")], streams).unwrap();
    assembler.file(&file("a", 1)).unwrap();
    let error = assembler.finish().err().unwrap();
    assert!(matches!(error, AssembleIndex::Write { stream: "hashes", .. }), "{error}");
}

#[test]
fn streams_that_lost_or_gained_bytes_are_refused() {
    let mut assembler = assembler(&[source("", "")]).unwrap();
    assembler.file(&file("a", 1)).unwrap();
    let (streams, assembled) = assembler.finish().unwrap();
    let write = |streams: Streams<&[u8]>, slots: usize| {
        let mut slots = vec![Slot::EMPTY; slots];
        assembled.write(streams, &mut slots, &mut Cursor::new(Vec::new())).map(|_| ())
    };
    let Streams { files, children, packs, members, hashes, text } = &streams;
    let good = Streams { files: &files[..], children, packs, members, hashes, text };
    write(good.clone(), assembled.slot_count()).unwrap();
    assert!(matches!(write(good.clone(), 1), Err(AssembleIndex::Length { stream: "slots", .. })));
    let short = Streams { text: &text[1..], ..good.clone() };
    assert!(matches!(
        write(short, assembled.slot_count()),
        Err(AssembleIndex::Length { stream: "text", .. })
    ));
    let longer = [&files[..], b"x"].concat();
    let long = Streams { files: &longer[..], ..good.clone() };
    assert!(matches!(
        write(long, assembled.slot_count()),
        Err(AssembleIndex::Length { stream: "files", .. })
    ));
    let more = [&hashes[..], hashes, hashes].concat();
    let many = Streams { hashes: &more[..], ..good };
    assert!(matches!(
        write(many, assembled.slot_count()),
        Err(AssembleIndex::Write { stream: "hashes", .. })
    ));
}

proptest! {
    #[test]
    fn the_order_of_the_list_does_not_change_a_byte(
        paths in prop::collection::btree_set("[ab]{1,2}(/[ab]{1,2}){0,2}", 1..20), rotation in 0usize..20,
    ) {
        let mut files: Vec<_> = paths.iter().map(|path| file(path, path.len() as u64)).collect();
        let before = build(&files);
        let middle = rotation % files.len();
        files.rotate_left(middle);
        prop_assert_eq!(before, build(&files));
    }
}
