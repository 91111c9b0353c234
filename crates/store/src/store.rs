//! How do callers keep and find blocks?

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use millrace_api::block::{CHUNK_BYTES, Span, StoreFile};
use millrace_api::ids::ContentId;

use crate::config::{StoreConfig, TierConfig};
use crate::opening::{OpenTier, open_usage};
use crate::placing::place;
use crate::room::{Floors, Room};
use crate::scrub::Scrubbed;
use crate::seal::BootTag;
use crate::stats::{Counters, NotKept, Stats, TierUsage, Usage, add};
use crate::sweep::{Sweeper, sweep_often};
use crate::tier::{Tier, TierParts};
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

/// Consecutive chunks that are there, ready for sendfile. The receiver checks the checksums, nobody has yet.
///
/// The bytes stay readable through `file` for some seconds at least, whatever is evicted; after that they may read as zeros.
#[derive(Debug, Clone)]
pub struct Hit {
    /// The store file.
    pub file: Arc<File>,
    /// Where the first chunk begins in it.
    pub offset: u64,
    /// Length of all chunks together, bytes.
    pub len: u64,
    /// CRC32C of each chunk.
    pub crcs: Vec<u32>,
}

/// Which slots of a range are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    pub(crate) slots: Range<u32>,
    pub(crate) bits: Vec<u64>,
}

impl Presence {
    /// Nothing is there.
    pub(crate) fn none(slots: Range<u32>) -> Self {
        let words = slots.len().div_ceil(64);
        Self { slots, bits: vec![0; words] }
    }

    pub(crate) fn insert(&mut self, slot: u32) {
        let bit = (slot - self.slots.start) as usize;
        self.bits[bit / 64] |= 1 << (bit % 64);
    }

    /// Whether a slot is there; false outside the range.
    pub fn contains(&self, slot: u32) -> bool {
        let bit = (slot.wrapping_sub(self.slots.start)) as usize;
        self.slots.contains(&slot) && self.bits[bit / 64] >> (bit % 64) & 1 == 1
    }

    /// How many slots are there.
    pub fn count(&self) -> u32 {
        self.bits.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether all slots of the range are there.
    pub fn is_full(&self) -> bool {
        self.count() as usize == self.slots.len()
    }

    /// The runs of slots that are not there, in order.
    pub fn missing(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let mut next = self.slots.start;
        std::iter::from_fn(move || {
            let start = (next..self.slots.end).find(|slot| !self.contains(*slot))?;
            let end = (start..self.slots.end).find(|slot| self.contains(*slot)).unwrap_or(self.slots.end);
            next = end;
            Some(start..end)
        })
    }
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
    tiers: Arc<[Tier]>,
    boot: BootTag,
    counters: Arc<Counters>,
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
        let StoreConfig { tiers, eviction, limits, clock } = config;
        let counters = Arc::new(Counters::default());
        let open_files = open_files_of(limits.open_files, tiers.len());
        let make = |config: TierConfig| {
            let floors = if Tier::has_floors(config.medium) {
                Floors { bytes: limits.free_space_floor_bytes, inodes: limits.free_inodes_floor }
            } else {
                Floors { bytes: 0, inodes: 0 }
            };
            let (clock, counters, room) = (clock.clone(), counters.clone(), Room::new(floors));
            Tier::new(TierParts { config, limits, eviction, clock, counters, room, open_files })
        };
        let tiers: Vec<Tier> = tiers.into_iter().map(make).collect();
        tiers.iter().try_for_each(open_tier)?;
        let tiers: Arc<[Tier]> = tiers.into();
        let sweeper = if tiers.is_empty() { None } else { sweep_often(&tiers) };
        Ok(Self { inner: Arc::new(Inner { tiers, boot, counters, _sweeper: sweeper }) })
    }

    /// The longest run of present chunks from `chunks.start` on, for sendfile; `None` where the first one is not there.
    pub fn read(&self, span: &Span, chunks: Range<u32>) -> Option<Hit> {
        let hit = self.inner.tiers.iter().find_map(|tier| tier.read(span, chunks.clone()));
        let found = hit.as_ref().map_or(0, |hit| hit.crcs.len() as u32);
        self.count_read(span, &chunks, found);
        hit
    }

    /// Whether a file is open here, so that a look into it most likely does not wait for the disk.
    pub fn has_open(&self, file: &StoreFile) -> bool {
        self.inner.tiers.iter().any(|tier| tier.open_files.peek(file.content).is_some())
    }

    /// Copies the longest run of present chunks from `chunks.start` on to `buffer`, checksums compared, and returns how
    /// many chunks that were. A chunk that does not match is dropped, counted, and ends the run.
    ///
    /// `buffer` ends the run too where the next chunk does not fit. What is behind the run in `buffer` is undefined.
    pub fn read_into(&self, span: &Span, chunks: Range<u32>, buffer: &mut [u8]) -> u32 {
        let read =
            |tier: &Tier| Some(tier.read_into(span, chunks.clone(), buffer)).filter(|found| *found > 0);
        let found = self.inner.tiers.iter().find_map(read).unwrap_or(0);
        self.count_read(span, &chunks, found);
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
        match place(&self.inner.tiers, &run) {
            Ok(()) => Written::Kept,
            Err(reason) => {
                self.inner.counters.count_not_kept(reason, bytes.len() as u64);
                Written::NotKept(reason)
            }
        }
    }

    /// Drops a chunk that a receiver found not to match its checksum. True if it was bad here, and not on its way; then
    /// it is counted.
    pub fn drop_chunk(&self, span: &Span, chunk: u32) -> bool {
        // All tiers, since more than one may hold it.
        self.inner.tiers.iter().filter(|tier| tier.drop_chunk(span, chunk)).count() > 0
    }

