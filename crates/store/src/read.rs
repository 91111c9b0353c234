//! Which chunks are there, and what are their bytes?

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use millrace_api::block::{CHUNK_BYTES, Span, StoreFile};
use millrace_api::crc::crc32c;

use crate::config::Eviction;
use crate::open_file::OpenFile;
use crate::presence::{Hit, Presence};
use crate::seal::Seal;
use crate::sidecar::{Entry, MARK_READ_THROUGH, PAGE_BYTES, Record, pages_of};
use crate::stats::{NotKept, add};
use crate::tier::{Purpose, Tier};
use crate::usage::Held;

/// What a look at one chunk under the lock showed.
#[derive(Debug, PartialEq, Eq)]
enum Checked {
    /// It is absent by now, or its bytes match after all.
    Fine,
    /// It was bad and is gone.
    Dropped,
    /// It is bad, and the kernel may read the file.
    HandedOver,
}

impl Tier {
    /// The longest run of present chunks from `chunks.start` on.
    pub(crate) fn read(&self, span: &Span, chunks: Range<u32>) -> Option<Hit> {
        let open = self.open(&span.file, Purpose::Use)?;
        let crcs = self.present_run(&open, span, chunks.clone())?;
        // A hit on a file that was cut meanwhile would end its connection in the middle of a frame.
        if !open.has_its_length() {
            self.discard(&open);
            return None;
        }
        let first = span.place(chunks.start)?;
        let last = span.place(chunks.start + crcs.len() as u32 - 1)?;
        let len = last.offset + u64::from(last.len) - first.offset;
        Some(Hit { file: open.data.clone(), offset: first.offset, len, crcs })
    }

    /// Copies the longest run of present chunks that fit and match; returns how many.
    pub(crate) fn read_into(&self, span: &Span, chunks: Range<u32>, buffer: &mut [u8]) -> u32 {
        let Some(open) = self.open(&span.file, Purpose::Use) else { return 0 };
        let whole = (buffer.len() as u64 / CHUNK_BYTES) as u32;
        let fits = match span.place(chunks.start.saturating_add(whole)) {
            Some(next) if u64::from(whole) * CHUNK_BYTES + u64::from(next.len) <= buffer.len() as u64 => {
                whole + 1
            }
            Some(_) | None => whole,
        };
        let chunks = chunks.start..chunks.end.min(chunks.start.saturating_add(fits));
        let Some(crcs) = self.present_run(&open, span, chunks.clone()) else { return 0 };
        let Some(first) = span.place(chunks.start) else { return 0 };
        let left = span.offset + span.size - first.offset;
        let len = (crcs.len() as u64 * CHUNK_BYTES).min(left) as usize;
        let bytes = &mut buffer[..len];
        let read = read_up_to(&open, bytes, first.offset);
        for ((chunk, crc), piece) in (chunks.start..).zip(&crcs).zip(bytes.chunks(CHUNK_BYTES as usize)) {
            let end = u64::from(chunk - chunks.start) * CHUNK_BYTES + piece.len() as u64;
            let is_right = read.as_ref().is_ok_and(|read| end <= *read) && crc32c(piece) == *crc;
            if !is_right {
                if read.is_err() {
                    add(&self.counters.read_errors, 1);
                }
                self.drop_if_bad(&open, span, chunk);
                return chunk - chunks.start;
            }
        }
        crcs.len() as u32
    }

    /// The checksums of the run of present chunks that begins at `chunks.start`; `None` for an empty run.
    fn present_run(&self, open: &OpenFile, span: &Span, chunks: Range<u32>) -> Option<Vec<u32>> {
        let end = chunks.end.min(span.chunks().end);
        if chunks.start >= end {
            return None;
        }
        let slots = span.slots(chunks.start..end);
        // Stamped before the entries are read: who evicts clears them first and then looks at the stamp again.
        if self.eviction == Eviction::Lru || open.is_marked(MARK_READ_THROUGH) {
            open.touch(slots.clone(), self.stamp());
        }
        let mut crcs = Vec::with_capacity(slots.len().min(256));
        let mut damaged = None;
        let read = open.entries(slots, |slot, entry| {
            let chunk = slot - span.first_slot;
            let fits = |pages| span.place(chunk).is_some_and(|place| pages_of(place.len) == pages);
            match entry {
                Entry::Present { crc, pages } if fits(pages) => {
                    crcs.push(crc);
                    true
                }
                Entry::Absent => false,
                Entry::Present { .. } | Entry::Damaged => {
                    damaged = Some(chunk);
                    false
                }
            }
        });
        if let Err(error) = read {
            self.sidecar_fails(open, &error);
            return None;
        }
        if let Some(chunk) = damaged {
            self.drop_if_bad(open, span, chunk);
        }
        (!crcs.is_empty()).then_some(crcs)
    }

