//! How does the table of open files lie in memory that another process can take over?
//!
//! A memfd, written with pwrite as things happen: it survives its writer for as long as somebody holds its descriptor,
//! and a writer that is killed has written a record or has not. Native byte order, for both processes are on one machine.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic `MROPENS\n` |
//! | 8 | 4 | version of this layout, 1 |
//! | 12 | 28 | zero |
//! | 40 × (1 + slot) | 40 | a record |
//!
//! | record | bytes | what |
//! |---|---|---|
//! | 0 | 8 | id of the OPEN, which is the handle; the bit of RESEND is clear; 0 in an idle one |
//! | 8 | 8 | node |
//! | 16 | 8 | tag of the file |
//! | 24 | 4 | backing id; 0: none, or not known yet |
//! | 28 | 4 | state: 0 free, 1 about to be opened, 2 open, 3 id kept for the next open |
//! | 32 | 8 | zero |
//!
//! Compatibility: a layout of another version is not taken over. A test pins the bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::open_table::OpenTableError;

const MAGIC: u64 = u64::from_ne_bytes(*b"MROPENS\n");
const VERSION: u32 = 1;

/// Most files open at a time on one mount: 10 MiB of records. A process may have 1,048,576 at the usual hard limit, but a
/// node with more than this many open data files of a megabyte and more has not been seen; guess.
const MAX_SLOTS: u32 = 1 << 18;

/// How many records are read at once.
const READ_AT_ONCE: usize = 1024;

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    unique: u64,
    node: u64,
    tag: u64,
    id: i32,
    state: u32,
    zero: u64,
}

const SLOT_BYTES: u64 = size_of::<Raw>() as u64;
const _: () = assert!(SLOT_BYTES == 40);

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: u64,
    version: u32,
    zero: [u32; 7],
}

const _: () = assert!(size_of::<Header>() as u64 == SLOT_BYTES);

/// What a record says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    /// A file is about to be handed to the kernel for it.
    Intent = 1,
    /// It is open, or its answer is under way.
    Open = 2,
    /// Nobody has it open; its id is kept.
    Idle = 3,
}

/// One open file, or one id that is kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct OpenRecord {
    pub unique: u64,
    pub node: u64,
    pub tag: u64,
    pub id: i32,
    pub state: State,
}

/// The records in shared memory.
#[derive(Debug)]
pub(crate) struct Records {
    memory: File,
    /// Free slots below `next`.
    free: Vec<u32>,
    next: u32,
}

impl Records {
    /// Makes memory without records.
    pub fn new() -> io::Result<Self> {
        let memory = File::from(memfd_create("millrace-opens", MemfdFlags::CLOEXEC)?);
        let header = Header { magic: MAGIC, version: VERSION, zero: [0; 7] };
        memory.write_all_at(header.as_bytes(), 0)?;
        Ok(Self { memory, free: Vec::new(), next: 0 })
    }

    /// Reads the memory of another process.
    pub fn read(memory: File) -> Result<(Self, Vec<(u32, OpenRecord)>), OpenTableError> {
        let mut header = Header::default();
        let slots = memory.metadata().map_err(OpenTableError::Read)?.len() / SLOT_BYTES;
        if slots == 0 {
            return Err(OpenTableError::Layout);
        }
        memory.read_exact_at(header.as_mut_bytes(), 0).map_err(OpenTableError::Read)?;
        if (header.magic, header.version) != (MAGIC, VERSION) || slots > u64::from(MAX_SLOTS) + 1 {
            return Err(OpenTableError::Layout);
        }
        let next = (slots - 1) as u32;
        let (mut found, mut free) = (Vec::new(), Vec::new());
        let mut slot = 0;
        while slot < next {
            let mut raw = vec![Raw::default(); READ_AT_ONCE.min((next - slot) as usize)];
            memory.read_exact_at(raw.as_mut_bytes(), place(slot)).map_err(OpenTableError::Read)?;
            for raw in raw {
                match raw.record() {
                    Some(record) => found.push((slot, record)),
                    None => free.push(slot),
                }
                slot += 1;
            }
        }
        Ok((Self { memory, free, next }, found))
    }

