//! Where do the files of one tier lie, and how do they come and go?
//!
//! ```text
//! <dir>/lock                      shared flock while a process has the tier open
//! <dir>/usage                     what the tier holds, see the usage module; its flock guards coming and going
//! <dir>/blocks/<2 digits>/<32 digits of content id>.data     chunks at their own offsets, sparse
//! <dir>/blocks/<2 digits>/<32 digits of content id>.map      the sidecar
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use millrace_api::block::StoreFile;
use millrace_api::ids::ContentId;
use parking_lot::Mutex;

use crate::admit::{Ask, Bounds, admit};
use crate::borrowed::Borrowed;
use crate::clock::Clock;
use crate::config::{Eviction, Limits, Medium, TierConfig};
use crate::evict::Victims;
use crate::open_file::{LockedFile, OpenFile};
use crate::open_files::OpenFiles;
use crate::opening::{OpenTier, open_usage, read_usage};
use crate::pair::{Opened, Part, create_pair, open_pair, unlink_pair};
use crate::room::Room;
use crate::sidecar::{Layout, MARK_UNUSED, PAGE_BYTES, stamp_of};
use crate::stats::{Counters, NotKept, add};
use crate::usage::{Held, UsageFile, UseUsage};

/// How long a tier whose file system is full is left alone.
const FULL_PAUSE_MILLIS: u64 = 1_000;

/// How long one whose usage record is held by a stopped process is left alone.
const BUSY_PAUSE_MILLIS: u64 = 1_000;

/// How long one that is read-only or failing is left alone.
const FAULT_PAUSE_MILLIS: u64 = 5_000;

/// What somebody opens a file for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Its bytes are wanted, so it is in use from now on.
    Use,
    /// To look at it only.
    Look,
}

/// One folder of a store, opened.
#[derive(Debug)]
pub(crate) struct Tier {
    pub config: TierConfig,
    /// Starts as the configuration says; see [`Store::set_quota`](crate::Store::set_quota).
    quota_bytes: AtomicU64,
    limits: Limits,
    pub eviction: Eviction,
    pub clock: Clock,
    pub counters: Arc<Counters>,
    pub room: Room,
    pub open_files: OpenFiles,
    pub victims: Mutex<Victims>,
    /// Held with a shared lock as long as the tier is open; none where the file system is read-only.
    pub lifetime: Mutex<Option<File>>,
    pub usage: Mutex<Option<UsageFile>>,
    /// Where it is somebody else's: then nothing is kept in it, and nothing mended.
    pub borrowed: Option<Borrowed>,
    pause_until_millis: AtomicU64,
    pause_reason: AtomicU8,
}

/// Everything a tier is made from.
#[derive(Debug)]
pub(crate) struct TierParts {
    pub config: TierConfig,
    pub limits: Limits,
    pub eviction: Eviction,
    pub clock: Clock,
    pub counters: Arc<Counters>,
    pub room: Room,
    pub open_files: usize,
    pub borrowed: Option<Borrowed>,
}

impl Tier {
    /// A tier whose folder is not opened yet.
    pub fn new(parts: TierParts) -> Self {
        let TierParts { config, limits, eviction, clock, counters, room, open_files, borrowed } = parts;
        Self {
            quota_bytes: AtomicU64::new(config.quota_bytes),
            config,
            limits,
            eviction,
            clock,
            counters,
            room,
            open_files: OpenFiles::new(open_files),
            victims: Mutex::default(),
            lifetime: Mutex::new(None),
            usage: Mutex::new(None),
            borrowed,
            pause_until_millis: AtomicU64::new(0),
            pause_reason: AtomicU8::new(0),
        }
    }

    /// Bytes that the tier may allocate now.
    pub fn quota_bytes(&self) -> u64 {
        self.quota_bytes.load(Ordering::Relaxed)
    }

    /// Lets the tier allocate so much from now on; answers what it was before.
    pub fn set_quota(&self, quota_bytes: u64) -> u64 {
        self.quota_bytes.swap(quota_bytes, Ordering::Relaxed)
    }

