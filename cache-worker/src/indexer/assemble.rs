//! How do listed objects become an index file?
//!
//! The blocking side of indexing: it takes batches of listed objects, judges and sorts them, and writes the index.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Seek};
use std::path::Path;

use millrace_api::block::BlockSize;
use millrace_api::ids::VersionId;
use millrace_api::index::format::Slot;
use millrace_api::index::{AssembleIndex, Assembler, FileEntry, SourceEntry, Streams, Verdict, judge_key};
use tempfile::NamedTempFile;
use tokio::sync::mpsc;

use super::globs::Globs;
use super::listing::Batch;
use super::spill::{Entry, Runs, Spill};
use crate::origin::Listed;

/// Buffer of each of the six streams of an index that is being written, bytes.
const STREAM_BUFFER_BYTES: usize = 128 << 10;

/// Why listed objects did not become an index.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteIndex {
    #[error(transparent)]
    Spill(#[from] Spill),
    #[error(transparent)]
    Assemble(#[from] AssembleIndex),
    #[error("{attempt} a temporary file of the new index")]
    File { attempt: &'static str, source: io::Error },
}

/// An index under way: sources come one after the other, in path order.
pub(super) struct Build {
    assembler: Assembler<BufWriter<File>>,
    folder: std::path::PathBuf,
}

/// Counts as it goes.
pub(super) trait Tally: Sync {
    /// Objects were listed; `shown` of them go into the index, with so many bytes.
    fn listed(&self, objects: u64, shown: u64, bytes: u64);
    /// The objects of this source come again.
    fn restarted(&self);
}

impl Build {
    pub(super) fn new(
        folder: &Path,
        block: BlockSize,
        sources: Vec<SourceEntry>,
    ) -> Result<Self, WriteIndex> {
        let stream = || -> Result<_, WriteIndex> {
            let file = tempfile::tempfile_in(folder).map_err(failed("make"))?;
            Ok(BufWriter::with_capacity(STREAM_BUFFER_BYTES, file))
        };
        let streams = Streams {
            files: stream()?,
            children: stream()?,
            packs: stream()?,
            members: stream()?,
            hashes: stream()?,
            text: stream()?,
        };
        Ok(Self { assembler: Assembler::new(block, sources, streams)?, folder: folder.to_owned() })
    }

    /// Sorts the objects of one source until `batches` ends. Blocks.
    pub(super) fn take_in(
        &self,
        source: &SourceEntry,
        globs: &Globs,
        mut batches: mpsc::Receiver<Batch>,
        tally: &impl Tally,
    ) -> Result<Runs, WriteIndex> {
        let mut runs = Runs::new(&self.folder);
        let mut judge = Judge { source, globs, path: Vec::new() };
        while let Some(batch) = batches.blocking_recv() {
            match batch {
                Batch::Restart => {
                    runs.clear();
                    tally.restarted();
                }
                Batch::Objects(objects) => {
                    let (mut shown, mut bytes) = (0, 0);
                    for object in &objects {
                        match judge.entry(object) {
                            Some(entry) => {
                                if let Entry::File { size, .. } = entry {
                                    (shown, bytes) = (shown + 1, bytes + size);
                                }
                                runs.push(&entry)?;
                            }
                            None => continue,
                        }
                    }
                    tally.listed(objects.len() as u64, shown, bytes);
                }
            }
        }
        Ok(runs)
    }

    /// Adds a source's sorted objects. Blocks.
    pub(super) fn add(&mut self, source: u8, runs: Runs) -> Result<(), WriteIndex> {
        let assembler = &mut self.assembler;
        runs.merge(|entry| match entry {
            Entry::File { path, size, modified_ms, etag, is_archived } => {
                let file = FileEntry { path, source, size, modified_ms, etag, archived: is_archived };
                Ok(assembler.file(&file)?)
            }
            Entry::Directory { path } => Ok(assembler.directory(path)?),
            Entry::LeftOut { key, reason } => {
                assembler.leave_out(source, key, reason);
                Ok(())
            }
        })
    }

    /// Writes the index to a new file in the folder, on disk when this returns. Blocks.
    pub(super) fn finish(self) -> Result<(NamedTempFile, VersionId), WriteIndex> {
        let Self { assembler, folder } = self;
        let (streams, assembled) = assembler.finish()?;
        let mut slots = vec![Slot::EMPTY; assembled.slot_count()];
        let file =
            tempfile::Builder::new().prefix(super::TEMPORARY).tempfile_in(&folder).map_err(failed("make"))?;
        let mut out = BufWriter::with_capacity(STREAM_BUFFER_BYTES, file);
        let version = assembled.write(readers(streams)?, &mut slots, &mut out)?;
        let file = out.into_inner().map_err(|err| failed("write")(err.into_error()))?;
        file.as_file().sync_all().map_err(failed("sync"))?;
        Ok((file, version))
    }
}

fn readers(streams: Streams<BufWriter<File>>) -> Result<Streams<BufReader<File>>, WriteIndex> {
    let reader = |stream: BufWriter<File>| {
        let mut file = stream.into_inner().map_err(|err| failed("write")(err.into_error()))?;
        file.rewind().map_err(failed("rewind"))?;
        Ok::<_, WriteIndex>(BufReader::with_capacity(STREAM_BUFFER_BYTES, file))
    };
    let Streams { files, children, packs, members, hashes, text } = streams;
    Ok(Streams {
        files: reader(files)?,
        children: reader(children)?,
        packs: reader(packs)?,
        members: reader(members)?,
        hashes: reader(hashes)?,
        text: reader(text)?,
    })
}

fn failed(attempt: &'static str) -> impl Fn(io::Error) -> WriteIndex {
    move |source| WriteIndex::File { attempt, source }
}

/// Says what becomes of each object of a source.
struct Judge<'a> {
    source: &'a SourceEntry,
    globs: &'a Globs,
    /// The path of the last entry, kept so that not each object allocates one.
    path: Vec<u8>,
}

impl Judge<'_> {
    /// `None` for what the user does not want to see.
    fn entry<'e>(&'e mut self, object: &'e Listed) -> Option<Entry<'e>> {
        let Listed { key, size, etag, modified_ms, is_archived } = object;
        // A key of another prefix is a server's mistake; nobody asked for it.
        let relative = key.strip_prefix(self.source.prefix.as_bytes())?;
        if !self.globs.want(relative) {
            return None;
        }
        match judge_key(self.source.path.as_bytes(), relative, *size) {
            Verdict::Shown(below) => {
                self.set_path(below);
                Some(Entry::File {
                    path: &self.path,
                    size: *size,
                    modified_ms: *modified_ms,
                    etag,
                    is_archived: *is_archived,
                })
            }
            Verdict::Directory(below) => {
                self.set_path(below);
                Some(Entry::Directory { path: &self.path })
            }
            Verdict::LeftOut(reason) => Some(Entry::LeftOut { key, reason }),
        }
    }

    fn set_path(&mut self, below: &str) {
        self.path.clear();
        self.path.extend_from_slice(self.source.path.as_bytes());
        if !self.path.is_empty() && !below.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(below.as_bytes());
    }
}