    /// Duplicates the descriptor.
    pub fn memory(&self) -> io::Result<File> {
        self.memory.try_clone()
    }

    /// Writes a record to a free slot; `None` where there is none.
    pub fn take(&mut self, record: &OpenRecord) -> Option<u32> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.next < MAX_SLOTS => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        if self.write(slot, &Raw::of(record)).is_err() {
            self.free.push(slot);
            return None;
        }
        Some(slot)
    }

    /// Changes a record.
    pub fn set(&mut self, slot: u32, record: &OpenRecord) {
        self.overwrite(slot, &Raw::of(record));
    }

    /// Frees a slot.
    pub fn free(&mut self, slot: u32) {
        self.overwrite(slot, &Raw::default());
        self.free.push(slot);
    }

    fn overwrite(&self, slot: u32, raw: &Raw) {
        if let Err(error) = self.write(slot, raw) {
            // The page is there since the slot was taken. A stale record would only be pinned by a successor.
            tracing::error!(slot, error = %error, "note an open file");
        }
    }

    fn write(&self, slot: u32, raw: &Raw) -> io::Result<()> {
        self.memory.write_all_at(raw.as_bytes(), place(slot))
    }
}

fn place(slot: u32) -> u64 {
    SLOT_BYTES * (u64::from(slot) + 1)
}

impl Raw {
    fn of(record: &OpenRecord) -> Self {
        let OpenRecord { unique, node, tag, id, state } = *record;
        Self { unique, node, tag, id, state: state as u32, zero: 0 }
    }

    fn record(&self) -> Option<OpenRecord> {
        let Self { unique, node, tag, id, state, zero: _ } = *self;
        let state = match state {
            1 => State::Intent,
            2 => State::Open,
            3 => State::Idle,
            _ => return None,
        };
        Some(OpenRecord { unique, node, tag, id, state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_version_1_are_pinned() {
        let mut records = Records::new().expect("memfd");
        let record = OpenRecord { unique: 6, node: 42, tag: 7, id: 3, state: State::Open };
        assert_eq!(records.take(&record), Some(0));
        let mut bytes = [0; 80];
        records.memory.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes[..12], b"MROPENS\n\x01\0\0\0");
        let numbers = [6u64, 42, 7, 3 | 2 << 32, 0].map(u64::to_le_bytes).concat();
        assert_eq!((&bytes[12..40], &bytes[40..]), (&[0; 28][..], &numbers[..]));
    }

    #[test]
    fn another_process_finds_what_was_noted_and_the_free_slots() {
        let mut records = Records::new().expect("memfd");
        let of = |unique| OpenRecord { unique, node: 1, tag: 2, id: 0, state: State::Intent };
        let slots: Vec<_> = (1..=2000).map(|unique| records.take(&of(unique)).expect("room")).collect();
        slots.iter().step_by(2).for_each(|slot| records.free(*slot));
        let (mut taken, found) = Records::read(records.memory().expect("fd")).expect("read");
        assert_eq!(found.len(), 1000);
        assert_eq!(found[7], (15, of(16)));
        assert_eq!(
            (taken.take(&of(9)).map(|slot| slot % 2), taken.free.len(), taken.next),
            (Some(0), 999, 2000)
        );
    }

    #[test]
    fn memory_of_another_layout_is_not_taken_over() {
        for bytes in [&b""[..], &[0; 40], b"MROPENS\n\x02\0\0\0____________________________"] {
            let memory = File::from(memfd_create("test", MemfdFlags::CLOEXEC).expect("memfd"));
            memory.write_all_at(bytes, 0).expect("write");
            assert!(matches!(Records::read(memory), Err(OpenTableError::Layout)), "{bytes:?}");
        }
    }

    #[test]
    fn full_table_takes_no_more_until_one_goes() {
        let mut records = Records::new().expect("memfd");
        let record = OpenRecord { unique: 2, node: 1, tag: 0, id: 0, state: State::Open };
        assert!((0..MAX_SLOTS).all(|_| records.take(&record).is_some()));
        assert_eq!(records.take(&record), None);
        records.free(5);
        assert_eq!(records.take(&record), Some(5));
    }
}
