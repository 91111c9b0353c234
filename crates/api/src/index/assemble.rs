//! How does a sorted stream of objects become an index, in little memory?
//!
//! [`Assembler`] takes the files one by one in path order and writes the records that grow with their number to the
//! caller's [`Streams`] as soon as they are final. In memory it keeps 40 bytes for each directory, 4 bytes for each
//! child of a directory that is still open, and the members of one pack. [`Assembled::write`] then copies the streams
//! behind a header.

use std::cmp::Ordering;
use std::io::Write;

use super::content::relative;
use super::entry::{AssembleIndex, FileEntry, SourceEntry, Streams};
use super::format::{MAX_SOURCES, MAX_TEXT_BYTES};
use super::left_out::LeftOutList;
use super::path_rule::{LeftOutReason, Verdict, compare_paths, judge_key};
use super::records::Records;
use super::write::Assembled;
use crate::block::BlockSize;
use crate::ids::{ContentId, OriginId};
use crate::pack::is_packed;

/// Makes an index of files that come in path order.
#[derive(Debug)]
pub struct Assembler<W> {
    sources: Vec<SourceEntry>,
    origins: Vec<OriginId>,
    /// How many sources have had their directory offered.
    shown_sources: usize,
    records: Records<W>,
    left_out: LeftOutList,
    /// The last entry: what follows decides whether it is shown.
    held: Option<Held>,
}

/// An entry that waits for its successor.
#[derive(Debug, Default)]
struct Held {
    path: Vec<u8>,
    /// `None` for a directory.
    file: Option<HeldFile>,
}

#[derive(Debug)]
struct HeldFile {
    source: u8,
    size: u64,
    modified_ms: i64,
    etag: String,
    archived: bool,
}

impl<W: Write> Assembler<W> {
    /// Starts an index of `sources`, which are sorted by path (compared component by component) and do not overlap.
    ///
    /// # Errors
    /// `SourceCount`, `SourcePaths` and `SourceText` say what is wrong with the sources.
    pub fn new(
        block: BlockSize,
        sources: Vec<SourceEntry>,
        streams: Streams<W>,
    ) -> Result<Self, AssembleIndex> {
        check_sources(&sources)?;
        let records = Records::new(block, streams);
        let origins = sources.iter().map(SourceEntry::origin).collect();
        Ok(Self { sources, origins, shown_sources: 0, records, left_out: LeftOutList::default(), held: None })
    }

    /// Adds the next file in path order. Of one path that comes again the newest is kept; a file at whose path a
    /// directory turns out to be is left out.
    ///
    /// # Errors
    /// `Order` and `Path` mean a wrong caller, `TooMany` a dataset that does not fit, `Write` a failing stream.
    pub fn file(&mut self, entry: &FileEntry<'_>) -> Result<(), AssembleIndex> {
        let FileEntry { path, source, size, modified_ms, etag, archived } = *entry;
        check_path(path)?;
        let below = self.sources.get(usize::from(source)).and_then(|s| relative(s.path.as_bytes(), path));
        if below.is_none() {
            return Err(AssembleIndex::Source { path: text_of(path), source_number: source });
        }
        if etag.len() > MAX_TEXT_BYTES {
            return Err(AssembleIndex::Etag { path: text_of(path), len: etag.len() });
        }
        self.show_sources(Some(path))?;
        let etag = etag.to_owned();
        self.offer(path, Some(HeldFile { source, size, modified_ms, etag, archived }))
    }

    /// Adds the next directory in path order, which is shown even when nothing lies in it.
    ///
    /// # Errors
    /// As [`file`](Self::file).
    pub fn directory(&mut self, path: &[u8]) -> Result<(), AssembleIndex> {
        if path.is_empty() {
            return Ok(());
        }
        check_path(path)?;
        self.show_sources(Some(path))?;
        self.offer(path, None)
    }

    /// Notes a whole key that is not shown; in any order.
    pub fn leave_out(&mut self, source: u8, key: &[u8], reason: LeftOutReason) {
        self.left_out.add(source, key, reason);
    }

    /// Ends the stream of files and gives the streams back.
    ///
    /// # Errors
    /// As [`file`](Self::file).
    pub fn finish(mut self) -> Result<(Streams<W>, Assembled), AssembleIndex> {
        self.show_sources(None)?;
        if let Some(held) = self.held.take() {
            self.emit(&held)?;
        }
        self.records.finish(&self.sources, &self.left_out)
    }