    /// Which of a store file's slots are there, over all tiers.
    pub fn present(&self, file: &StoreFile, slots: Range<u32>) -> Presence {
        let mut presence = Presence::none(slots);
        self.inner.tiers.iter().for_each(|tier| tier.present(file, &mut presence));
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
        let found = self.inner.tiers.iter().map(|tier| tier.whole(span, boot));
        found
            .reduce(|one, other| if one == Whole::Incomplete { other } else { one })
            .unwrap_or(Whole::Incomplete)
    }

    /// Opens a file of the first folder, to learn what its file system can do.
    ///
    /// # Errors
    /// Those of open(2); not found where there is no folder.
    pub fn sample_file(&self) -> std::io::Result<File> {
        let tier = self.inner.tiers.first().ok_or(std::io::ErrorKind::NotFound)?;
        File::open(tier.config.dir.join("lock"))
    }

    /// Opens the whole verified file of an object for the kernel, and keeps it from eviction in all processes for as long as
    /// that is open. `None` where it is not verified in this boot, or going just now.
    pub fn pin(&self, span: &Span) -> Option<Pin> {
        self.inner.tiers.iter().find_map(|tier| tier.pin(span, self.inner.boot))
    }

    /// Compares all chunks of an object with their checksums, so that it can be handed out whole. `go_on` hears of each piece
    /// that was read, in bytes, and may call it off. Bad chunks are dropped and counted.
    pub fn verify(&self, span: &Span, go_on: &mut dyn FnMut(u64) -> bool) -> Verification {
        let boot = self.inner.boot;
        for tier in self.inner.tiers.iter() {
            match tier.verify(span, boot, Occasion::Use, go_on) {
                Verification::Incomplete => {}
                found => return found,
            }
        }
        Verification::Incomplete
    }

    /// Compares all files once that can be handed out whole, where no other process is at it. `go_on` as in
    /// [`verify`](Self::verify): whoever calls this says by it how fast it may go.
    ///
    /// # Errors
    /// When a folder cannot be used for it.
    pub fn scrub(&self, go_on: &mut dyn FnMut(u64) -> bool) -> std::io::Result<Scrubbed> {
        let mut done = Scrubbed::default();
        for tier in self.inner.tiers.iter() {
            let Scrubbed { files, bad_files } = tier.scrub(self.inner.boot, go_on)?;
            done.files += files;
            done.bad_files += bad_files;
        }
        Ok(done)
    }

    /// Marks content that no version in use needs: it goes first when room is needed, and is kept until then. Reading or
    /// writing it again takes the mark away.
    pub fn mark_unused(&self, contents: impl IntoIterator<Item = ContentId>) {
        let contents: Vec<ContentId> = contents.into_iter().collect();
        self.inner.tiers.iter().for_each(|tier| tier.mark_unused(contents.iter().copied()));
    }

    /// Marks all content unused that is not `live`. Only for a store with one user, who knows all versions.
    pub fn retain(&self, live: impl Fn(ContentId) -> bool) {
        self.inner.tiers.iter().for_each(|tier| tier.mark_unused_where(|content| !live(content)));
    }

    /// Lets the first tier allocate so much from now on, and evicts what it holds beyond that, also where nothing is evicted
    /// otherwise; `true` where that is another amount than before. For this process only: the others of the folder have
    /// their own. Blocks for as long as the evictions take.
    pub fn set_quota(&self, quota_bytes: u64) -> bool {
        let Some(tier) = self.inner.tiers.first() else { return false };
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
        Usage { tiers: self.inner.tiers.iter().map(usage).collect() }
    }

    /// What this process has done since it opened the store.
    pub fn stats(&self) -> Stats {
        self.inner.counters.snapshot()
    }

    fn count_read(&self, span: &Span, chunks: &Range<u32>, found: u32) {
        let asked = chunks.end.min(span.chunks().end).saturating_sub(chunks.start);
        let start = u64::from(chunks.start) * CHUNK_BYTES;
        let bytes = (u64::from(found) * CHUNK_BYTES).min(span.size.saturating_sub(start));
        add(&self.inner.counters.hit_chunks, u64::from(found));
        add(&self.inner.counters.hit_bytes, bytes);
        add(&self.inner.counters.miss_chunks, u64::from(asked.saturating_sub(found)));
    }
}

/// Opens a tier, or leaves it for later where its file system is full, read-only or failing.
fn open_tier(tier: &Tier) -> Result<(), OpenStore> {
    let dir = tier.config.dir.clone();
    match open_usage(tier) {
        Ok(usage) => {
            *tier.usage.lock() = Some(usage);
            tier.shrink_to_quota();
        }
        Err(OpenTier::Io(source)) if NotKept::of_io(&source) != NotKept::Io || is_fault(&source) => {
            tier.fault(&source);
        }
        Err(OpenTier::Io(source)) => return Err(OpenStore::Folder { dir, source }),
        Err(OpenTier::Version(version)) => return Err(OpenStore::InUseByOtherVersion { dir, version }),
        Err(OpenTier::Locked) => return Err(OpenStore::Locked { dir }),
    }
    Ok(())
}

fn is_fault(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EIO)
}

/// How many store files each tier may hold open: what is asked for, but of all descriptors a quarter at most.
fn open_files_of(asked: usize, tiers: usize) -> usize {
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most = descriptors.map_or(usize::MAX, |count| usize::try_from(count / 8).unwrap_or(usize::MAX));
    if asked > most {
        tracing::warn!(
            asked,
            most,
            "fewer store files are held open: raise the limit of open files (ulimit -n)"
        );
    }
    asked.min(most) / tiers.max(1)
}
