//! What may a store use, and what goes first when it is full?

use std::path::PathBuf;

use crate::clock::Clock;

/// Share of each tier that is kept for what a worker reads through for others (DESIGN: placement).
pub const READ_THROUGH_PERCENT: u8 = 5;

/// Default bound on store files of a tier: two inodes each, a tenth of what ext4 makes on 256 GiB.
pub const MAX_FILES: u64 = 1 << 20;

/// Default floor of free space: below it kubelet's own disk pressure (10 % or 15 % by default) would be near anyway; guess.
pub const FREE_SPACE_FLOOR_BYTES: u64 = 256 << 20;

/// Default floor of free inodes; guess, a few thousand leave room for logs and unpacked images.
pub const FREE_INODES_FLOOR: u64 = 4096;

/// Default bound on store files held open, two descriptors each.
pub const OPEN_FILES: usize = 512;

/// What a tier is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Medium {
    /// A folder on a disk.
    Disk,
    /// A folder on a tmpfs; counts into the memory limit.
    Memory,
}

/// One folder of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierConfig {
    /// The folder; made if it is not there. Everything in it belongs to the store.
    pub dir: PathBuf,
    /// What the folder lies on.
    pub medium: Medium,
    /// Upper bound of what the store allocates there, bytes. 0 switches the tier off.
    pub quota_bytes: u64,
}

/// What makes room in a full store. Content marked unused goes first in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Eviction {
    /// Nothing: a full store admits no more.
    #[default]
    Never,
    /// The blocks that were not read for the longest time.
    Lru,
}

/// Bounds besides the quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most store files in a tier.
    pub max_files: u64,
    /// Free space that must be left on the file system of a tier, bytes. Not asked of a Memory tier, which its quota bounds.
    pub free_space_floor_bytes: u64,
    /// Inodes that must be left on the file system of a tier.
    pub free_inodes_floor: u64,
    /// Share of each quota kept for [`Class::ReadThrough`](crate::Class::ReadThrough), percent, 0 to 50. 0 for a node's store.
    pub read_through_percent: u8,
    /// Most store files held open, two descriptors each.
    pub open_files: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_files: MAX_FILES,
            free_space_floor_bytes: FREE_SPACE_FLOOR_BYTES,
            free_inodes_floor: FREE_INODES_FLOOR,
            read_through_percent: READ_THROUGH_PERCENT,
            open_files: OPEN_FILES,
        }
    }
}

/// How to open a store.
#[derive(Debug, Clone, Default)]
pub struct StoreConfig {
    /// The folders, fastest first. Empty: a store that keeps nothing.
    pub tiers: Vec<TierConfig>,
    /// What makes room.
    pub eviction: Eviction,
    /// Bounds besides the quotas.
    pub limits: Limits,
    /// Time.
    pub clock: Clock,
}