    /// What the usage record is held against now.
    pub fn bounds(&self) -> Bounds {
        Bounds::new(self.quota_bytes(), self.limits.read_through_percent, self.limits.max_files)
    }

    /// The stamp of this moment.
    pub fn stamp(&self) -> u32 {
        stamp_of(self.clock.millis())
    }

    /// The folder of all store files.
    pub fn blocks_dir(&self) -> PathBuf {
        blocks_dir(&self.config.dir)
    }

    /// The data file and the sidecar of a content.
    pub fn paths(&self, content: ContentId) -> [PathBuf; 2] {
        let name = content.to_string();
        let shard = self.blocks_dir().join(&name[..2]);
        [shard.join(format!("{name}.data")), shard.join(format!("{name}.map"))]
    }

    /// Opens a store file, if the tier has it. One that is damaged is removed and counted.
    pub fn open(&self, file: &StoreFile, purpose: Purpose) -> Option<Arc<OpenFile>> {
        let open = self.open_content(file.content, purpose)?;
        let found = &open.layout.file;
        if (found.len, found.slots) != (file.len, file.slots) {
            self.discard(&open);
            return None;
        }
        Some(open)
    }

    /// Opens the store file of a content, whatever its length, if the tier has it.
    pub fn open_content(&self, content: ContentId, purpose: Purpose) -> Option<Arc<OpenFile>> {
        if self.borrowed.as_ref().is_some_and(|borrowed| !borrowed.trusts(content)) {
            return None;
        }
        if purpose == Purpose::Look {
            // Not kept open: who looks at all files would otherwise push out those in use.
            return self.open_files.peek(content).or_else(|| self.open_by_name(content));
        }
        let open = match self.open_files.get(content) {
            Some(open) => open,
            None => self.open_files.insert(self.open_by_name(content)?),
        };
        if open.is_marked(MARK_UNUSED) {
            self.set_unused(&open, false);
        }
        Some(open)
    }

    /// Marks a file unused, or takes the mark away.
    pub fn set_unused(&self, open: &OpenFile, is_unused: bool) {
        if let Ok(locked) = open.lock() {
            // A mark that is not written costs order of eviction.
            let _ = locked.set_mark(MARK_UNUSED, is_unused);
        }
    }

    /// Opens a data file and its sidecar by their names.
    pub fn open_pair(&self, content: ContentId) -> io::Result<Opened> {
        match &self.borrowed {
            Some(borrowed) => borrowed.open_pair(content),
            None => open_pair(&self.paths(content), content),
        }
    }

    /// Opens a data file once more, for reading.
    pub fn open_data(&self, content: ContentId) -> io::Result<File> {
        match &self.borrowed {
            Some(borrowed) => {
                let data = borrowed.open_part(content, Part::Data)?;
                data.map(|(file, _)| file).ok_or_else(|| io::ErrorKind::NotFound.into())
            }
            None => File::open(&self.paths(content)[0]),
        }
    }

