//! How do bytes come into a tier?
//!
//! All under the file's lock: which chunks are absent, room for them, their data, their entries, their blocks'
//! records. A process that dies in between leaves no entry without its data.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use millrace_api::block::{ChunkPlace, Span};

use crate::admit::Ask;
use crate::evict::{Wanted, Yield};
use crate::open_file::{LEASE_STAMPS, LockedFile, OpenFile};
use crate::presence::Presence;
use crate::seal::Seal;
use crate::sidecar::{Entry, Layout, MARK_READ_THROUGH, PAGE_BYTES, Record, pages_of};
use crate::stats::{NotKept, add};
use crate::store::Class;
use crate::tier::{Purpose, Tier};
use crate::usage::Held;

/// Consecutive chunks of one object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run<'a> {
    pub span: &'a Span,
    pub first_chunk: u32,
    pub bytes: &'a [&'a [u8]],
    pub crcs: &'a [u32],
    pub class: Class,
}

impl Run<'_> {
    /// Where each chunk lies; an error where the bytes are not those of the object's chunks.
    pub fn places(&self) -> Result<Vec<ChunkPlace>, NotKept> {
        let places: Option<Vec<_>> = (0..self.bytes.len() as u32)
            .map(|at| self.span.place(self.first_chunk.checked_add(at)?))
            .collect();
        let places = places.filter(|places| !places.is_empty()).ok_or(NotKept::Invalid)?;
        let fits = self.bytes.iter().zip(&places).all(|(bytes, place)| bytes.len() == place.len as usize);
        let has_slots = places.iter().all(|place| place.slot < self.span.file.slots);
        if fits && has_slots && self.crcs.len() == places.len() { Ok(places) } else { Err(NotKept::Invalid) }
    }
}

/// What one pass under the lock came to.
enum Pass {
    Kept,
    /// The file was removed meanwhile.
    Removed,
    Full(NotKept, Ask),
}

/// What is to be added to one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Addition {
    block: u32,
    pages: u32,
    /// The block's record as it will be, but for the pages.
    record: Record,
}

impl Tier {
    /// Whether all chunks of a run are there.
    pub(crate) fn has(&self, run: &Run<'_>, places: &[ChunkPlace]) -> bool {
        let first = run.span.first_slot + run.first_chunk;
        let mut presence = Presence::none(first..first + places.len() as u32);
        self.present(&run.span.file, &mut presence);
        presence.is_full()
    }

    /// Keeps the chunks of a run that are absent, giving up as much for it as `yields` says.
    pub(crate) fn write(&self, run: &Run<'_>, places: &[ChunkPlace], yields: Yield) -> Result<(), NotKept> {
        if self.quota_bytes() == 0 {
            return Err(NotKept::Disabled);
        }
        if let Some(reason) = self.paused() {
            return Err(reason);
        }
        let mut refused = NotKept::Quota;
        // Each pass but the first follows on room made or a file removed; a tier under such pressure keeps nothing.
        for _ in 0..4 {
            let pages: u32 = places.iter().map(|place| pages_of(place.len)).sum();
            let is_read_through = run.class == Class::ReadThrough;
            let first = Ask { bytes: u64::from(pages) * PAGE_BYTES, files: 0, is_read_through };
            let open = match self.open_or_create(run, &first) {
                Ok(open) => open,
                Err(reason) => {
                    let sidecar = Layout::new(run.span.file).map_or(0, |layout| layout.allocated_bytes());
                    let ask = Ask { bytes: first.bytes + sidecar, files: 1, is_read_through };
                    if !self.make_room(&Wanted { reason, ask }, yields) {
                        return Err(reason);
                    }
                    refused = reason;
                    continue;
                }
            };
            match self.pass(&open, run, places)? {
                Pass::Kept => return Ok(()),
                Pass::Removed => self.open_files.remove(run.span.file.content),
                Pass::Full(reason, ask) => {
                    refused = reason;
                    if !self.make_room(&Wanted { reason, ask }, yields) {
                        return Err(reason);
                    }
                }
            }
        }
        Err(refused)
    }

    fn open_or_create(&self, run: &Run<'_>, first: &Ask) -> Result<Arc<OpenFile>, NotKept> {
        match self.open(&run.span.file, Purpose::Use) {
            Some(open) => Ok(open),
            None => self.create(run.span.file, first),
        }
    }

