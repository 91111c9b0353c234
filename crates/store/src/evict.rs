//! What goes when a tier is full?
//!
//! First content that no version in use needs, then what was read through for others, then, only where the store is
//! LRU, the blocks that were not read for the longest time. A search looks at the sidecars of the whole tier and
//! remembers the first of that order; who needs room takes from its head until there is enough. How far down the order a
//! write may go is said by [`Yield`].

use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;

use millrace_api::block::CHUNK_BYTES;
use millrace_api::ids::ContentId;

use crate::admit::{Ask, admit};
use crate::config::Eviction;
use crate::open_file::{LEASE_STAMPS, LockedFile, OpenFile};
use crate::pair::{Opened, open_pair};
use crate::recount::contents;
use crate::seal::Seal;
use crate::sidecar::{MARK_UNUSED, PAGE_BYTES, Record};
use crate::stats::{NotKept, add};
use crate::tier::{Purpose, Tier};
use crate::usage::Held;
use crate::whole::Unheld;

/// Blocks remembered by one search: 32 GiB of blocks of the default size, so that a search over a hundred thousand
/// files (half a second) comes once in minutes.
const VICTIMS: usize = 4096;

/// A search takes at most this part of the LRU blocks, so that their order is not stale when their turn comes.
const LRU_PART: usize = 8;

/// Searches for one write that needs room: a second one where the blocks of the first were used meanwhile.
const MAX_SEARCHES: u32 = 2;

/// Room made at once beyond what is needed: this part of the quota.
const BATCH_PART: u64 = 256;

/// Why room is wanted, and how much.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub reason: NotKept,
    pub ask: Ask,
}

/// How much a tier gives up for a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Yield {
    /// Nothing: the write takes what is free.
    Nothing,
    /// What no version in use needs, and what was read through for others.
    Spare,
    /// Where the store is LRU, also the blocks that were not read for the longest time.
    LeastRecent,
}

/// In which order blocks go; smaller first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Unused,
    ReadThrough,
    LeastRecent,
}

/// A block that may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Victim {
    rank: Rank,
    stamp: u32,
    content: ContentId,
    block: u32,
}

/// What the last searches found, for each class: blocks of the owned share, and those read through for others.
#[derive(Debug, Default)]
pub(crate) struct Victims {
    owned: Queue,
    read_through: Queue,
}

/// Blocks of one class, the first to go at the end.
#[derive(Debug, Default)]
struct Queue {
    blocks: Vec<Victim>,
    /// What the usage record said when a search last found nothing, and when that was.
    none_at: Option<(u64, u64)>,
}

impl Tier {
    /// Evicts until there is room or nothing may go; true if it is worth trying again.
    pub(crate) fn make_room(&self, wanted: &Wanted, yields: Yield) -> bool {
        if yields == Yield::Nothing {
            return false;
        }
        let Wanted { reason, ask } = wanted;
        let mut victims = self.victims.lock();
        let Victims { owned, read_through } = &mut *victims;
        let queues = match reason {
            // Each class has its own share, so room for one comes from its own blocks.
            NotKept::Quota if ask.is_read_through => vec![(read_through, true)],
            NotKept::Quota => vec![(owned, false)],
            NotKept::Files | NotKept::FreeSpace | NotKept::FreeInodes | NotKept::NoSpace => {
                vec![(read_through, true), (owned, false)]
            }
            NotKept::Disabled | NotKept::ReadOnly | NotKept::Io | NotKept::Busy | NotKept::Invalid => {
                return false;
            }
        };
        let mut freed = Held::default();
        for (queue, is_read_through) in queues {
            self.empty(queue, is_read_through, wanted, yields, &mut freed);
        }
        if freed == Held::default() {
            return false;
        }
        self.end_pause();
        true
    }

    /// When the block was last read that is the next to go of those in use; `None` where none may go.
    pub(crate) fn least_recent(&self) -> Option<u32> {
        let mut victims = self.victims.lock();
        let queue = &mut victims.owned;
        let mut searches = 0;
        loop {
            match queue.blocks.last() {
                Some(victim) if self.is_as_found(victim) => return Some(victim.stamp),
                Some(_) => drop(queue.blocks.pop()),
                None => {
                    if !self.refill(queue, false, &mut searches) {
                        return None;
                    }
                }
            }
        }
    }

    /// Whether a block was not used since the search.
    fn is_as_found(&self, victim: &Victim) -> bool {
        let open = self.open_content(victim.content, Purpose::Look);
        let record = open.and_then(|open| open.record(victim.block).ok());
        record.is_some_and(|record| record.stamp == victim.stamp)
    }

    /// Evicts from one queue as much as is wanted and may go, and fills it by a search when it is empty.
    fn empty(
        &self,
        queue: &mut Queue,
        is_read_through: bool,
        wanted: &Wanted,
        yields: Yield,
        freed: &mut Held,
    ) {
        let mut searches = 0;
        while !self.is_enough(wanted, freed) {
            let Some(victim) = queue.blocks.last() else {
                if self.refill(queue, is_read_through, &mut searches) {
                    continue;
                }
                return;
            };
            if victim.rank == Rank::LeastRecent && yields != Yield::LeastRecent {
                return;
            }
            let Some(victim) = queue.blocks.pop() else { return };
            if let Some(gone) = self.evict(&victim, self.eviction) {
                freed.bytes += gone.bytes;
                freed.files += gone.files;
            }
        }
    }

