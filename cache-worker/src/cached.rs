//! How much of each version does this worker own, and how much of that does it hold?
//!
//! Counted anew from index and store whenever the store or the membership has changed, at most as often as the counting
//! costs little. Counting again is slower than keeping count, and right whatever was evicted, damaged or found at start.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millrace_api::block::StoreFile;
use millrace_api::ids::VersionId;
use millrace_api::index::{FileIndex, PackIndex};
use millrace_api::placement::Membership;
use millrace_store::Store;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::members::Members;
use crate::versions::{Object, Version, Versions};

/// How often a change is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Counting may take this share of the time: one in twenty.
const REST_FACTOR: u32 = 20;

/// Sums over a worker's share of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// Bytes of objects.
    pub bytes: u64,
    /// Objects, each counted by the owner of its first block.
    pub objects: u64,
    /// Blocks and packs.
    pub blocks: u64,
}

/// What a worker owns of a version, and holds of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shares {
    /// What it owns.
    pub owned: Share,
    /// What it holds of that; blocks that are whole, objects of which it holds all that it owns.
    pub cached: Share,
}

/// What was counted, and of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    epoch: u64,
    changes: u64,
}

/// The counts of all versions.
#[derive(Debug)]
pub struct CachedCounts {
    store: Store,
    versions: Arc<Versions>,
    members: Arc<Members>,
    counted: Mutex<HashMap<VersionId, (Seen, Shares)>>,
}

impl CachedCounts {
    /// Nothing counted yet.
    pub fn new(store: Store, versions: Arc<Versions>, members: Arc<Members>) -> Arc<Self> {
        Arc::new(Self { store, versions, members, counted: Mutex::default() })
    }

    /// The last count of a version.
    pub fn now(&self, version: &VersionId) -> Shares {
        self.counted.lock().get(version).map(|(_, shares)| *shares).unwrap_or_default()
    }

    /// Counts whenever something has changed, until stopped.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let started = Instant::now();
            for version in self.versions.all() {
                let (counts, stop) = (Arc::clone(&self), stop.clone());
                let counting = tokio::task::spawn_blocking(move || counts.count(&version, &stop));
                // A panic has been logged by the hook; the last count stays.
                if counting.await.is_err() {
                    return;
                }
            }
            self.counted.lock().retain(|id, _| self.versions.get(id).is_some());
            let rest = (started.elapsed() * REST_FACTOR).max(LOOK_EVERY);
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    fn count(&self, version: &Version, stop: &CancellationToken) {
        let membership = self.members.current();
        let stats = self.store.stats();
        let changes =
            stats.written_chunks + stats.evicted_blocks + stats.corrupt_chunks + stats.damaged_files;
        let seen = Seen { epoch: membership.epoch, changes };
        if self.counted.lock().get(&version.id).is_some_and(|(before, _)| *before == seen) {
            return;
        }
        let shares = shares(version, &self.store, &self.members, &membership, || stop.is_cancelled());
        if let Some(shares) = shares {
            self.counted.lock().insert(version.id, (seen, shares));
        }
    }
}

/// Counts a version; `None` where it was stopped.
fn shares(
    version: &Version,
    store: &Store,
    members: &Members,
    membership: &Membership,
    is_stopped: impl Fn() -> bool,
) -> Option<Shares> {
    let view = version.view();
    let totals = view.totals();
    let mut shares = Shares::default();
    for pack in (0..totals.packs).map(PackIndex) {
        if let Some(found) = view.pack(pack)
            && members.owned_in(membership, found.placement)
        {
            count_pack(version, pack, &found.file, store, &mut shares);
        }
        if is_stopped() {
            return None;
        }
    }
    // Empty objects are in no block and always there: the first worker counts them, so that all add up to the version.
    let counts_empty = membership.workers.first().is_none_or(|first| first.name == members.name());
    for file in (0..totals.files).map(FileIndex) {
        // Packed ones are counted.
        if view.pack_of(file).is_some() {
            continue;
        }
        if view.file(file).is_none_or(|record| record.size == 0) {
            shares.owned.objects += u64::from(counts_empty);
            shares.cached.objects += u64::from(counts_empty);
            continue;
        }
        if let Some(object) = version.look_up(file) {
            count_large(&object, store, members, membership, &mut shares);
        }
        if is_stopped() {
            return None;
        }
    }
    Some(shares)
}

fn count_pack(version: &Version, pack: PackIndex, file: &StoreFile, store: &Store, shares: &mut Shares) {
    let view = version.view();
    let presence = store.present(file, 0..file.slots);
    shares.owned.blocks += 1;
    shares.cached.blocks += u64::from(presence.is_full());
    let is_empty = presence.count() == 0;
    for member in view.pack_members(pack) {
        let Some(record) = view.file(member) else { continue };
        shares.owned.objects += 1;
        shares.owned.bytes += record.size;
        if is_empty {
            continue;
        }
        let Some(span) = view.span(member) else { continue };
        let held =
            span.chunks().filter_map(|chunk| span.place(chunk)).filter(|place| presence.contains(place.slot));
        let bytes: u64 = held.map(|place| u64::from(place.len)).sum();
        shares.cached.bytes += bytes;
        shares.cached.objects += u64::from(bytes == record.size);
    }
}

fn count_large(
    object: &Object,
    store: &Store,
    members: &Members,
    membership: &Membership,
    shares: &mut Shares,
) {
    let span = &object.span;
    let (mut is_first_ours, mut is_whole) = (false, true);
    for block in 0..span.file.blocks() {
        if !members.owned_in(membership, object.placement(block)) {
            continue;
        }
        is_first_ours |= block == 0;
        let slots = span.file.slots_of(block);
        let presence = store.present(&span.file, slots.clone());
        let len = |slot: u32| span.place(slot).map_or(0, |place| u64::from(place.len));
        shares.owned.blocks += 1;
        shares.owned.bytes += slots.clone().map(len).sum::<u64>();
        shares.cached.blocks += u64::from(presence.is_full());
        shares.cached.bytes += slots.filter(|slot| presence.contains(*slot)).map(len).sum::<u64>();
        is_whole &= presence.is_full();
    }
    if is_first_ours {
        shares.owned.objects += 1;
        shares.cached.objects += u64::from(is_whole);
    }
}
