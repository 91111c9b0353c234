//! Into which folders does a store look, and in which order?
//!
//! Its own, in the order of the configuration, and then those that it has borrowed. Only its own are written to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use rustix::process::{Resource, getrlimit};

use crate::borrowed::{Borrowed, BorrowedFolder};
use crate::clock::Clock;
use crate::config::{Eviction, Limits, Medium, StoreConfig, TierConfig};
use crate::opening::{OpenTier, open_usage};
use crate::room::{Floors, Room};
use crate::stats::{Counters, NotKept};
use crate::store::OpenStore;
use crate::tier::{Tier, TierParts};

/// Most files held open of each borrowed folder, two descriptors each: a loader with as many readers. Guess.
const BORROWED_OPEN_FILES: usize = 256;

/// All folders of a store.
#[derive(Debug)]
pub(crate) struct Tiers {
    own: Vec<Tier>,
    borrowed: RwLock<Arc<[Guest]>>,
    /// Whether borrowed files are kept from the kernel.
    is_kept_from_kernel: AtomicBool,
    limits: Limits,
    clock: Clock,
    pub counters: Arc<Counters>,
}

/// A borrowed folder.
#[derive(Debug, Clone)]
struct Guest {
    folder: BorrowedFolder,
    tier: Arc<Tier>,
}

impl Tiers {
    /// Opens the store's own folders.
    pub fn open(config: StoreConfig) -> Result<Self, OpenStore> {
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
            Tier::new(TierParts {
                config,
                limits,
                eviction,
                clock,
                counters,
                room,
                open_files,
                borrowed: None,
            })
        };
        let own: Vec<Tier> = tiers.into_iter().map(make).collect();
        own.iter().try_for_each(open_tier)?;
        let (borrowed, is_kept_from_kernel) = (RwLock::default(), AtomicBool::new(false));
        Ok(Self { own, borrowed, is_kept_from_kernel, limits, clock, counters })
    }

    /// Those that are written to.
    pub fn own(&self) -> &[Tier] {
        &self.own
    }

    /// The answer of the first folder that has one, and whether that is borrowed.
    pub fn find<R>(&self, mut look: impl FnMut(&Tier) -> Option<R>) -> Option<(R, bool)> {
        if let Some(found) = self.own.iter().find_map(&mut look) {
            return Some((found, false));
        }
        let borrowed = self.borrowed.read().clone();
        borrowed.iter().find_map(|guest| look(&guest.tier)).map(|found| (found, true))
    }

    /// The same, for files that the kernel is to read itself.
    pub fn find_for_kernel<R>(&self, look: impl FnMut(&Tier) -> Option<R>) -> Option<(R, bool)> {
        if self.is_kept_from_kernel.load(Ordering::Relaxed) {
            return self.own.iter().find_map(look).map(|found| (found, false));
        }
        self.find(look)
    }

    /// Has borrowed files read by this process only.
    pub fn keep_borrowed_from_kernel(&self) {
        self.is_kept_from_kernel.store(true, Ordering::Relaxed);
    }

    /// Calls `each` with all folders, as long as it says that it wants more.
    pub fn visit(&self, mut each: impl FnMut(&Tier) -> bool) {
        self.find(|tier| (!each(tier)).then_some(()));
    }

    /// Borrows exactly these folders from now on; says how many of them could be opened.
    pub fn borrow(&self, folders: &[BorrowedFolder]) -> usize {
        let before = self.borrowed.read().clone();
        let kept = |folder: &BorrowedFolder| before.iter().find(|guest| guest.folder == *folder).cloned();
        let guests = folders.iter().filter_map(|folder| kept(folder).or_else(|| self.open_guest(folder)));
        let guests: Arc<[Guest]> = guests.collect();
        let count = guests.len();
        *self.borrowed.write() = guests;
        count
    }

    fn open_guest(&self, folder: &BorrowedFolder) -> Option<Guest> {
        let borrowed = match Borrowed::open(folder) {
            Ok(borrowed) => borrowed,
            Err(error) => {
                tracing::debug!(dir = ?folder.path(), error = %error, "borrow a store folder");
                return None;
            }
        };
        let tier = Tier::new(TierParts {
            config: TierConfig { dir: folder.path(), medium: Medium::Disk, quota_bytes: 0 },
            limits: self.limits,
            // Its owner may evict by the stamps of use.
            eviction: Eviction::Lru,
            clock: self.clock.clone(),
            counters: self.counters.clone(),
            room: Room::new(Floors { bytes: 0, inodes: 0 }),
            open_files: open_files_of(BORROWED_OPEN_FILES, 1),
            borrowed: Some(borrowed),
        });
        Some(Guest { folder: folder.clone(), tier: Arc::new(tier) })
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
    let descriptors = getrlimit(Resource::Nofile).current;
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