    fn open_by_name(&self, content: ContentId) -> Option<Arc<OpenFile>> {
        // A file that is removed while it is being opened is looked for again; twice in a row is damage.
        for _ in 0..3 {
            match self.open_pair(content) {
                Ok(Opened::File(open)) => return Some(Arc::new(open)),
                Ok(Opened::Absent) => return None,
                Ok(Opened::Removed) => {}
                Ok(Opened::Damaged(what)) => {
                    tracing::warn!(content = %content, dir = ?self.config.dir, what, "store file dropped");
                    add(&self.counters.damaged_files, 1);
                    self.remove_by_name(content);
                    return None;
                }
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) => self.open_files.clear(),
                Err(error) => {
                    add(&self.counters.read_errors, 1);
                    if error.raw_os_error() == Some(libc::EIO) {
                        add(&self.counters.damaged_files, 1);
                        self.remove_by_name(content);
                    }
                    tracing::warn!(content = %content, dir = ?self.config.dir, error = %error, "open store file");
                    return None;
                }
            }
        }
        None
    }

    /// Makes a store file for `first` bytes, or opens the one that another process has made meanwhile.
    pub fn create(&self, file: StoreFile, first: &Ask) -> Result<Arc<OpenFile>, NotKept> {
        let layout = Layout::new(file).ok_or(NotKept::Invalid)?;
        let ask = Ask { bytes: layout.allocated_bytes(), files: 1, is_read_through: false };
        self.room.check(&self.config.dir, ask.bytes + first.bytes, 1)?;
        let paths = self.paths(file.content);
        let created = self.update(|held| {
            if paths[1].exists() {
                return Ok(None);
            }
            let after = admit(held, &self.bounds(), &ask)?;
            // Else a full tier would fill its last pages with sidecars of nothing.
            admit(&after, &self.bounds(), first)?;
            let open = create_pair(&paths, layout).map_err(|error| self.fault(&error))?;
            *held = after;
            Ok(Some(open))
        })??;
        match created {
            Some(open) => {
                self.room.spend(ask.bytes, 1);
                Ok(self.open_files.insert(Arc::new(open)))
            }
            None => self.open(&file, Purpose::Use).ok_or(NotKept::Io),
        }
    }

    /// Removes a file that nobody else changes now. Its readers keep what they have open.
    pub fn remove(&self, locked: &LockedFile<'_>) -> Result<Held, NotKept> {
        let open = locked.open();
        let gone = held_by(open).map_err(|error| NotKept::of_io(&error))?;
        self.open_files.remove(open.layout.file.content);
        self.update(|held| {
            if open.is_linked() {
                unlink_pair(&self.paths(open.layout.file.content)).map_err(|error| self.fault(&error))?;
                held.release(gone);
                held.changes += 1;
            }
            Ok(())
        })??;
        Ok(gone)
    }

    /// Removes a file that is damaged, and counts it.
    pub fn discard(&self, open: &OpenFile) {
        if let Some(borrowed) = &self.borrowed {
            return self.distrust(borrowed, open.layout.file.content);
        }
        tracing::warn!(content = %open.layout.file.content, dir = ?self.config.dir, "store file dropped");
        add(&self.counters.damaged_files, 1);
        self.open_files.remove(open.layout.file.content);
        if open.is_linked() {
            self.remove_by_name(open.layout.file.content);
        }
    }

    /// Leaves a file to its owner that does not fit.
    pub fn distrust(&self, borrowed: &Borrowed, content: ContentId) {
        tracing::warn!(%content, dir = ?self.config.dir, "a worker's store file does not fit; it is read through the data port");
        borrowed.distrust(content);
        self.open_files.remove(content);
    }

    /// Removes the files of a content without trusting its sidecar.
    fn remove_by_name(&self, content: ContentId) {
        if let Some(borrowed) = &self.borrowed {
            return self.distrust(borrowed, content);
        }
        let paths = self.paths(content);
        let removed = self.update(|held| {
            let size = |path: &PathBuf| fs::metadata(path).map_or(0, |metadata| metadata.blocks() * 512);
            let bytes = paths.iter().map(size).map(|bytes| bytes.next_multiple_of(PAGE_BYTES)).sum();
            unlink_pair(&paths).map_err(|error| self.fault(&error))?;
            held.release(Held { bytes, files: 1, ..Held::default() });
            held.changes += 1;
            Ok::<_, NotKept>(())
        });
        if let Ok(Err(reason)) | Err(reason) = removed {
            tracing::debug!(content = %content, dir = ?self.config.dir, ?reason, "damaged store file stays");
        }
    }

    /// Takes bytes from the quota, if they may be kept.
    pub fn reserve(&self, ask: &Ask) -> Result<(), NotKept> {
        self.room.check(&self.config.dir, ask.bytes, ask.files)?;
        self.update(|held| {
            *held = admit(held, &self.bounds(), ask)?;
            Ok(())
        })??;
        self.room.spend(ask.bytes, ask.files);
        Ok(())
    }

    /// Gives bytes back.
    pub fn release(&self, gone: Held) {
        // What cannot be given back now is found by the next count.
        if gone != Held::default() {
            let _ = self.update(|held| held.release(gone));
        }
    }

    /// Changes the usage record.
    pub fn update<R>(&self, change: impl FnOnce(&mut Held) -> R) -> Result<R, NotKept> {
        let mut usage = self.usage.lock();
        // Those who queued here while one waited for a stopped process do not each wait as long.
        if self.paused() == Some(NotKept::Busy) {
            return Err(NotKept::Busy);
        }
        let file = self.ready(&mut usage)?;
        match file.update(change) {
            Ok(answer) => Ok(answer),
            Err(UseUsage::Busy) => {
                self.pause(NotKept::Busy, BUSY_PAUSE_MILLIS);
                Err(NotKept::Busy)
            }
            Err(UseUsage::Damaged) => {
                // Counted again by the next change.
                *usage = None;
                Err(NotKept::Busy)
            }
            Err(UseUsage::Io(error)) => Err(self.fault(&error)),
        }
    }

    /// What the tier holds.
    pub fn held(&self) -> Held {
        let usage = self.usage.lock();
        let held = usage.as_ref().and_then(|file| file.peek().ok());
        held.or_else(|| read_usage(&self.config.dir)).unwrap_or_default()
    }

    fn ready<'a>(&self, usage: &'a mut Option<UsageFile>) -> Result<&'a UsageFile, NotKept> {
        if usage.is_none() {
            *usage = Some(open_usage(self).map_err(|error| match error {
                OpenTier::Io(error) => self.fault(&error),
                OpenTier::Version(_) | OpenTier::Locked => NotKept::Busy,
            })?);
        }
        usage.as_ref().ok_or(NotKept::Io)
    }

    /// Leaves the tier alone for a while after an error of its file system.
    pub fn fault(&self, error: &io::Error) -> NotKept {
        let reason = NotKept::of_io(error);
        let pause = if reason == NotKept::NoSpace { FULL_PAUSE_MILLIS } else { FAULT_PAUSE_MILLIS };
        if self.paused().is_none() {
            tracing::warn!(dir = ?self.config.dir, error = %error, "store folder takes no more for a while");
        }
        self.pause(reason, pause);
        self.room.forget();
        reason
    }

    fn pause(&self, reason: NotKept, millis: u64) {
        self.pause_reason.store(reason as u8, Ordering::Relaxed);
        self.pause_until_millis.store(self.clock.millis() + millis, Ordering::Relaxed);
    }

    /// Uses the tier again, after room was made.
    pub fn end_pause(&self) {
        self.pause_until_millis.store(0, Ordering::Relaxed);
        self.room.forget();
    }

    /// Why the tier is left alone now.
    pub fn paused(&self) -> Option<NotKept> {
        let until = self.pause_until_millis.load(Ordering::Relaxed);
        if until == 0 || self.clock.millis() >= until {
            return None;
        }
        NotKept::ALL.get(usize::from(self.pause_reason.load(Ordering::Relaxed))).copied()
    }

    /// Whether the floors of free space and inodes are asked of this tier.
    pub fn has_floors(medium: Medium) -> bool {
        // A tmpfs is bounded by the quota and the memory limit; its inodes are no one else's.
        medium == Medium::Disk
    }
}

/// The folder of all store files of the tier in `dir`.
pub(crate) fn blocks_dir(dir: &Path) -> PathBuf {
    dir.join("blocks")
}

/// What a store file takes from the quota, by its sidecar.
pub(crate) fn held_by(open: &OpenFile) -> io::Result<Held> {
    let mut held = Held { bytes: open.layout.allocated_bytes(), files: 1, ..Held::default() };
    for record in open.records()? {
        held.bytes += record.bytes();
        held.read_through_bytes += if record.is_read_through { record.bytes() } else { 0 };
    }
    Ok(held)
}
