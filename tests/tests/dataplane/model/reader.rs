//! What does a reader do at random, and what must it see?

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use millrace_tests::mapped::map;
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{Body, Model, pattern};

/// Most files that a reader has open, and mapped.
const OPEN: usize = 8;

/// Files whose pages are forgotten at a time.
const FORGOTTEN: u32 = 16;

/// Longest read.
const READ_BYTES: u64 = 300_000;

/// A mount and what it must look like.
pub struct View<'a> {
    model: &'a Model,
    point: &'a Path,
    paths: Vec<&'a String>,
    dirs: Vec<String>,
}

impl<'a> View<'a> {
    /// What `point` must look like.
    pub fn new(model: &'a Model, point: &'a Path) -> Self {
        Self { model, point, paths: model.0.keys().collect(), dirs: model.dirs() }
    }
}

/// Numbers that look random and follow from a seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 where there is none.
    fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }

    /// An offset in or behind a file: one in two is at an edge of something.
    fn offset(&mut self, size: u64) -> u64 {
        let edges = [0, size, size.saturating_sub(1), size + 4096, 65_536, 131_072, 1 << 20, size & !4095];
        match self.below(2) {
            0 => self.below(size + 10),
            _ => {
                let edge = edges[self.below(edges.len() as u64) as usize];
                (edge + self.below(3)).saturating_sub(1)
            }
        }
    }
}

/// A file that is open.
struct Open {
    file: File,
    path: String,
    body: Body,
}

/// A reader of all views.
pub struct Reader<'a> {
    views: &'a [View<'a>],
    random: Random,
    open: Vec<Open>,
    maps: Vec<(Mmap, String, Body)>,
    buffer: Vec<u8>,
}

