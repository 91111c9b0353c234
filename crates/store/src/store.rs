//! How do callers keep and find blocks?

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use millrace_api::block::{CHUNK_BYTES, Span, StoreFile};
use millrace_api::ids::ContentId;

use crate::borrowed::BorrowedFolder;
use crate::config::StoreConfig;
use crate::placing::place;
use crate::presence::{Hit, Presence};
use crate::scrub::Scrubbed;
use crate::seal::BootTag;
use crate::stats::{NotKept, Stats, TierUsage, Usage, add};
use crate::sweep::{Sweeper, sweep_often};
use crate::tier::Tier;
use crate::tiers::Tiers;
use crate::verify::{Occasion, Verification};
use crate::whole::{Pin, Whole, is_alone};
use crate::write::Run;

/// Why a store cannot be opened. A read-only, full or failing file system is no reason: such a store keeps nothing
/// until it has recovered.
#[derive(Debug, thiserror::Error)]
pub enum OpenStore {
    /// A tier's folder can be neither used nor made.
    #[error("open store folder {dir:?}: check that it is a folder which this process may write")]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A running process of another version uses the folder.
    #[error(
        "store folder {dir:?} is in use by a process of store version {version}: stop that process first"
    )]
    InUseByOtherVersion {
        /// The folder.
        dir: PathBuf,
        /// Its format.
        version: u32,
    },
    /// Another process has been counting the folder's files for too long.
    #[error("store folder {dir:?} is locked by another process that is starting: try again")]
    Locked {
        /// The folder.
        dir: PathBuf,
    },
}

/// Why this process keeps bytes, which decides what goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Its own share of the dataset.
    Owned,
    /// Read through for others: kept in a reserved share, evicted first.
    ReadThrough,
}

/// What became of bytes that were offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// They are in the store (they may have been before).
    Kept,
    /// They are not; already counted. `Disabled` and `Quota` are everyday answers.
    NotKept(NotKept),
}

/// Blocks on local disk. Clones share one store; several processes may open the same folders.
///
/// All calls block on the file system and are meant for blocking threads; a hit whose pages are in memory takes microseconds.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tiers: Arc<Tiers>,
    boot: BootTag,
    _sweeper: Option<Sweeper>,
}

impl Store {
    /// Opens the folders, makes them where they are not there, and counts what they hold where no other process has
    /// them open.
    ///
    /// # Errors
    /// See [`OpenStore`].
    pub fn open(config: StoreConfig) -> Result<Self, OpenStore> {
        Self::open_in_boot(config, BootTag::current())
    }

    /// The same, where the boot is told: files are handed out whole only where they were verified in it.
    ///
    /// # Errors
    /// See [`OpenStore`].
    pub fn open_in_boot(config: StoreConfig, boot: BootTag) -> Result<Self, OpenStore> {
        let tiers = Arc::new(Tiers::open(config)?);
        let sweeper = if tiers.own().is_empty() { None } else { sweep_often(&tiers) };
        Ok(Self { inner: Arc::new(Inner { tiers, boot, _sweeper: sweeper }) })
    }

    /// The longest run of present chunks from `chunks.start` on, for sendfile; `None` where the first one is not there.
    pub fn read(&self, span: &Span, chunks: Range<u32>) -> Option<Hit> {
        let hit = self.inner.tiers.own().iter().find_map(|tier| tier.read(span, chunks.clone()));
        let found = hit.as_ref().map_or(0, |hit| hit.crcs.len() as u32);
        self.count_read(span, &chunks, found, false);
        hit
    }

    /// Whether a file is open here, so that a look into it most likely does not wait for the disk.
    pub fn has_open(&self, file: &StoreFile) -> bool {
        self.inner.tiers.own().iter().any(|tier| tier.open_files.peek(file.content).is_some())
    }

    /// Copies the longest run of present chunks from `chunks.start` on to `buffer`, checksums compared, and returns how
    /// many chunks that were. A chunk that does not match is dropped, counted, and ends the run.
    ///
    /// `buffer` ends the run too where the next chunk does not fit. What is behind the run in `buffer` is undefined.
    pub fn read_into(&self, span: &Span, chunks: Range<u32>, buffer: &mut [u8]) -> u32 {
        let read =
            |tier: &Tier| Some(tier.read_into(span, chunks.clone(), buffer)).filter(|found| *found > 0);
        let (found, is_borrowed) = self.inner.tiers.find(read).unwrap_or((0, false));
        self.count_read(span, &chunks, found, is_borrowed);
        found
    }

