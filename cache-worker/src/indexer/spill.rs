//! How do more entries than fit in memory come out in path order?
//!
//! Entries are kept encoded in a buffer of bounded size, which is sorted and written to a temporary file (a *run*) when
//! it is full; [`Runs::merge`] then reads all runs side by side. The files have no name, so a crash leaves nothing behind.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use millrace_api::index::{LeftOutReason, compare_paths};

/// Entries are held in memory up to this many bytes: with its two copies while sorting and the pages under way far
/// below the 128 MiB that listing may take, and a million keys of usual length are some six runs.
const BUFFER_BYTES: usize = 16 << 20;
/// At most this many runs are read side by side, at 64 KiB of buffer each; above it they are merged to one first.
const MAX_RUNS: usize = 128;
const RUN_BUFFER_BYTES: usize = 64 << 10;
/// The longest entry, path and ETag of 65,535 bytes each and the fixed fields; a longer one in a run is damage.
const MAX_ENTRY_BYTES: usize = 160 << 10;

/// What a listed key turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    /// A file at this path in the mount.
    File { path: &'a [u8], size: u64, modified_ms: i64, etag: &'a str, is_archived: bool },
    /// A directory at this path in the mount.
    Directory { path: &'a [u8] },
    /// A key that is not shown.
    LeftOut { key: &'a [u8], reason: LeftOutReason },
}

/// Says that a temporary file failed.
#[derive(Debug, thiserror::Error)]
#[error("sort listed keys: {attempt} a temporary file in {folder:?}")]
pub struct Spill {
    attempt: &'static str,
    folder: PathBuf,
    source: io::Error,
}

/// Takes entries in any order.
#[derive(Debug)]
pub(super) struct Runs {
    folder: PathBuf,
    limit: usize,
    buffer: Vec<u8>,
    /// Where each entry begins in the buffer.
    starts: Vec<u32>,
    runs: Vec<File>,
}

impl Runs {
    pub(super) fn new(folder: &Path) -> Self {
        Self::with_limit(folder, BUFFER_BYTES)
    }

    fn with_limit(folder: &Path, limit: usize) -> Self {
        Self { folder: folder.to_owned(), limit, buffer: Vec::new(), starts: Vec::new(), runs: Vec::new() }
    }

    /// Forgets all entries.
    pub(super) fn clear(&mut self) {
        self.buffer.clear();
        self.starts.clear();
        self.runs.clear();
    }

    pub(super) fn push(&mut self, entry: &Entry<'_>) -> Result<(), Spill> {
        let start = self.buffer.len();
        encode(entry, &mut self.buffer);
        self.starts.push(start as u32);
        if self.buffer.len() >= self.limit {
            self.write_run()?;
        }
        Ok(())
    }

    /// Gives all entries to `take`, in path order; those of one path in any order.
    pub(super) fn merge<E: From<Spill>>(
        mut self,
        mut take: impl FnMut(Entry<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.runs.is_empty() {
            self.sort();
            return self.starts.iter().try_for_each(|&start| match decode(tail(&self.buffer, start)) {
                Some(entry) => take(entry),
                None => Err(self.damaged().into()),
            });
        }
        if !self.starts.is_empty() {
            self.write_run()?;
        }
        // What follows needs no buffer, but the readers' own.
        self.buffer = Vec::new();
        self.starts = Vec::new();
        let runs = std::mem::take(&mut self.runs);
        self.merge_runs(runs, |bytes| match decode(bytes) {
            Some(entry) => take(entry),
            None => Err(self.damaged().into()),
        })
    }

    fn sort(&mut self) {
        let buffer = &self.buffer;
        let path = |start: u32| path_of(tail(buffer, start));
        // Stable: pages come in order, and this sort makes use of that.
        self.starts.sort_by(|&a, &b| compare_paths(path(a), path(b)));
    }

    fn write_run(&mut self) -> Result<(), Spill> {
        self.sort();
        let mut run = BufWriter::with_capacity(RUN_BUFFER_BYTES, self.file()?);
        for &start in &self.starts {
            run.write_all(entry_at(tail(&self.buffer, start)))
                .map_err(|source| self.failed("write", source))?;
        }
        self.keep(run)?;
        self.buffer.clear();
        self.starts.clear();
        if self.runs.len() >= MAX_RUNS {
            let runs = std::mem::take(&mut self.runs);
            let mut merged = BufWriter::with_capacity(RUN_BUFFER_BYTES, self.file()?);
            self.merge_runs(runs, |bytes| {
                merged.write_all(bytes).map_err(|source| self.failed("write", source))
            })?;
            self.keep(merged)?;
        }
        Ok(())
    }

    fn keep(&mut self, run: BufWriter<File>) -> Result<(), Spill> {
        let mut file = run.into_inner().map_err(|err| self.failed("write", err.into_error()))?;
        file.rewind().map_err(|source| self.failed("rewind", source))?;
        self.runs.push(file);
        Ok(())
    }

    fn file(&self) -> Result<File, Spill> {
        tempfile::tempfile_in(&self.folder).map_err(|source| self.failed("make", source))
    }

    fn merge_runs<E: From<Spill>>(
        &self,
        runs: Vec<File>,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut heap = BinaryHeap::with_capacity(runs.len());
        for file in runs {
            let mut head = Head { run: BufReader::with_capacity(RUN_BUFFER_BYTES, file), entry: Vec::new() };
            if head.advance().map_err(|source| self.failed("read", source))? {
                heap.push(Reverse(head));
            }
        }
        while let Some(mut lowest) = heap.peek_mut() {
            take(&lowest.0.entry)?;
            if !lowest.0.advance().map_err(|source| self.failed("read", source))? {
                std::collections::binary_heap::PeekMut::pop(lowest);
            }
        }
        Ok(())
    }

    fn failed(&self, attempt: &'static str, source: io::Error) -> Spill {
        Spill { attempt, folder: self.folder.clone(), source }
    }

    fn damaged(&self) -> Spill {
        self.failed("read", io::Error::new(io::ErrorKind::InvalidData, "it does not hold what was written"))
    }
}

/// A run that is being read, at its lowest entry.
#[derive(Debug)]
struct Head {
    run: BufReader<File>,
    entry: Vec<u8>,
}

impl Head {
    /// Reads the next entry; `false` at the end.
    fn advance(&mut self) -> io::Result<bool> {
        let mut len = [0; 4];
        match self.run.read_exact(&mut len) {
            Ok(()) => {}
            Err(err) if err.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(err) => return Err(err),
        }
        let count = u32::from_le_bytes(len) as usize;
        if !(4..=MAX_ENTRY_BYTES).contains(&count) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not hold what was written"));
        }
        self.entry.clear();
        self.entry.extend_from_slice(&len);
        self.entry.resize(count, 0);
        self.run.read_exact(&mut self.entry[4..])?;
        Ok(true)
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        compare_paths(path_of(&self.entry), path_of(&other.entry))
    }
}

const FILE: u8 = 0;
const ARCHIVED: u8 = 1;
const DIRECTORY: u8 = 2;
/// Added to the code of the reason.
const LEFT_OUT: u8 = 16;

/// Length of all (4), kind (1), size (8), modified (8), length of the path (4), path, ETag.
const FIXED_BYTES: usize = 25;

fn encode(entry: &Entry<'_>, buffer: &mut Vec<u8>) {
    let (kind, size, modified_ms, path, etag) = match *entry {
        Entry::File { path, size, modified_ms, etag, is_archived } => {
            (if is_archived { ARCHIVED } else { FILE }, size, modified_ms, path, etag)
        }
        Entry::Directory { path } => (DIRECTORY, 0, 0, path, ""),
        Entry::LeftOut { key, reason } => (LEFT_OUT + reason.code(), 0, 0, key, ""),
    };
    let total = FIXED_BYTES + path.len() + etag.len();
    buffer.extend_from_slice(&(total as u32).to_le_bytes());
    buffer.push(kind);
    buffer.extend_from_slice(&size.to_le_bytes());
    buffer.extend_from_slice(&modified_ms.to_le_bytes());
    buffer.extend_from_slice(&(path.len() as u32).to_le_bytes());
    buffer.extend_from_slice(path);
    buffer.extend_from_slice(etag.as_bytes());
}

/// Reads the entry that `bytes` begin with; `None` where they are damaged.
fn decode(bytes: &[u8]) -> Option<Entry<'_>> {
    let entry = entry_at(bytes);
    let kind = *entry.get(4)?;
    let size = u64::from_le_bytes(entry.get(5..13)?.try_into().ok()?);
    let modified_ms = i64::from_le_bytes(entry.get(13..21)?.try_into().ok()?);
    let path = path_of(entry);
    let etag = std::str::from_utf8(entry.get(FIXED_BYTES + path.len()..)?).ok()?;
    match kind {
        FILE | ARCHIVED => Some(Entry::File { path, size, modified_ms, etag, is_archived: kind == ARCHIVED }),
        DIRECTORY => Some(Entry::Directory { path }),
        _ => {
            Some(Entry::LeftOut { key: path, reason: LeftOutReason::from_code(kind.checked_sub(LEFT_OUT)?)? })
        }
    }
}

