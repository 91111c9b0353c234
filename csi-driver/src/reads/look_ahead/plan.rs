//! What should be fetched next that nobody has asked for yet?
//!
//! Pure: it sees reads and stalls, and the time as it is told. Three reasons to fetch, in this order:
//!
//! - *Touched*: a read missed in a pack. In a shuffled epoch each of the pack's other files is read soon, somewhere.
//! - *Next*: files of a folder are read in the order in which they are listed; the next ones follow.
//! - *Idle*: readers have touched so much of the version that they will read it all, and nobody waits for anything now.
//!
//! The first and the last only where all of the version fits the node store: else it would evict what it brings.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use millrace_api::block::LARGE_OBJECT_BYTES;
use millrace_api::index::{DirIndex, FileIndex, IndexView, Node, PackIndex};

/// How long nobody must have waited before idle fetches go on. Shorter than a training step, longer than the gaps between
/// the reads of one batch; guess.
pub const QUIET: Duration = Duration::from_millis(50);

/// Share of the version's bytes that readers must have missed before idle fetches begin, packs counted whole: one in so many.
/// A pod that only looks into a dataset does not bring all of it to its node; guess.
const IDLE_SHARE: u64 = 16;

/// Most touched packs that wait to be filled; older ones are left to idle fetches.
const MAX_TOUCHED: usize = 256;

/// Most folders whose readers are followed.
const MAX_DIRS: usize = 256;

/// Files read in listing order before the next ones are fetched.
const IN_ORDER: u32 = 2;

/// Most files fetched ahead of a reader in listing order.
const MAX_NEXT_FILES: u32 = 128;

/// Most bytes fetched ahead of a reader in listing order: a third of what may be under way. A large file counts with its first
/// [`NEXT_HEAD_BYTES`].
const MAX_NEXT_BYTES: u64 = 8 << 20;

/// How much of a large file is fetched before anybody opens it; its reader's own read-ahead goes on from there.
pub const NEXT_HEAD_BYTES: u64 = 2 << 20;

/// How much of a large file is fetched idly before anything else gets its turn.
const IDLE_PART_BYTES: u64 = 64 << 20;

/// What to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What {
    /// A pack, beginning with the members from this file on.
    Pack(PackIndex, FileIndex),
    /// The bytes of a file from the first number to the second, or to its end.
    Part(FileIndex, u64, u64),
}

/// Why to fetch it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// A read missed in the pack.
    Touched,
    /// It is next in listing order.
    Next,
    /// It completes the node store.
    Idle,
}

/// A read that came to us.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// The file.
    pub file: FileIndex,
    /// How much of it is read.
    pub bytes: u64,
    /// Whether it is its first bytes that are read.
    pub is_start: bool,
    /// Whether the node store did not have them.
    pub is_miss: bool,
}

/// Plans for one mount.
#[derive(Debug)]
pub struct Planner {
    fits: bool,
    bytes: u64,
    touched_bytes: u64,
    packs: Bits,
    touched: VecDeque<(PackIndex, FileIndex)>,
    next: VecDeque<(FileIndex, u64)>,
    dirs: HashMap<DirIndex, Run>,
    uses: u64,
    idle_pack: u32,
    idle_file: u32,
    idle_offset: u64,
    stalls: u32,
    last_disturbed: Duration,
}

/// A reader that goes through a folder.
#[derive(Debug, Clone, Copy)]
struct Run {
    last: u32,
    length: u32,
    ahead_to: u32,
    used: u64,
}

impl Planner {
    /// Plans for a version that fits the node store, or not.
    pub fn new(index: IndexView<'_>, fits: bool) -> Self {
        Self {
            fits,
            bytes: version_bytes(index),
            touched_bytes: 0,
            packs: Bits::new(index.totals().packs),
            touched: VecDeque::new(),
            next: VecDeque::new(),
            dirs: HashMap::new(),
            uses: 0,
            idle_pack: 0,
            idle_file: 0,
            idle_offset: 0,
            stalls: 0,
            last_disturbed: Duration::ZERO,
        }
    }

    /// The node store takes no more: what was fetched ahead would be lost.
    pub fn stop_filling(&mut self) {
        self.fits = false;
        self.touched.clear();
    }

    /// Sees a read.
    pub fn read(&mut self, index: IndexView<'_>, seen: Seen) {
        let Seen { file, bytes, is_start, is_miss } = seen;
        let pack = index.pack_of(file);
        if self.fits && is_miss {
            match pack {
                Some(pack) if self.packs.insert(pack.0) => {
                    self.touched_bytes += index.pack(pack).map_or(0, |pack| pack.file.len);
                    if self.touched.len() == MAX_TOUCHED {
                        // It comes with the idle fetches.
                        if let Some((pack, _)) = self.touched.pop_front() {
                            self.packs.remove(pack.0);
                        }
                    }
                    self.touched.push_back((pack, file));
                }
                None => self.touched_bytes = self.touched_bytes.saturating_add(bytes),
                Some(_) => {}
            }
        }
        if is_start && (!self.fits || pack.is_none()) {
            self.follow(index, file);
        }
    }

    /// A reader begins to wait for bytes.
    pub fn stall_begins(&mut self, now: Duration) {
        self.stalls += 1;
        self.disturb(now);
    }

    /// A reader has waited enough.
    pub fn stall_ends(&mut self, now: Duration) {
        self.stalls = self.stalls.saturating_sub(1);
        self.disturb(now);
    }

    /// It was not quiet now.
    pub fn disturb(&mut self, now: Duration) {
        self.last_disturbed = self.last_disturbed.max(now);
    }

