//! What has a store done since it was opened?

use std::sync::atomic::{AtomicU64, Ordering};

/// Why bytes were served without being kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotKept {
    /// There is no tier, or every quota is 0.
    Disabled,
    /// The quota is used up and nothing may be evicted.
    Quota,
    /// The bound on store files is reached.
    Files,
    /// Free space of the file system is at its floor.
    FreeSpace,
    /// Free inodes of the file system are at their floor.
    FreeInodes,
    /// The file system answered ENOSPC or EDQUOT.
    NoSpace,
    /// The file system is read-only.
    ReadOnly,
    /// Another error of the file system.
    Io,
    /// Another process held a lock for too long.
    Busy,
    /// The bytes do not fit the object: a chunk past its end or of another length.
    Invalid,
}

impl NotKept {
    /// All reasons, in the order of [`Stats::not_kept`].
    pub const ALL: [NotKept; 10] = [
        NotKept::Disabled,
        NotKept::Quota,
        NotKept::Files,
        NotKept::FreeSpace,
        NotKept::FreeInodes,
        NotKept::NoSpace,
        NotKept::ReadOnly,
        NotKept::Io,
        NotKept::Busy,
        NotKept::Invalid,
    ];

    /// The reason that an error of the file system amounts to.
    pub(crate) fn of_io(error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => NotKept::NoSpace,
            Some(libc::EROFS) => NotKept::ReadOnly,
            // Whatever else a file system answers: EIO, ESTALE, EMFILE.
            _ => NotKept::Io,
        }
    }

    /// The reason as a metric label.
    pub fn label(self) -> &'static str {
        match self {
            NotKept::Disabled => "disabled",
            NotKept::Quota => "quota",
            NotKept::Files => "files",
            NotKept::FreeSpace => "free_space",
            NotKept::FreeInodes => "free_inodes",
            NotKept::NoSpace => "no_space",
            NotKept::ReadOnly => "read_only",
            NotKept::Io => "io",
            NotKept::Busy => "busy",
            NotKept::Invalid => "invalid",
        }
    }
}

/// Counters of one opened store, since it was opened. Chunks and bytes are those of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Chunks that were asked for and there.
    pub hit_chunks: u64,
    /// Bytes of those.
    pub hit_bytes: u64,
    /// Those of them that were in borrowed folders.
    pub borrowed_bytes: u64,
    /// Files of borrowed folders that were handed to the kernel.
    pub borrowed_pins: u64,
    /// Chunks that were asked for and not there.
    pub miss_chunks: u64,
    /// Chunks written.
    pub written_chunks: u64,
    /// Bytes of those.
    pub written_bytes: u64,
    /// Blocks evicted.
    pub evicted_blocks: u64,
    /// Bytes freed by that.
    pub evicted_bytes: u64,
    /// Chunks dropped because their bytes or their sidecar entry did not match the checksum.
    pub corrupt_chunks: u64,
    /// Store files dropped whole: sidecar unreadable, of another version, or the file vanished or cut short.
    pub damaged_files: u64,
    /// Reads that the file system answered with an error.
    pub read_errors: u64,
    /// Chunks not kept, by reason, in the order of [`NotKept::ALL`].
    pub not_kept: [u64; NotKept::ALL.len()],
}

/// What a store holds now, over all processes that share it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// The tiers, in the order of the configuration.
    pub tiers: Vec<TierUsage>,
}

impl Usage {
    /// Bytes held by all tiers.
    pub fn used_bytes(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.used_bytes).sum()
    }
}

/// What one tier holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierUsage {
    /// Allocated bytes: data and sidecars in whole 4 KiB pages.
    pub used_bytes: u64,
    /// Those of them that were read through for others.
    pub read_through_bytes: u64,
    /// Store files.
    pub files: u64,
    /// The quota, bytes.
    pub quota_bytes: u64,
}

/// The live counters behind [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub hit_chunks: AtomicU64,
    pub hit_bytes: AtomicU64,
    pub borrowed_bytes: AtomicU64,
    pub borrowed_pins: AtomicU64,
    pub miss_chunks: AtomicU64,
    pub written_chunks: AtomicU64,
    pub written_bytes: AtomicU64,
    pub evicted_blocks: AtomicU64,
    pub evicted_bytes: AtomicU64,
    pub corrupt_chunks: AtomicU64,
    pub damaged_files: AtomicU64,
    pub read_errors: AtomicU64,
    pub not_kept: [AtomicU64; NotKept::ALL.len()],
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Counters {
    pub fn count_not_kept(&self, reason: NotKept, chunks: u64) {
        add(&self.not_kept[reason as usize], chunks);
    }

    pub fn snapshot(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            hit_chunks: get(&self.hit_chunks),
            hit_bytes: get(&self.hit_bytes),
            borrowed_bytes: get(&self.borrowed_bytes),
            borrowed_pins: get(&self.borrowed_pins),
            miss_chunks: get(&self.miss_chunks),
            written_chunks: get(&self.written_chunks),
            written_bytes: get(&self.written_bytes),
            evicted_blocks: get(&self.evicted_blocks),
            evicted_bytes: get(&self.evicted_bytes),
            corrupt_chunks: get(&self.corrupt_chunks),
            damaged_files: get(&self.damaged_files),
            read_errors: get(&self.read_errors),
            not_kept: std::array::from_fn(|reason| get(&self.not_kept[reason])),
        }
    }
}