    /// Keeps one chunk of an object.
    ///
    /// `bytes` is the whole chunk, `crc` its CRC32C, already compared by the caller.
    pub fn write(&self, span: &Span, chunk: u32, bytes: &[u8], crc: u32, class: Class) -> Written {
        self.write_run(span, chunk, &[bytes], &[crc], class)
    }

    /// Keeps consecutive chunks of an object, the first being `first_chunk`, with one write for all.
    ///
    /// `NotKept` when at least one of them was not kept.
    pub fn write_run<B: AsRef<[u8]>>(
        &self,
        span: &Span,
        first_chunk: u32,
        bytes: &[B],
        crcs: &[u32],
        class: Class,
    ) -> Written {
        let bytes: Vec<&[u8]> = bytes.iter().map(AsRef::as_ref).collect();
        let run = Run { span, first_chunk, bytes: &bytes, crcs, class };
        match place(self.inner.tiers.own(), &run) {
            Ok(()) => Written::Kept,
            Err(reason) => {
                self.inner.tiers.counters.count_not_kept(reason, bytes.len() as u64);
                Written::NotKept(reason)
            }
        }
    }

    /// Drops a chunk that a receiver found not to match its checksum. True if it was bad here, and not on its way; then
    /// it is counted.
    pub fn drop_chunk(&self, span: &Span, chunk: u32) -> bool {
        // All tiers, since more than one may hold it.
        self.inner.tiers.own().iter().filter(|tier| tier.drop_chunk(span, chunk)).count() > 0
    }

    /// Which of a store file's slots are there, over all tiers.
    pub fn present(&self, file: &StoreFile, slots: Range<u32>) -> Presence {
        let mut presence = Presence::none(slots);
        self.inner.tiers.visit(|tier| {
            tier.present(file, &mut presence);
            !presence.is_full()
        });
        presence
    }

    /// How many chunks of a block are there.
    pub fn block_chunks_present(&self, file: &StoreFile, block: u32) -> u32 {
        self.present(file, file.slots_of(block)).count()
    }

    /// Whether all chunks of a store file are there.
    pub fn complete(&self, file: &StoreFile) -> bool {
        self.present(file, 0..file.slots).is_full()
    }

    /// Whether the kernel could read an object itself. Notes a use.
    pub fn whole(&self, span: &Span) -> Whole {
        if !is_alone(span) {
            return Whole::Packed;
        }
        let boot = self.inner.boot;
        let found = |tier: &Tier| Some(tier.whole(span, boot)).filter(|whole| *whole != Whole::Incomplete);
        self.inner.tiers.find_for_kernel(found).map_or(Whole::Incomplete, |(whole, _)| whole)
    }

    /// Opens a file of the first folder, to learn what its file system can do.
    ///
    /// # Errors
    /// Those of open(2); not found where there is no folder.
    pub fn sample_file(&self) -> std::io::Result<File> {
        let tier = self.inner.tiers.own().first().ok_or(std::io::ErrorKind::NotFound)?;
        File::open(tier.config.dir.join("lock"))
    }

    /// Opens the whole verified file of an object for the kernel, and keeps it from eviction in all processes for as long as
    /// that is open. `None` where it is not verified in this boot, or going just now.
    pub fn pin(&self, span: &Span) -> Option<Pin> {
        let (pin, is_borrowed) = self.inner.tiers.find_for_kernel(|tier| tier.pin(span, self.inner.boot))?;
        add(&self.inner.tiers.counters.borrowed_pins, is_borrowed.into());
        Some(pin)
    }

    /// Compares all chunks of an object with their checksums, so that it can be handed out whole. `go_on` hears of each piece
    /// that was read, in bytes, and may call it off. Bad chunks are dropped and counted.
    pub fn verify(&self, span: &Span, go_on: &mut dyn FnMut(u64) -> bool) -> Verification {
        let boot = self.inner.boot;
        let verify = |tier: &Tier| match tier.verify(span, boot, Occasion::Use, go_on) {
            Verification::Incomplete => None,
            found => Some(found),
        };
        self.inner.tiers.find(verify).map_or(Verification::Incomplete, |(found, _)| found)
    }