    /// Adds to `presence` what this tier has.
    pub(crate) fn present(&self, file: &StoreFile, presence: &mut Presence) {
        let Some(open) = self.open(file, Purpose::Look) else { return };
        let slots = presence.slots.start..presence.slots.end.min(file.slots);
        let read = open.entries(slots, |slot, entry| {
            if matches!(entry, Entry::Present { .. }) {
                presence.insert(slot);
            }
            true
        });
        if let Err(error) = read {
            self.sidecar_fails(&open, &error);
        }
    }

    /// Drops a chunk that somebody found bad, if it is.
    pub(crate) fn drop_chunk(&self, span: &Span, chunk: u32) -> bool {
        self.open(&span.file, Purpose::Look).is_some_and(|open| self.drop_if_bad(&open, span, chunk))
    }

    /// Looks at a chunk while nobody changes it, and drops it if it is bad. True if it was dropped.
    pub(crate) fn drop_if_bad(&self, open: &OpenFile, span: &Span, chunk: u32) -> bool {
        if let Some(borrowed) = &self.borrowed {
            self.distrust(borrowed, span.file.content);
            return true;
        }
        match self.check(open, span, chunk) {
            Ok(Checked::Fine) => false,
            Ok(Checked::HandedOver) => {
                self.discard_for(open, chunk);
                true
            }
            Ok(Checked::Dropped) => {
                tracing::warn!(content = %span.file.content, chunk, dir = ?self.config.dir, "bad chunk dropped");
                add(&self.counters.corrupt_chunks, 1);
                true
            }
            Err(reason) => {
                // It stays, is found bad by every reader, and is never served.
                tracing::warn!(content = %span.file.content, chunk, dir = ?self.config.dir, ?reason, "bad chunk stays");
                add(&self.counters.corrupt_chunks, 1);
                false
            }
        }
    }

    fn check(&self, open: &OpenFile, span: &Span, chunk: u32) -> Result<Checked, NotKept> {
        let Some(place) = span.place(chunk) else { return Ok(Checked::Fine) };
        let locked = open.lock()?;
        let io = |error: io::Error| NotKept::of_io(&error);
        let raw = locked.raw_entries(place.slot..place.slot + 1).map_err(io)?;
        let entry = open.layout.entry(place.slot, raw.first().copied().unwrap_or(0));
        let freed_pages = match entry {
            Entry::Absent => return Ok(Checked::Fine),
            Entry::Damaged => pages_of(place.len),
            Entry::Present { crc, pages } => {
                let mut bytes = vec![0; place.len as usize];
                let read = read_up_to(open, &mut bytes, place.offset);
                let is_whole = read.is_ok_and(|read| read == u64::from(place.len));
                if is_whole && crc32c(&bytes) == crc && pages == pages_of(place.len) {
                    return Ok(Checked::Fine);
                }
                pages
            }
        };
        match open.seal().map_err(io)? {
            Seal::Open => {}
            seal if seal.is_handed_over() => return Ok(Checked::HandedOver),
            _ => locked.set_seal(Seal::Open).map_err(io)?,
        }
        locked.set_raw_entries(place.slot, &[0]).map_err(io)?;
        // Absent from here on; what cannot be given back is found by the next count.
        let _ = locked.punch(place.offset, u64::from(place.len).next_multiple_of(PAGE_BYTES));
        let block = place.slot / open.layout.file.slots_per_block;
        let record = open.record(block).map_err(io)?;
        let pages = record.pages.saturating_sub(freed_pages);
        locked.set_record(block, Record { pages, ..record }).map_err(io)?;
        drop(locked);
        let bytes = u64::from(record.pages - pages) * PAGE_BYTES;
        let read_through_bytes = if record.is_read_through { bytes } else { 0 };
        self.release(Held { bytes, read_through_bytes, ..Held::default() });
        Ok(Checked::Dropped)
    }

    /// Gives up a file whose sidecar cannot be read.
    pub(crate) fn sidecar_fails(&self, open: &OpenFile, error: &io::Error) {
        tracing::warn!(content = %open.layout.file.content, dir = ?self.config.dir, error = %error, "read sidecar");
        add(&self.counters.read_errors, 1);
        self.discard(open);
    }
}

/// Fills `buffer` as far as the file reaches; says how far.
fn read_up_to(open: &OpenFile, buffer: &mut [u8], offset: u64) -> io::Result<u64> {
    let mut read = 0;
    while read < buffer.len() {
        match open.data.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // What was read before the bad sector is right, and its checksums say so.
            Err(_) if read > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(read as u64)
}
