//! Do all parts of an index agree with each other and with a plain map?

mod damage;
mod golden;
mod model;
mod order;
mod speed;

use super::{FileEntry, IndexView, SourceEntry, build_in_memory};
use crate::block::BlockSize;

fn block() -> BlockSize {
    BlockSize::new(1 << 20).unwrap()
}

fn source(path: &str, prefix: &str) -> SourceEntry {
    SourceEntry {
        path: path.into(),
        endpoint: "http://127.0.0.1:9000".into(),
        bucket: "train".into(),
        prefix: prefix.into(),
        region: "us-east-1".into(),
    }
}

fn file(path: &str, size: u64) -> FileEntry<'_> {
    FileEntry {
        path: path.as_bytes(),
        source: 0,
        size,
        modified_ms: 1_700_000_000_000,
        etag: "d41d8cd98f00b204e9800998ecf8427e",
        archived: false,
    }
}

fn build(files: &[FileEntry<'_>]) -> Vec<u8> {
    build_in_memory(block(), &[source("", "data/")], files).unwrap()
}

/// A small index that has one of everything: two sources, one of them empty, large, small, empty and archived files, all
/// kinds of ETag, an empty directory and a key that is left out.
fn sample() -> Vec<u8> {
    let sources = vec![source("imagenet", "data/"), source("val", "")];
    let mut assembler = super::Assembler::new(block(), sources, super::Streams::default()).unwrap();
    let etags = ["", "d41d8cd98f00b204e9800998ecf8427e", "0123456789abcdef0123456789abcdef-12", "odd etag"];
    let paths = [
        ("imagenet/README", 70_000),
        ("imagenet/a/large", (3 << 20) + 5),
        ("imagenet/a/one", 1),
        ("imagenet/a/zero", 0),
        ("imagenet/b/two", 2),
    ];
    for (number, (path, size)) in paths.into_iter().enumerate() {
        let etag = etags[number % 4];
        let modified_ms = 1_600_000_000_000 + number as i64;
        assembler.file(&FileEntry { etag, modified_ms, archived: number == 4, ..file(path, size) }).unwrap();
    }
    assembler.directory(b"imagenet/c").unwrap();
    assembler.leave_out(0, b"data/x//y", super::LeftOutReason::EmptySegment);
    super::memory::finish_in_memory(assembler).unwrap()
}

/// Calls every accessor with every number; returns something so that nothing is optimised away.
fn read_all(view: &IndexView<'_>) -> usize {
    use super::{DirIndex, FileIndex, Node, PackIndex};
    let totals = view.totals();
    let mut sum = view.sources().count() + view.left_out().count();
    sum += view.dir(view.root()).map_or(0, |root| root.files_below().take(1000).count());
    for dir in (0..=totals.dirs.min(1000)).map(DirIndex) {
        let node = Node::Dir(dir);
        sum += usize::from(view.dir(dir).is_some()) + view.path(node).map_or(0, |path| path.len());
        for child in view.children(dir, dir.0 % 3).take(1000) {
            let Some(name) = view.name(child) else { continue };
            sum += usize::from(view.lookup(dir, name).is_some());
        }
        sum += usize::from(view.lookup(dir, b"nothing").is_some());
        sum += usize::from(view.numbering().node_of(view.numbering().ino_of(node)).is_some());
    }
    for file in (0..=totals.files.min(1000)).map(FileIndex) {
        sum += usize::from(view.file(file).is_some());
        sum += view.etag(file).map_or(0, |etag| etag.len());
        sum += view.key(file).map_or(0, |key| key.len());
        if let Some(path) = view.path(Node::File(file)) {
            sum += usize::from(view.resolve(&path).is_some());
        }
        if let Some(span) = view.span(file) {
            let last = span.chunks().end.saturating_sub(1);
            sum += usize::from(span.place(last).is_some()) + span.block_of(last).index as usize;
            sum += span.chunks_in_block(1).len();
        }
        sum += usize::from(view.placement_key(file, 1).is_some());
    }
    for pack in (0..=totals.packs.min(1000)).map(PackIndex) {
        sum += usize::from(view.pack(pack).is_some()) + view.pack_members(pack).count();
    }
    sum
}