    fn pass(&self, open: &OpenFile, run: &Run<'_>, places: &[ChunkPlace]) -> Result<Pass, NotKept> {
        let io = |error: io::Error| self.fault(&error);
        let locked = open.lock()?;
        if !open.is_linked() {
            return Ok(Pass::Removed);
        }
        let slots = places[0].slot..places[0].slot + places.len() as u32;
        let mut raw = locked.raw_entries(slots.clone()).map_err(io)?;
        let absent: Vec<usize> = (0..places.len())
            .filter(|at| !matches!(open.layout.entry(places[*at].slot, raw[*at]), Entry::Present { .. }))
            .collect();
        let absent_places: Vec<ChunkPlace> = absent.iter().map(|at| places[*at]).collect();
        let blocks = self.additions(&locked, &slots, &absent_places, run.class).map_err(io)?;
        if absent.is_empty() {
            return Ok(Pass::Kept);
        }
        match open.seal().map_err(io)? {
            Seal::Open => {}
            // It was whole, so its sidecar has rotted.
            seal if seal.is_handed_over() => {
                self.discard(open);
                return Ok(Pass::Removed);
            }
            _ => locked.set_seal(Seal::Open).map_err(io)?,
        }
        if let Err((reason, ask)) = self.reserve_all(&blocks) {
            return Ok(Pass::Full(reason, ask));
        }
        let before = raw.clone();
        if let Err(error) = self.write_absent(&locked, run, places, &absent, &mut raw) {
            for place in &absent_places {
                // On a full or failing disk this may fail too; the next count finds it.
                let _ = locked.punch(place.offset, u64::from(place.len).next_multiple_of(PAGE_BYTES));
            }
            let _ = locked.set_raw_entries(slots.start, &before);
            self.release(sum(&blocks));
            let reason = self.fault(&error);
            return if reason == NotKept::NoSpace {
                Ok(Pass::Full(reason, Ask { bytes: sum(&blocks).bytes, files: 0, is_read_through: false }))
            } else {
                Err(reason)
            };
        }
        for Addition { block, pages, record } in &blocks {
            let record = Record { pages: record.pages + pages, ..*record };
            locked.set_record(*block, record).map_err(io)?;
        }
        if blocks.iter().any(|addition| addition.record.is_read_through) && !open.is_marked(MARK_READ_THROUGH)
        {
            locked.set_mark(MARK_READ_THROUGH, true).map_err(io)?;
        }
        let written = absent_places.iter().map(|place| u64::from(place.len)).sum();
        add(&self.counters.written_chunks, absent.len() as u64);
        add(&self.counters.written_bytes, written);
        Ok(Pass::Kept)
    }

    /// What each block of the run gets. Blocks read through for others become owned where the run is, if the owned
    /// share has room; bytes added to an owned block are owned.
    fn additions(
        &self,
        locked: &LockedFile<'_>,
        slots: &Range<u32>,
        absent: &[ChunkPlace],
        class: Class,
    ) -> io::Result<Vec<Addition>> {
        let open = locked.open();
        let per_block = open.layout.file.slots_per_block;
        // Written only, so it is past the lease of readers from the start.
        let stamp = self.stamp().saturating_sub(LEASE_STAMPS);
        let mut additions = Vec::new();
        for block in slots.start / per_block..=(slots.end - 1) / per_block {
            let mut record = open.record(block)?;
            if record.is_read_through && class == Class::Owned && self.take_over(record) {
                record.is_read_through = false;
                locked.set_record(block, record)?;
            }
            let pages = absent
                .iter()
                .filter(|place| place.slot / per_block == block)
                .map(|place| pages_of(place.len))
                .sum();
            if record.pages == 0 {
                record.is_read_through = class == Class::ReadThrough;
            }
            record.stamp = record.stamp.max(stamp);
            additions.push(Addition { block, pages, record });
        }
        Ok(additions)
    }

    /// Moves the bytes of a block from the share for others to the owned one, if there is room.
    fn take_over(&self, record: Record) -> bool {
        let ask = Ask { bytes: record.bytes(), files: 0, is_read_through: false };
        let moved = self.update(|held| {
            let mut without = *held;
            without.release(Held { bytes: ask.bytes, read_through_bytes: ask.bytes, ..Held::default() });
            *held = crate::admit::admit(&without, &self.bounds(), &ask)?;
            Ok::<_, NotKept>(())
        });
        matches!(moved, Ok(Ok(())))
    }

    /// Takes from the quota what the additions need, all or nothing.
    fn reserve_all(&self, additions: &[Addition]) -> Result<(), (NotKept, Ask)> {
        let whole = sum(additions);
        let parts = [(whole.read_through_bytes, true), (whole.bytes - whole.read_through_bytes, false)];
        let asks = parts.map(|(bytes, is_read_through)| Ask { bytes, files: 0, is_read_through });
        let mut reserved = Held::default();
        for ask in asks.into_iter().filter(|ask| ask.bytes > 0) {
            if let Err(reason) = self.reserve(&ask) {
                self.release(reserved);
                return Err((reason, ask));
            }
            reserved.bytes += ask.bytes;
            reserved.read_through_bytes += if ask.is_read_through { ask.bytes } else { 0 };
        }
        Ok(())
    }

    /// Writes the data of the absent chunks, then their entries.
    fn write_absent(
        &self,
        locked: &LockedFile<'_>,
        run: &Run<'_>,
        places: &[ChunkPlace],
        absent: &[usize],
        raw: &mut [u64],
    ) -> io::Result<()> {
        // Neighbours in `absent` are neighbours in the file.
        for together in absent.chunk_by(|one, next| one + 1 == *next) {
            let pieces: Vec<&[u8]> = together.iter().map(|at| run.bytes[*at]).collect();
            locked.write_data(&pieces, places[together[0]].offset)?;
        }
        for at in absent {
            raw[*at] = locked.open().layout.present(places[*at].slot, run.crcs[*at], places[*at].len);
        }
        locked.set_raw_entries(places[0].slot, raw)
    }
}

/// What additions take from the quota.
fn sum(additions: &[Addition]) -> Held {
    additions.iter().fold(Held::default(), |mut held, addition| {
        let bytes = u64::from(addition.pages) * PAGE_BYTES;
        held.bytes += bytes;
        held.read_through_bytes += if addition.record.is_read_through { bytes } else { 0 };
        held
    })
}
