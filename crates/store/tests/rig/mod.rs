//! What do tests of the store need? Folders, small file systems, bytes that name themselves.

#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part")]

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_api::block::{BlockSize, CHUNK_BYTES, Span, StoreFile};
use millrace_api::crc::crc32c;
use millrace_api::ids::ContentId;
use millrace_store::{Class, Clock, Eviction, Limits, Medium, Store, StoreConfig, TierConfig, Written};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// A content id made of a number.
pub fn content(number: u64) -> ContentId {
    let mut id = [0x5c; 16];
    id[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    id[8..].copy_from_slice(&number.to_be_bytes());
    ContentId(id)
}

/// A large object with blocks of 1 MiB.
pub fn large(number: u64, size: u64) -> Span {
    Span::of_large(content(number), size, BlockSize::new(MIB).unwrap())
}

/// The members of a pack.
pub fn pack(number: u64, sizes: &[u64]) -> Vec<Span> {
    let mut spans = Vec::new();
    let (mut offset, mut slot) = (0, 0);
    for size in sizes {
        spans.push((offset, slot, *size));
        offset += size.next_multiple_of(4096);
        slot += size.div_ceil(CHUNK_BYTES) as u32;
    }
    let file = StoreFile { content: content(number), len: offset, slots: slot, slots_per_block: slot };
    spans.into_iter().map(|(offset, first_slot, size)| Span { file, offset, first_slot, size }).collect()
}

/// The bytes of a chunk, which differ from those of any other chunk.
pub fn chunk_bytes(span: &Span, chunk: u32) -> Vec<u8> {
    let place = span.place(chunk).unwrap();
    let mut state =
        u64::from_le_bytes(span.file.content.0[..8].try_into().unwrap()) ^ u64::from(place.slot) << 40 | 1;
    let mut bytes = Vec::with_capacity(place.len as usize + 8);
    while bytes.len() < place.len as usize {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(place.len as usize);
    bytes
}

/// Writes chunks with one call.
pub fn put(store: &Store, span: &Span, chunks: Range<u32>, class: Class) -> Written {
    let bytes: Vec<Vec<u8>> = chunks.clone().map(|chunk| chunk_bytes(span, chunk)).collect();
    let crcs: Vec<u32> = bytes.iter().map(|bytes| crc32c(bytes)).collect();
    store.write_run(span, chunks.start, &bytes, &crcs, class)
}

/// Writes a whole object, one MiB at once, and says whether all was kept.
pub fn put_all(store: &Store, span: &Span) -> Written {
    let mut next = 0;
    while next < span.chunks().end {
        let end = (next + 16).min(span.chunks().end);
        if let refused @ Written::NotKept(_) = put(store, span, next..end, Class::Owned) {
            return refused;
        }
        next = end;
    }
    Written::Kept
}

/// Reads one chunk; whatever comes must be right.
pub fn get(store: &Store, span: &Span, chunk: u32) -> bool {
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    let found = store.read_into(span, chunk..chunk + 1, &mut buffer);
    if found == 1 {
        let expected = chunk_bytes(span, chunk);
        assert!(
            buffer[..expected.len()] == expected,
            "wrong bytes of chunk {chunk} of {:?}",
            span.file.content
        );
    }
    found == 1
}

/// The chunks of an object that the store has, each compared.
pub fn chunks_of(store: &Store, span: &Span) -> Vec<u32> {
    span.chunks().filter(|chunk| get(store, span, *chunk)).collect()
}

/// A store's settings on one folder, without floors and without a share for others.
pub fn config(dir: &Path, quota_bytes: u64, eviction: Eviction) -> StoreConfig {
    StoreConfig {
        tiers: vec![TierConfig { dir: dir.to_owned(), medium: Medium::Disk, quota_bytes }],
        eviction,
        limits: no_floors(),
        clock: Clock::system(),
    }
}

/// No floors, and no share for others.
pub fn no_floors() -> Limits {
    Limits { free_space_floor_bytes: 0, free_inodes_floor: 0, read_through_percent: 0, ..Limits::default() }
}

/// A clock that tests move, beginning in 2026.
#[derive(Debug, Clone)]
pub struct Hands(Arc<AtomicU64>);

impl Hands {
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1_790_000_000_000)))
    }

    pub fn clock(&self) -> Clock {
        Clock::manual(self.0.clone())
    }

    pub fn forward(&self, millis: u64) {
        self.0.fetch_add(millis, Ordering::Relaxed);
    }
}

/// The data file or the sidecar of an object in a tier.
pub fn path_of(dir: &Path, span: &Span, kind: &str) -> PathBuf {
    let name = span.file.content.to_string();
    dir.join("blocks").join(&name[..2]).join(format!("{name}.{kind}"))
}

/// Flips a bit of a file.
pub fn flip(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 8], at).unwrap();
}

/// The files under a folder with an extension.
pub fn files_of(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|is| is == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// What the data files and sidecars of a tier really take.
pub fn allocated(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = [files_of(dir, "data"), files_of(dir, "map")].concat();
    files.iter().map(|path| std::fs::metadata(path).unwrap().blocks() * 512).sum()
}

/// Says that a test is skipped, past the capture of its output: the closing summary collects these lines.
pub fn skipped(why: &str) {
    let thread = std::thread::current();
    // Nobody is left to tell where standard error is closed.
    let _ = writeln!(std::io::stderr(), "\nskipped: {}: {why}", thread.name().unwrap_or("a test"));
}

/// A tmpfs of its own; unmounted on drop.
#[derive(Debug)]
pub struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts one, or says why the test is skipped.
    pub fn new(options: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        match mount("millrace-test", dir.path(), "tmpfs", MountFlags::empty(), options.as_c_str()) {
            Ok(()) => Some(Self { dir }),
            Err(error) => {
                skipped(&format!("mounting a tmpfs needs root ({error})"));
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn read_only(&self, is_read_only: bool) {
        let flags = if is_read_only { MountFlags::RDONLY } else { MountFlags::empty() };
        mount_remount(self.path(), flags, "").unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(self.dir.path(), UnmountFlags::DETACH);
    }
}

/// Random numbers that a seed repeats.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
