//! Do all chunks of a store file match their checksums?
//!
//! The one check of files that the kernel reads itself: when a file has become whole, again in each boot before it is handed
//! over, and now and then by the scrub. Bytes that do not match are dropped: alone where only this crate's readers see
//! them, with the whole file where the kernel may read it.

use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;

use millrace_api::block::{CHUNK_BYTES, Span};
use millrace_api::crc::crc32c;
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::open_file::OpenFile;
use crate::seal::{BootTag, Seal};
use crate::sidecar::{Entry, pages_of};
use crate::stats::add;
use crate::tier::{Purpose, Tier};
use crate::whole::is_alone;

/// Chunks read at once: 1 MiB.
const CHUNKS_AT_ONCE: u32 = 16;

/// `RWF_DONTCACHE` (Linux 6.14): what this read brings into the page cache leaves it again, what was there stays.
const DONT_CACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// What a verification found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verification {
    /// All chunks are there and match; noted for this boot.
    Verified,
    /// Some are absent.
    Incomplete,
    /// Some did not match, or could not be read: they are gone.
    Bad,
    /// It changed meanwhile, somebody held its lock, or it was called off.
    Undecided,
}

/// What for a file is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// Somebody waits to read it.
    Use,
    /// Now and then.
    Scrub,
}

/// What one look at all chunks came to.
enum Look {
    /// All match; the hash of their entries.
    Match(u64),
    Absent,
    Bad(u32),
    CalledOff,
}

impl Tier {
    /// Verifies the file of an object. `go_on` hears of each piece that was read, in bytes, and may call it off.
    pub(crate) fn verify(
        &self,
        span: &Span,
        boot: BootTag,
        occasion: Occasion,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Verification {
        if !is_alone(span) {
            return Verification::Incomplete;
        }
        let Some(open) = self.open(&span.file, Purpose::Look) else { return Verification::Incomplete };
        match look(&open, span, occasion, go_on) {
            Ok(Look::Match(hash)) => seal(&open, boot, hash).unwrap_or(Verification::Undecided),
            Ok(Look::Absent) => self.is_incomplete(&open),
            Ok(Look::CalledOff) => Verification::Undecided,
            Ok(Look::Bad(chunk)) => self.is_bad(&open, span, chunk),
            Err(error) => {
                self.sidecar_fails(&open, &error);
                Verification::Bad
            }
        }
    }

    /// A file that the kernel may read has lost a chunk: its sidecar has rotted.
    fn is_incomplete(&self, open: &OpenFile) -> Verification {
        if !open.seal().is_ok_and(Seal::is_handed_over) {
            return Verification::Incomplete;
        }
        self.discard(open);
        Verification::Bad
    }

    fn is_bad(&self, open: &OpenFile, span: &Span, chunk: u32) -> Verification {
        // Dropped when it is bad under the lock too: an eviction may have gone through the look.
        if self.drop_if_bad(open, span, chunk) { Verification::Bad } else { Verification::Undecided }
    }

    /// Drops a file that the kernel may read for one bad chunk.
    pub(crate) fn discard_for(&self, open: &OpenFile, chunk: u32) {
        tracing::warn!(content = %open.layout.file.content, chunk, dir = ?self.config.dir, "bad chunk in a file that the kernel may read");
        add(&self.counters.corrupt_chunks, 1);
        self.discard(open);
    }
}

fn look(
    open: &OpenFile,
    span: &Span,
    occasion: Occasion,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Look> {
    let mut hash = Hash::default();
    let mut buffer = vec![0; CHUNKS_AT_ONCE as usize * CHUNK_BYTES as usize];
    let end = span.chunks().end;
    let mut first = 0;
    while first < end {
        let chunks = first..(first + CHUNKS_AT_ONCE).min(end);
        let mut crcs = Vec::with_capacity(chunks.len());
        open.entries(chunks.clone(), |slot, entry| {
            let fits = |pages| span.place(slot).is_some_and(|place| pages_of(place.len) == pages);
            match entry {
                Entry::Present { crc, pages } if fits(pages) => crcs.push(crc),
                Entry::Present { .. } | Entry::Absent | Entry::Damaged => return false,
            }
            true
        })?;
        if crcs.len() < chunks.len() {
            return Ok(Look::Absent);
        }
        let offset = u64::from(first) * CHUNK_BYTES;
        let len = (crcs.len() as u64 * CHUNK_BYTES).min(span.size - offset);
        let bytes = &mut buffer[..len as usize];
        let read = read(open, bytes, offset, occasion);
        for ((chunk, crc), piece) in chunks.clone().zip(&crcs).zip(bytes.chunks(CHUNK_BYTES as usize)) {
            let end = u64::from(chunk - first) * CHUNK_BYTES + piece.len() as u64;
            if end > read || crc32c(piece) != *crc {
                return Ok(Look::Bad(chunk));
            }
            hash.add(*crc);
        }
        // Called off behind the last piece, it is decided all the same.
        if !go_on(len) && chunks.end < end {
            return Ok(Look::CalledOff);
        }
        first = chunks.end;
    }
    Ok(Look::Match(hash.0))
}

/// Reads as far as it goes: what cannot be read is bad.
fn read(open: &OpenFile, buffer: &mut [u8], offset: u64, occasion: Occasion) -> u64 {
    let mut done = 0;
    let mut flags = if occasion == Occasion::Scrub { DONT_CACHE } else { ReadWriteFlags::empty() };
    while done < buffer.len() {
        let at = offset + done as u64;
        let result = match flags.is_empty() {
            true => open.data.read_at(&mut buffer[done..], at),
            false => preadv2(&*open.data, &mut [IoSliceMut::new(&mut buffer[done..])], at, flags)
                .map_err(io::Error::from),
        };
        match result {
            Ok(0) => break,
            Ok(more) => done += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The kernel or the file system does not know the flag.
            Err(error)
                if !flags.is_empty()
                    && [Errno::OPNOTSUPP, Errno::INVAL, Errno::NOSYS]
                        .map(Errno::raw_os_error)
                        .contains(&error.raw_os_error().unwrap_or(0)) =>
            {
                flags = ReadWriteFlags::empty();
            }
            Err(_) => break,
        }
    }
    done as u64
}

/// Notes that all chunks match, unless an entry has changed since the look. Chunks that went and came again in between
/// have been compared by whoever brought them.
fn seal(open: &OpenFile, boot: BootTag, hash: u64) -> io::Result<Verification> {
    let Ok(locked) = open.lock() else { return Ok(Verification::Undecided) };
    let before = open.seal()?;
    if before == (Seal::Verified { boot, is_handed_over: before.is_handed_over() }) {
        return Ok(Verification::Verified);
    }
    let mut now = Hash::default();
    let mut is_whole = true;
    open.entries(0..open.layout.file.slots, |_, entry| {
        match entry {
            Entry::Present { crc, .. } => now.add(crc),
            Entry::Absent | Entry::Damaged => is_whole = false,
        }
        is_whole
    })?;
    if !is_whole || now.0 != hash || !open.is_linked() {
        return Ok(Verification::Undecided);
    }
    locked.set_seal(Seal::Verified { boot, is_handed_over: before.is_handed_over() })?;
    Ok(Verification::Verified)
}

/// Hash of checksums in their order (FNV-1a over words): two looks saw the same ones.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    fn add(&mut self, crc: u32) {
        self.0 = (self.0 ^ u64::from(crc)).wrapping_mul(0x0100_0000_01b3);
    }
}