impl<'a> Reader<'a> {
    /// One that has done nothing yet.
    pub fn new(views: &'a [View<'a>], random: Random) -> Self {
        Self { views, random, open: Vec::new(), maps: Vec::new(), buffer: Vec::new() }
    }

    /// Does one thing; `at` says where the run is.
    pub fn step(&mut self, at: &str) {
        let view = &self.views[self.random.below(self.views.len() as u64) as usize];
        match self.random.below(100) {
            0..30 => self.read_part(at),
            30..50 => self.open(view, at),
            50..56 => self.read_whole(view, at),
            56..64 => self.map(view, at),
            64..72 => self.look_at_map(at),
            72..80 => self.list(view, at),
            80..90 => self.look(view, at),
            90..95 => self.forget(view),
            _ => {
                let number = self.random.below(self.open.len() as u64) as usize;
                if number < self.open.len() {
                    self.open.swap_remove(number);
                }
            }
        }
    }

    fn pick(&mut self, view: &View<'a>) -> (String, Body, PathBuf) {
        let path = view.paths[self.random.below(view.paths.len() as u64) as usize];
        (path.clone(), view.model.0[path], view.point.join(path))
    }

    fn open(&mut self, view: &View<'a>, at: &str) {
        let (path, body, full) = self.pick(view);
        match File::open(&full) {
            Ok(file) => {
                self.open.push(Open { file, path, body });
                if self.open.len() > OPEN {
                    let number = self.random.below(OPEN as u64) as usize;
                    self.open.swap_remove(number);
                }
            }
            Err(error) => panic!("{at}: open {full:?}: {error}"),
        }
    }

    fn read_part(&mut self, at: &str) {
        let number = self.random.below(self.open.len() as u64) as usize;
        let Some(open) = self.open.get(number) else { return };
        let offset = self.random.offset(open.body.size);
        let length = 1 + self.random.below(READ_BYTES);
        let at = format!("{at}: read {length} bytes of {:?} at {offset}", open.path);
        check_part(open, offset, length, &mut self.buffer, &at);
    }

    fn read_whole(&mut self, view: &View<'a>, at: &str) {
        let (path, body, full) = self.pick(view);
        let file = File::open(&full).unwrap_or_else(|error| panic!("{at}: open {full:?}: {error}"));
        let open = Open { file, path, body };
        let mut offset = 0;
        let step = 1 + self.random.below(1 << 20);
        while offset <= body.size {
            check_part(&open, offset, step, &mut self.buffer, &format!("{at}: read {full:?} at {offset}"));
            offset += step;
        }
    }

    /// Maps a file and compares a part of it. What cannot be read would be a SIGBUS.
    fn map(&mut self, view: &View<'a>, at: &str) {
        let (path, body, full) = self.pick(view);
        if body.is_lost || body.size == 0 {
            return;
        }
        let mapped = map(&full);
        assert_eq!(mapped.len() as u64, body.size, "{at}: length of the map of {full:?}");
        self.maps.push((mapped, path, body));
        if self.maps.len() > OPEN {
            let number = self.random.below(OPEN as u64) as usize;
            self.maps.swap_remove(number);
        }
        self.look_at_map(at);
    }

    /// Compares a part of a file that was mapped some time ago.
    fn look_at_map(&mut self, at: &str) {
        let number = self.random.below(self.maps.len() as u64) as usize;
        let Some((mapped, path, body)) = self.maps.get(number) else { return };
        let start = self.random.below(body.size);
        let end = (start + 1 + self.random.below(READ_BYTES)).min(body.size);
        let part = &mapped[start as usize..end as usize];
        assert!(pattern(path, *body).matches(start, part), "{at}: {path:?} by mmap, {start}..{end}");
    }

    /// Lists a folder, goes back to some entry, and lists on from there.
    fn list(&mut self, view: &View<'a>, at: &str) {
        let dir = &view.dirs[self.random.below(view.dirs.len() as u64) as usize];
        let full = view.point.join(dir);
        let at = format!("{at}: list {full:?}");
        let opened = rustix::fs::open(&full, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let mut listing = Dir::new(opened.unwrap_or_else(|error| panic!("{at}: {error}"))).unwrap();
        let first = entries(&mut listing, &at);
        let mut expected: BTreeMap<String, bool> = view.model.children(dir);
        expected.extend([".", ".."].map(|name| (name.to_owned(), true)));
        let seen: BTreeMap<String, bool> =
            first.iter().map(|entry| (entry.name.clone(), entry.is_dir)).collect();
        assert_eq!((seen, first.len()), (expected.clone(), expected.len()), "{at}");
        let from = self.random.below(first.len() as u64) as usize;
        listing.seek(first[from].next_offset).unwrap_or_else(|error| panic!("{at}: seek: {error}"));
        assert_eq!(entries(&mut listing, &at), first[from + 1..], "{at}: from {from} on");
        listing.rewind();
        assert_eq!(entries(&mut listing, &at), first, "{at}: once more");
    }

    /// Looks at a file and at one that is not there.
    fn look(&mut self, view: &View<'a>, at: &str) {
        let (_, body, full) = self.pick(view);
        let about = full.symlink_metadata().unwrap_or_else(|error| panic!("{at}: look at {full:?}: {error}"));
        let seen = (about.len(), about.mode(), about.blocks(), about.nlink());
        assert_eq!(seen, (body.size, 0o100_444, body.size.div_ceil(512), 1), "{at}: look at {full:?}");
        // The same file by whichever node the kernel knows it.
        for other in self.views.iter().filter(|other| std::ptr::eq(other.model, view.model)) {
            let path = full.strip_prefix(view.point).unwrap();
            let ino = other.point.join(path).symlink_metadata().unwrap().ino();
            assert_eq!(ino, about.ino(), "{at}: inode number of {full:?}");
        }
        let absent = full.with_extension("not-there");
        let error = absent.symlink_metadata().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{at}: look at {absent:?}: {error}");
    }

    /// Lets the kernel forget the pages of some files, so that it asks again.
    fn forget(&mut self, view: &View<'a>) {
        for _ in 0..FORGOTTEN {
            let (_, _, full) = self.pick(view);
            millrace_tests::content::forget_pages(&full);
        }
    }
}

/// An entry of a folder as listed.
#[derive(Debug, PartialEq)]
struct Listed {
    name: String,
    is_dir: bool,
    next_offset: i64,
}

fn entries(listing: &mut Dir, at: &str) -> Vec<Listed> {
    let entry = |entry: rustix::io::Result<rustix::fs::DirEntry>| {
        let entry = entry.unwrap_or_else(|error| panic!("{at}: {error}"));
        let name = entry.file_name().to_str().unwrap().to_owned();
        Listed { name, is_dir: entry.file_type() == FileType::Directory, next_offset: entry.offset() }
    };
    listing.map(entry).collect()
}

/// Reads a part of an open file and compares every byte; a lost file may be unreadable, but not wrong.
fn check_part(open: &Open, offset: u64, length: u64, buffer: &mut Vec<u8>, at: &str) {
    let Open { file, path, body } = open;
    buffer.clear();
    buffer.resize(length as usize, 0xa5);
    let count = match file.read_at(buffer, offset) {
        Ok(count) => count as u64,
        Err(error) if body.is_lost && error.raw_os_error() == Some(Errno::IO.raw_os_error()) => return,
        Err(error) => panic!("{at}: {error}"),
    };
    let expected = body.size.saturating_sub(offset).min(length);
    assert!(count == expected || (body.is_lost && count < expected), "{at}: {count} bytes of {expected}");
    let read = &buffer[..count as usize];
    assert!(pattern(path, *body).matches(offset, read), "{at}: wrong bytes");
    assert!(buffer[count as usize..].iter().all(|byte| *byte == 0xa5), "{at}: bytes behind the end");
}