    /// Whether idle fetches may go on now.
    pub fn is_idle(&self, now: Duration) -> bool {
        self.is_epoch() && self.stalls == 0 && now.saturating_sub(self.last_disturbed) >= QUIET
    }

    /// Takes what to fetch next; `None` where there is nothing, or nothing yet.
    pub fn take(&mut self, index: IndexView<'_>, now: Duration) -> Option<(What, Why)> {
        if let Some((pack, file)) = self.touched.pop_front() {
            return Some((What::Pack(pack, file), Why::Touched));
        }
        if let Some((file, bytes)) = self.next.pop_front() {
            return Some((What::Part(file, 0, bytes), Why::Next));
        }
        if !self.is_idle(now) {
            return None;
        }
        let totals = index.totals();
        while self.idle_pack < totals.packs {
            let pack = PackIndex(self.idle_pack);
            self.idle_pack += 1;
            if self.packs.insert(pack.0)
                && let Some(first) = index.pack_members(pack).next()
            {
                return Some((What::Pack(pack, first), Why::Idle));
            }
        }
        while self.idle_file < totals.files {
            let (file, from) = (FileIndex(self.idle_file), self.idle_offset);
            let size = index.file(file).map_or(0, |file| file.size);
            if size >= LARGE_OBJECT_BYTES && from < size {
                self.idle_offset = from + IDLE_PART_BYTES;
                return Some((What::Part(file, from, self.idle_offset), Why::Idle));
            }
            (self.idle_file, self.idle_offset) = (self.idle_file + 1, 0);
        }
        None
    }

    /// Gives back an idle fetch that a stall interrupted; what it has brought is there when it is taken again.
    pub fn give_back(&mut self, what: What) {
        match what {
            What::Pack(pack, _) => {
                self.packs.remove(pack.0);
                self.idle_pack = self.idle_pack.min(pack.0);
            }
            What::Part(file, from, _) => (self.idle_file, self.idle_offset) = (file.0, from),
        }
    }

    /// Whether there is something to take that is not idle.
    pub fn has_work(&self) -> bool {
        !self.touched.is_empty() || !self.next.is_empty()
    }

    /// Whether there will be something to take once it has been quiet for long enough.
    pub fn waits_for_quiet(&self, index: IndexView<'_>) -> bool {
        let totals = index.totals();
        self.is_epoch() && (self.idle_pack < totals.packs || self.idle_file < totals.files)
    }

    fn is_epoch(&self) -> bool {
        self.fits && self.touched_bytes > 0 && self.touched_bytes.saturating_mul(IDLE_SHARE) >= self.bytes
    }

    fn follow(&mut self, index: IndexView<'_>, file: FileIndex) {
        let Some(dir) = index.parent(Node::File(file)) else { return };
        self.uses += 1;
        if self.dirs.len() >= MAX_DIRS && !self.dirs.contains_key(&dir) {
            let oldest = self.dirs.iter().min_by_key(|(_, run)| run.used).map(|(dir, _)| *dir);
            if let Some(dir) = oldest {
                self.dirs.remove(&dir);
            }
        }
        let start = Run { last: file.0, length: 0, ahead_to: file.0 + 1, used: 0 };
        let run = self.dirs.entry(dir).or_insert(start);
        run.used = self.uses;
        match file.0.checked_sub(run.last) {
            // Several threads that share a listing are out of order by a few.
            Some(1..=8) => (run.last, run.length) = (file.0, run.length.saturating_add(1)),
            Some(0) => {}
            None if run.last - file.0 <= 8 => {}
            Some(_) | None => *run = Run { used: self.uses, ..start },
        }
        if run.length < IN_ORDER {
            return;
        }
        let window = run.length.saturating_mul(2).min(MAX_NEXT_FILES);
        let (from, to) = (run.ahead_to.max(file.0 + 1), file.0.saturating_add(window).saturating_add(1));
        // Asked for by halves, so that requests stay large.
        if to.saturating_sub(from) * 2 < window {
            return;
        }
        let mut bytes = 0;
        for next in (from..to).map(FileIndex) {
            let Some(about) = index.file(next).filter(|about| about.parent == dir) else { break };
            let head = about.size.min(NEXT_HEAD_BYTES);
            bytes += head;
            if bytes > MAX_NEXT_BYTES || self.next.len() >= MAX_NEXT_FILES as usize {
                break;
            }
            run.ahead_to = next.0 + 1;
            if head > 0 {
                self.next.push_back((next, head));
            }
        }
    }
}

/// What a version takes in a store, bytes: files are in packs or not, and packs are longer than what is in them.
pub fn version_bytes(index: IndexView<'_>) -> u64 {
    index.totals().bytes.max(index.packed_bytes())
}

/// A set of small numbers; one bit each, 1.25 MB for ten million.
#[derive(Debug)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// The empty set of numbers below `count`.
    pub fn new(count: u32) -> Self {
        Self(vec![0; (count as usize).div_ceil(64)])
    }

    /// Adds a number; false where it was in or is too large.
    pub fn insert(&mut self, number: u32) -> bool {
        let (word, bit) = (number as usize / 64, 1 << (number % 64));
        self.0.get_mut(word).is_some_and(|word| {
            let is_new = *word & bit == 0;
            *word |= bit;
            is_new
        })
    }

    /// Takes a number out; false where it was not in.
    pub fn remove(&mut self, number: u32) -> bool {
        let (word, bit) = (number as usize / 64, 1 << (number % 64));
        self.0.get_mut(word).is_some_and(|word| {
            let was_in = *word & bit != 0;
            *word &= !bit;
            was_in
        })
    }
}

#[cfg(test)]
mod tests;