/// The first entry of `bytes`; empty where they are too short.
fn entry_at(bytes: &[u8]) -> &[u8] {
    number(bytes, 0).and_then(|len| bytes.get(..len)).unwrap_or_default()
}

fn path_of(bytes: &[u8]) -> &[u8] {
    number(bytes, 21).and_then(|len| bytes.get(FIXED_BYTES..)?.get(..len)).unwrap_or_default()
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let digits = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(digits) as usize)
}

fn tail(buffer: &[u8], start: u32) -> &[u8] {
    buffer.get(start as usize..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn merged(runs: Runs) -> Vec<(Vec<u8>, u64)> {
        let mut out = Vec::new();
        runs.merge::<Spill>(|entry| {
            match entry {
                Entry::File { path, size, .. } => out.push((path.to_vec(), size)),
                Entry::Directory { path } | Entry::LeftOut { key: path, .. } => out.push((path.to_vec(), 0)),
            }
            Ok(())
        })
        .unwrap();
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn entries_come_out_in_path_order_however_many_runs_there_are(
            paths in proptest::collection::vec("[ab/-]{0,6}", 0..300),
            limit in prop_oneof![Just(1usize), Just(100), Just(1 << 20)],
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut runs = Runs::with_limit(folder.path(), limit);
            for (size, path) in paths.iter().enumerate() {
                let entry = Entry::File {
                    path: path.as_bytes(), size: size as u64, modified_ms: -1, etag: "e", is_archived: false,
                };
                runs.push(&entry).unwrap();
            }
            let mut expected: Vec<_> = paths.iter().enumerate().map(|(n, p)| (p.clone().into_bytes(), n as u64)).collect();
            let mut found = merged(runs);
            prop_assert!(found.windows(2).all(|pair| compare_paths(&pair[0].0, &pair[1].0).is_le()));
            found.sort();
            expected.sort();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "runs have no name");
        }

        #[test]
        fn damaged_bytes_are_never_an_entry_that_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn every_kind_of_entry_reads_back() {
        let entries = [
            Entry::File { path: b"a/b", size: 5 << 40, modified_ms: -7, etag: "d41d8", is_archived: true },
            Entry::Directory { path: b"a" },
            Entry::LeftOut { key: b"\xff//", reason: LeftOutReason::NotUtf8 },
        ];
        for entry in entries {
            let mut buffer = Vec::new();
            encode(&entry, &mut buffer);
            buffer.extend_from_slice(b"more");
            assert_eq!(decode(&buffer), Some(entry));
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let mut runs = Runs::with_limit(Path::new("/nowhere/at/all"), 1);
        let err = runs.push(&Entry::Directory { path: b"a" }).unwrap_err();
        assert!(err.to_string().contains("/nowhere/at/all"), "{err}");
    }
}