    /// Searches for blocks that may go, the `searches`th time for one write; false where that would find none.
    fn refill(&self, queue: &mut Queue, is_read_through: bool, searches: &mut u32) -> bool {
        let held = self.held();
        let now = (held.changes ^ held.read_through_bytes.rotate_left(32), self.clock.millis());
        // A least recent block may have come out of its lease meanwhile, so an LRU store looks again after it.
        let is_same = queue.none_at.is_some_and(|(changes, millis)| {
            changes == now.0
                && (self.eviction == Eviction::Never || now.1 < millis + 256 * u64::from(LEASE_STAMPS))
        });
        if *searches == MAX_SEARCHES || is_same {
            return false;
        }
        *searches += 1;
        queue.blocks = self.search(is_read_through, self.eviction);
        queue.none_at = queue.blocks.is_empty().then_some(now);
        true
    }

    /// Evicts what is above a quota that was lowered since the last opening, also where nothing is evicted otherwise.
    pub(crate) fn shrink_to_quota(&self) {
        for is_read_through in [true, false] {
            loop {
                let before = self.held().bytes;
                if before <= self.quota_bytes() {
                    return;
                }
                for victim in self.search(is_read_through, Eviction::Lru).iter().rev() {
                    if self.held().bytes <= self.quota_bytes() {
                        break;
                    }
                    self.evict(victim, Eviction::Lru);
                }
                if self.held().bytes >= before {
                    break;
                }
            }
        }
    }

    /// Whether what was freed covers what is wanted, and a batch more.
    fn is_enough(&self, wanted: &Wanted, freed: &Held) -> bool {
        let batch_bytes = self.quota_bytes() / BATCH_PART;
        match wanted.reason {
            NotKept::Quota => {
                freed.bytes >= batch_bytes && admit(&self.held(), &self.bounds(), &wanted.ask).is_ok()
            }
            NotKept::Files | NotKept::FreeInodes => freed.files >= wanted.ask.files.max(1),
            _ => freed.bytes >= wanted.ask.bytes.max(batch_bytes),
        }
    }

    /// The blocks of a class that may go, the first to go last.
    fn search(&self, is_read_through: bool, eviction: Eviction) -> Vec<Victim> {
        let mut first = BinaryHeap::new();
        let mut least_recent = 0;
        for content in contents(&self.config.dir) {
            // Beside the open files, which a search of all would otherwise push out.
            let Ok(Opened::File(open)) = open_pair(&self.paths(content), content) else { continue };
            let Ok(records) = open.records() else { continue };
            let Ok(seal) = open.seal() else { continue };
            let of_file =
                victims_of(content, &records, open.is_marked(MARK_UNUSED), eviction, is_read_through);
            // What the kernel may read goes whole, when none of it is wanted any more.
            let of_file = match seal.is_handed_over() {
                true if open.is_held() => continue,
                true => newest(of_file),
                false => of_file,
            };
            for victim in of_file {
                least_recent += usize::from(victim.rank == Rank::LeastRecent);
                first.push(victim);
                if first.len() > VICTIMS {
                    first.pop();
                }
            }
        }
        let mut victims = first.into_sorted_vec();
        let sooner = victims.partition_point(|victim| victim.rank < Rank::LeastRecent);
        victims.truncate(sooner + least_recent.div_ceil(LRU_PART));
        victims.reverse();
        victims
    }

    /// Evicts one block, unless it was used since the search; what that freed.
    fn evict(&self, victim: &Victim, eviction: Eviction) -> Option<Held> {
        let open = self.open_content(victim.content, Purpose::Look)?;
        let gone = match self.evict_open(&open, victim, eviction) {
            Ok(gone) => gone?,
            Err(reason) => {
                tracing::debug!(content = %victim.content, block = victim.block, ?reason, "block not evicted");
                return None;
            }
        };
        add(&self.counters.evicted_blocks, 1);
        add(&self.counters.evicted_bytes, gone.bytes);
        Some(gone)
    }

