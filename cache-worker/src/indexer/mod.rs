//! How does a worker make the index of a dataset version?
//!
//! Every source is listed in parallel (`listing`, `board`, `split`), its objects are judged and sorted in bounded memory
//! (`globs`, `spill`) and written into one index (`assemble`), whose id is the hash of its content: the same objects
//! give the same version.

mod assemble;
mod board;
mod globs;
mod listing;
mod spill;
mod split;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millrace_api::block::BlockSize;
use millrace_api::ids::VersionId;
use millrace_api::index::SourceEntry;
use tempfile::NamedTempFile;
use tokio::sync::{mpsc, watch};

use assemble::{Build, Tally, WriteIndex};
use globs::{BadGlob, Globs};
use listing::List;
pub use listing::ListingConfig;

use crate::origin::Origin;
use crate::origin::error::OriginError;

/// Pages between listers and sorter; a full channel holds the listers back, which bounds memory.
const MAX_BATCHES: usize = 16;
/// Progress is told at most this often.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// What the temporary files of an index begin with; leftovers of a crash are found by it.
const TEMPORARY: &str = ".index-";

/// One source of a dataset, and how to reach it.
#[derive(Debug, Clone)]
pub struct SourceToIndex {
    /// Where it appears in the mount, and what it is called in the index.
    pub entry: SourceEntry,
    /// How to reach it.
    pub origin: Origin,
    /// Globs of the keys to show, below the prefix; all when empty.
    pub include: Vec<String>,
    /// Globs of the keys to leave out of those.
    pub exclude: Vec<String>,
}

/// How far indexing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Objects that were listed.
    pub listed: u64,
    /// Objects that were listed and are wanted and can be shown.
    pub shown: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sources that were listed to their end.
    pub sources: u64,
}

/// Why there is no index.
#[derive(Debug, thiserror::Error)]
pub enum MakeIndex {
    /// A glob cannot be understood.
    #[error(transparent)]
    Glob(#[from] BadGlob),
    /// S3 did not give the listing.
    #[error("list source {:?}", shown(path))]
    List {
        /// The source's path in the mount.
        path: String,
        /// Why.
        #[source]
        source: OriginError,
    },
    /// The server's listing never ends.
    #[error("list source {:?}: the server gives the same page again and again", shown(path))]
    Loop {
        /// The source's path in the mount.
        path: String,
    },
    /// The sorted listing or the index could not be written.
    #[error("write the index in {folder:?}")]
    Write {
        /// Where.
        folder: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A part of the work ended without an answer: it panicked, or the runtime is shutting down.
    #[error("indexing was cut off")]
    CutOff,
}

/// A new index, not yet in its place.
#[derive(Debug)]
pub struct NewIndex {
    /// The whole file, on disk; deleted when dropped.
    pub file: NamedTempFile,
    /// Its version.
    pub version: VersionId,
    /// The final counts.
    pub progress: Progress,
}

/// Deletes what a crash in the midst of indexing left in `folder`.
///
/// # Errors
///
/// The folder cannot be read, or a leftover cannot be deleted.
pub fn sweep(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The root's path is empty here, and `/` where users write it.
fn shown(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

/// Lists all sources and writes their index to a file in `folder`. Telling `progress` that nobody listens is fine.
///
/// # Errors
///
/// `Glob` and `List` are the user's to cure and say how; with any error no file is left behind.
///
/// # Cancel safety
///
/// Dropping it ends all requests; no file is left behind.
pub async fn make_index(
    sources: Vec<SourceToIndex>,
    block: BlockSize,
    folder: &Path,
    config: ListingConfig,
    progress: &watch::Sender<Progress>,
) -> Result<NewIndex, MakeIndex> {
    let mut sources = sources;
    sources
        .sort_by(|a, b| millrace_api::index::compare_paths(a.entry.path.as_bytes(), b.entry.path.as_bytes()));
    let globs = sources.iter().map(|source| Globs::new(&source.include, &source.exclude));
    let globs = globs.collect::<Result<Vec<_>, _>>()?;
    let entries: Vec<_> = sources.iter().map(|source| source.entry.clone()).collect();
    let wrong = |err: WriteIndex| MakeIndex::Write { folder: folder.to_owned(), source: err.into() };

    let counts = std::sync::Arc::new(Counts::default());
    let mut build = {
        let folder = folder.to_owned();
        blocking(move || Build::new(&folder, block, entries)).await?.map_err(wrong)?
    };
    for (number, (source, globs)) in (0u8..).zip(sources.into_iter().zip(globs)) {
        let (sink, batches) = mpsc::channel(MAX_BATCHES);
        let path = source.entry.path.clone();
        counts.begin();
        let taken = {
            let (entry, counts) = (source.entry.clone(), counts.clone());
            blocking(move || {
                let runs = build.take_in(&entry, &globs, batches, &*counts);
                (build, runs)
            })
        };
        let listed = listing::list(&source.origin, &source.entry.prefix, config, sink);
        let (listed, taken) = tokio::join!(listed, telling(taken, &counts, progress));
        let (given_back, runs) = taken?;
        build = given_back;
        // A sorter that failed ends the listing: its error is the cause.
        let runs = runs.map_err(wrong)?;
        listed.map_err(|err| match err {
            List::Origin(source) => MakeIndex::List { path, source },
            List::Loop { prefix: _ } => MakeIndex::Loop { path },
            List::Cancelled => MakeIndex::CutOff,
        })?;
        build = blocking(move || build.add(number, runs).map(|()| build)).await?.map_err(wrong)?;
        counts.end();
        progress.send_replace(counts.now());
    }
    let (file, version) = blocking(move || build.finish()).await?.map_err(wrong)?;
    Ok(NewIndex { file, version, progress: counts.now() })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, MakeIndex> {
    tokio::task::spawn_blocking(work).await.map_err(|_| MakeIndex::CutOff)
}

/// Tells the progress while `work` is under way.
async fn telling<T>(work: impl Future<Output = T>, counts: &Counts, progress: &watch::Sender<Progress>) -> T {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(TELL_EVERY) => {
                progress.send_if_modified(|told| {
                    let now = counts.now();
                    std::mem::replace(told, now) != now
                });
            }
        }
    }
}

/// Counts, of all sources and of the one under way, which may have to start again.
#[derive(Debug, Default)]
struct Counts {
    before: parking_lot::Mutex<Progress>,
    listed: AtomicU64,
    shown: AtomicU64,
    bytes: AtomicU64,
}

impl Counts {
    fn begin(&self) {
        *self.before.lock() = self.now();
        self.restarted();
    }

    fn end(&self) {
        let now = self.now();
        *self.before.lock() = Progress { sources: now.sources + 1, ..now };
        self.restarted();
    }

    fn now(&self) -> Progress {
        let Progress { listed, shown, bytes, sources } = *self.before.lock();
        Progress {
            listed: listed + self.listed.load(Ordering::Relaxed),
            shown: shown + self.shown.load(Ordering::Relaxed),
            bytes: bytes + self.bytes.load(Ordering::Relaxed),
            sources,
        }
    }
}

impl Tally for Counts {
    fn listed(&self, objects: u64, shown: u64, bytes: u64) {
        self.listed.fetch_add(objects, Ordering::Relaxed);
        self.shown.fetch_add(shown, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn restarted(&self) {
        self.listed.store(0, Ordering::Relaxed);
        self.shown.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }
}