    /// Offers the directories of the sources up to `path`, so that a source without objects appears too.
    fn show_sources(&mut self, path: Option<&[u8]>) -> Result<(), AssembleIndex> {
        while let Some(source) = self.sources.get(self.shown_sources) {
            let base = source.path.as_bytes();
            if path.is_some_and(|path| compare_paths(base, path) == Ordering::Greater) {
                break;
            }
            self.shown_sources += 1;
            if !base.is_empty() {
                let base = base.to_vec();
                self.offer(&base, None)?;
            }
        }
        Ok(())
    }

    fn offer(&mut self, path: &[u8], file: Option<HeldFile>) -> Result<(), AssembleIndex> {
        let Some(mut held) = self.held.take() else {
            self.held = Some(Held { path: path.to_vec(), file });
            return Ok(());
        };
        match compare_paths(&held.path, path) {
            Ordering::Greater => {
                return Err(AssembleIndex::Order { path: text_of(path), after: text_of(&held.path) });
            }
            Ordering::Equal => held.file = self.merge(path, held.file.take(), file),
            Ordering::Less => {
                let is_hidden = path.strip_prefix(&held.path[..]).is_some_and(|rest| rest.starts_with(b"/"));
                match &held.file {
                    Some(file) if is_hidden => self.hide(file.source, &held.path),
                    _ => self.emit(&held)?,
                }
                held.path.clear();
                held.path.extend_from_slice(path);
                held.file = file;
            }
        }
        self.held = Some(held);
        Ok(())
    }

    /// Decides between two entries of one path, in a way that does not depend on which came first.
    fn merge(&mut self, path: &[u8], a: Option<HeldFile>, b: Option<HeldFile>) -> Option<HeldFile> {
        match (a, b) {
            (Some(a), Some(b)) => {
                let rank = |file: &HeldFile| (file.modified_ms, file.etag.clone(), file.size, file.archived);
                Some(if rank(&a) >= rank(&b) { a } else { b })
            }
            (Some(file), None) | (None, Some(file)) => {
                self.hide(file.source, path);
                None
            }
            (None, None) => None,
        }
    }

    fn hide(&mut self, source: u8, path: &[u8]) {
        let key = self.key(source, path);
        self.left_out.add(source, &key, LeftOutReason::HiddenByDirectory);
    }

    fn emit(&mut self, held: &Held) -> Result<(), AssembleIndex> {
        let Held { path, file } = held;
        let Some(file) = file else { return self.records.directory(path) };
        let HeldFile { source, size, modified_ms, ref etag, archived } = *file;
        let entry = FileEntry { path, source, size, modified_ms, etag, archived };
        let content = is_packed(size).then(|| {
            let origin = self.origins.get(usize::from(source)).copied().unwrap_or(OriginId([0; 16]));
            ContentId::of_object(origin, &self.key(source, path), etag.as_bytes(), size)
        });
        let base = self.sources.get(usize::from(source)).map_or("", |source| source.path.as_str());
        self.records.file(&entry, base, content)
    }

    /// The whole key of the object shown at `path`; the source has been checked.
    fn key(&self, source: u8, path: &[u8]) -> Vec<u8> {
        let Some(source) = self.sources.get(usize::from(source)) else { return Vec::new() };
        let below = relative(source.path.as_bytes(), path).unwrap_or_default();
        [source.prefix.as_bytes(), below].concat()
    }
}

fn check_sources(sources: &[SourceEntry]) -> Result<(), AssembleIndex> {
    if sources.len() > MAX_SOURCES {
        return Err(AssembleIndex::SourceCount { count: sources.len() });
    }
    for source in sources {
        let SourceEntry { path, endpoint, bucket, prefix, region } = source;
        let wrong = |field| Err(AssembleIndex::SourceText { path: path.clone(), field });
        if !path.is_empty() && check_path(path.as_bytes()).is_err() {
            return wrong("path");
        }
        for (field, text) in
            [("endpoint", endpoint), ("bucket", bucket), ("prefix", prefix), ("region", region)]
        {
            if text.len() > MAX_TEXT_BYTES {
                return wrong(field);
            }
        }
    }
    for pair in sources.windows(2) {
        let [first, second] = pair else { continue };
        let (a, b) = (first.path.as_bytes(), second.path.as_bytes());
        if compare_paths(a, b) != Ordering::Less || relative(a, b).is_some() {
            return Err(AssembleIndex::SourcePaths {
                first: first.path.clone(),
                second: second.path.clone(),
            });
        }
    }
    Ok(())
}

fn check_path(path: &[u8]) -> Result<(), AssembleIndex> {
    match judge_key(b"", path, 1) {
        Verdict::Shown(_) => Ok(()),
        Verdict::Directory(_) | Verdict::LeftOut(_) => Err(AssembleIndex::Path { path: text_of(path) }),
    }
}

fn text_of(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