    fn evict_open(
        &self,
        open: &Arc<OpenFile>,
        victim: &Victim,
        eviction: Eviction,
    ) -> Result<Option<Held>, NotKept> {
        let io = |error: io::Error| NotKept::of_io(&error);
        let Some(locked) = open.try_lock()? else { return Ok(None) };
        if !open.is_linked() {
            self.open_files.remove(victim.content);
            return Ok(None);
        }
        let records = open.records().map_err(io)?;
        let is_unused = open.reread_mark(MARK_UNUSED).map_err(io)?;
        let Some(record) = records.get(victim.block as usize) else { return Ok(None) };
        if rank(record, is_unused, eviction) != Some(victim.rank) {
            return Ok(None);
        }
        let is_handed_over = open.seal().map_err(io)?.is_handed_over();
        // Held until the file is gone, so that nobody gives it to the kernel meanwhile.
        let unheld = if is_handed_over { Unheld::of(&locked).map_err(io)? } else { None };
        if is_handed_over && unheld.is_none() {
            return Ok(None);
        }
        let is_last = (0..).zip(&records).all(|(block, record)| block == victim.block || record.pages == 0);
        if victim.rank == Rank::Unused {
            return self.remove(&locked).map(Some);
        }
        if record.stamp != victim.stamp {
            return Ok(None);
        }
        if is_last {
            return self.remove(&locked).map(Some);
        }
        if is_handed_over {
            let newest = records.iter().map(|record| record.stamp).max().unwrap_or(0);
            let is_wanted = newest != victim.stamp || self.stamp().saturating_sub(newest) < LEASE_STAMPS;
            return if is_wanted { Ok(None) } else { self.remove(&locked).map(Some) };
        }
        if self.stamp().saturating_sub(record.stamp) < LEASE_STAMPS {
            return Ok(None);
        }
        self.clear_block(&locked, victim.block, *record)
    }

    /// Takes one block out of a file that keeps others.
    fn clear_block(
        &self,
        locked: &LockedFile<'_>,
        block: u32,
        record: Record,
    ) -> Result<Option<Held>, NotKept> {
        let io = |error: io::Error| self.fault(&error);
        let file = locked.open().layout.file;
        let slots = file.slots_of(block);
        let raw = locked.raw_entries(slots.clone()).map_err(io)?;
        locked.set_raw_entries(slots.start, &vec![0; raw.len()]).map_err(io)?;
        // A reader stamps the block before it reads the entries, so one that still saw them shows here.
        let now = locked.open().record(block).map_err(io)?;
        if now.stamp != record.stamp {
            locked.set_raw_entries(slots.start, &raw).map_err(io)?;
            return Ok(None);
        }
        if locked.open().seal().map_err(io)? != Seal::Open {
            locked.set_seal(Seal::Open).map_err(io)?;
        }
        let offset = u64::from(slots.start) * CHUNK_BYTES;
        let len = (slots.len() as u64 * CHUNK_BYTES).min(file.len - offset).next_multiple_of(PAGE_BYTES);
        let punched = locked.punch(offset, len);
        locked.set_record(block, Record { pages: 0, is_read_through: false, ..record }).map_err(io)?;
        punched.map_err(io)?;
        let gone = Held {
            bytes: record.bytes(),
            read_through_bytes: if record.is_read_through { record.bytes() } else { 0 },
            ..Held::default()
        };
        self.release(gone);
        Ok(Some(gone))
    }

    /// Marks every store file for whose content `is_unused` says so.
    pub(crate) fn mark_unused_where(&self, is_unused: impl Fn(ContentId) -> bool) {
        self.mark_unused(contents(&self.config.dir).filter(|content| is_unused(*content)));
    }

    /// Marks the store files of contents that no version in use needs.
    pub(crate) fn mark_unused(&self, contents: impl Iterator<Item = ContentId>) {
        for content in contents {
            self.open_files.forget_use(content);
            if let Some(open) = self.open_files.peek(content) {
                self.set_unused(&open, true);
            } else if let Ok(Opened::File(open)) = open_pair(&self.paths(content), content) {
                self.set_unused(&open, true);
            }
        }
        // Lets a search for room begin anew, in all processes.
        let _ = self.update(|held| held.changes += 1);
        *self.victims.lock() = Victims::default();
    }
}

/// The blocks of one store file that may go to make room for a class. A file that is unused goes whole, as its block 0.
fn victims_of(
    content: ContentId,
    records: &[Record],
    is_unused: bool,
    eviction: Eviction,
    is_read_through: bool,
) -> Vec<Victim> {
    if is_unused {
        // A file that holds nothing yet counts as owned.
        let all_read_through = records.iter().any(|record| record.pages > 0)
            && records.iter().all(|record| record.pages == 0 || record.is_read_through);
        let stamp = records.iter().map(|record| record.stamp).max().unwrap_or(0);
        let victim = Victim { rank: Rank::Unused, stamp, content, block: 0 };
        return if all_read_through == is_read_through { vec![victim] } else { vec![] };
    }
    (0..)
        .zip(records)
        .filter(|(_, record)| record.is_read_through == is_read_through)
        .filter_map(|(block, record)| {
            let rank = rank(record, false, eviction)?;
            Some(Victim { rank, stamp: record.stamp, content, block })
        })
        .collect()
}

/// The block of a file that was used last, which stands for all of it.
fn newest(victims: Vec<Victim>) -> Vec<Victim> {
    victims.into_iter().max_by_key(|victim| victim.stamp).into_iter().collect()
}

/// When a block may go; `None` for one that is empty or stays.
fn rank(record: &Record, is_unused: bool, eviction: Eviction) -> Option<Rank> {
    if is_unused {
        return Some(Rank::Unused);
    }
    match (record.pages, record.is_read_through, eviction) {
        (0, _, _) => None,
        (_, true, _) => Some(Rank::ReadThrough),
        (_, false, Eviction::Lru) => Some(Rank::LeastRecent),
        (_, false, Eviction::Never) => None,
    }
}