    /// Compares all files once that can be handed out whole, where no other process is at it. `go_on` as in
    /// [`verify`](Self::verify): whoever calls this says by it how fast it may go.
    ///
    /// # Errors
    /// When a folder cannot be used for it.
    pub fn scrub(&self, go_on: &mut dyn FnMut(u64) -> bool) -> std::io::Result<Scrubbed> {
        let mut done = Scrubbed::default();
        let scrub = |tier: &Tier| match tier.scrub(self.inner.boot, go_on) {
            Ok(Scrubbed { files, bad_files }) => {
                done.files += files;
                done.bad_files += bad_files;
                None
            }
            Err(error) => Some(error),
        };
        match self.inner.tiers.find(scrub) {
            Some((error, _)) => Err(error),
            None => Ok(done),
        }
    }

    /// Marks content that no version in use needs: it goes first when room is needed, and is kept until then. Reading or
    /// writing it again takes the mark away.
    pub fn mark_unused(&self, contents: impl IntoIterator<Item = ContentId>) {
        let contents: Vec<ContentId> = contents.into_iter().collect();
        self.inner.tiers.own().iter().for_each(|tier| tier.mark_unused(contents.iter().copied()));
    }

    /// Marks all content unused that is not `live`. Only for a store with one user, who knows all versions.
    pub fn retain(&self, live: impl Fn(ContentId) -> bool) {
        self.inner.tiers.own().iter().for_each(|tier| tier.mark_unused_where(|content| !live(content)));
    }

    /// Lets the first tier allocate so much from now on, and evicts what it holds beyond that, also where nothing is evicted
    /// otherwise; `true` where that is another amount than before. For this process only: the others of the folder have
    /// their own. Blocks for as long as the evictions take.
    pub fn set_quota(&self, quota_bytes: u64) -> bool {
        let Some(tier) = self.inner.tiers.own().first() else { return false };
        let is_new = tier.set_quota(quota_bytes) != quota_bytes;
        if is_new {
            tier.shrink_to_quota();
        }
        is_new
    }

    /// What the store holds now, over all processes.
    pub fn usage(&self) -> Usage {
        let usage = |tier: &Tier| {
            let held = tier.held();
            TierUsage {
                used_bytes: held.bytes,
                read_through_bytes: held.read_through_bytes,
                files: held.files,
                quota_bytes: tier.quota_bytes(),
            }
        };
        Usage { tiers: self.inner.tiers.own().iter().map(usage).collect() }
    }

    /// What this process has done since it opened the store.
    pub fn stats(&self) -> Stats {
        self.inner.tiers.counters.snapshot()
    }

    /// Reads the files of exactly these stores of others from now on, where they lie, besides those of its own; says how many
    /// are there. Nothing is written into them but what says that their files are in use.
    pub fn borrow(&self, folders: &[BorrowedFolder]) -> usize {
        self.inner.tiers.borrow(folders)
    }

    /// Hands no more borrowed files to the kernel, which does not take them: its file system may be of another kind.
    pub fn keep_borrowed_from_kernel(&self) {
        self.inner.tiers.keep_borrowed_from_kernel();
    }

    fn count_read(&self, span: &Span, chunks: &Range<u32>, found: u32, is_borrowed: bool) {
        let asked = chunks.end.min(span.chunks().end).saturating_sub(chunks.start);
        let start = u64::from(chunks.start) * CHUNK_BYTES;
        let bytes = (u64::from(found) * CHUNK_BYTES).min(span.size.saturating_sub(start));
        add(&self.inner.tiers.counters.hit_chunks, u64::from(found));
        add(&self.inner.tiers.counters.hit_bytes, bytes);
        add(&self.inner.tiers.counters.borrowed_bytes, if is_borrowed { bytes } else { 0 });
        add(&self.inner.tiers.counters.miss_chunks, u64::from(asked.saturating_sub(found)));
    }
}
