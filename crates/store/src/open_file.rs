//! How is one store file with its sidecar read and changed?

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{FallocateFlags, fallocate};
use zerocopy::IntoBytes;

use crate::lock::{FileLock, LOCK_WAIT, TURN_WAIT};
use crate::seal::Seal;
use crate::sidecar::{Entry, Layout, MARKS_OFFSET, Record, SEAL_OFFSET};
use crate::stats::NotKept;

/// Entries read with one call: a request of 1 MiB has 16, a block of 8 MiB has 128.
const ENTRIES_AT_ONCE: usize = 128;

/// A stamp this much older than now is past its lease: 2 s, long enough to send what a hit handed out. A block whose
/// stamp is younger is not evicted under its readers; one that is sent more slowly fails its receiver's checksums.
pub(crate) const LEASE_STAMPS: u32 = 8;

/// A store file that is open, with its sidecar.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// Where things lie.
    pub layout: Layout,
    /// The chunks.
    pub data: Arc<File>,
    sidecar: File,
    is_writable: bool,
    marks: AtomicU8,
    /// Block (high half) and stamp of the last stamp written, so that reads in sequence write it once.
    touched: AtomicU64,
    /// Excludes threads of this process, whom flock does not tell apart.
    turn: Mutex<()>,
}

impl OpenFile {
    /// Puts the opened parts together.
    pub fn new(layout: Layout, data: File, sidecar: File, is_writable: bool, marks: u8) -> Self {
        Self {
            layout,
            data: Arc::new(data),
            sidecar,
            is_writable,
            marks: AtomicU8::new(marks),
            touched: AtomicU64::new(u64::MAX),
            turn: Mutex::new(()),
        }
    }

    /// Whether the pair still has its names, so that what is written to it will be found.
    pub fn is_linked(&self) -> bool {
        self.sidecar.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }

    /// Whether the data file is as long as it must be.
    pub fn has_its_length(&self) -> bool {
        self.data.metadata().is_ok_and(|metadata| metadata.len() >= self.layout.file.len)
    }

    /// Bytes that the file system has allocated for the data.
    pub fn allocated_bytes(&self) -> io::Result<u64> {
        Ok(self.data.metadata()?.blocks() * 512)
    }

    /// Whether a mark is set, as far as this process knows.
    pub fn is_marked(&self, mark: u8) -> bool {
        self.marks.load(Ordering::Relaxed) & mark != 0
    }

    /// Whether a mark is set in the sidecar now.
    pub fn reread_mark(&self, mark: u8) -> io::Result<bool> {
        let mut byte = [0];
        self.sidecar.read_exact_at(&mut byte, MARKS_OFFSET)?;
        self.marks.store(byte[0], Ordering::Relaxed);
        Ok(byte[0] & mark != 0)
    }

    /// What the seal says now.
    pub fn seal(&self) -> io::Result<Seal> {
        let mut word = [0; 8];
        self.sidecar.read_exact_at(&mut word, SEAL_OFFSET)?;
        Ok(Seal::decode(u64::from_le_bytes(word), self.layout.file.content))
    }

    /// The inode number of the data file.
    pub fn tag(&self) -> io::Result<u64> {
        Ok(self.data.metadata()?.ino())
    }

    /// The device number of its file system.
    pub fn device(&self) -> io::Result<u64> {
        Ok(self.data.metadata()?.dev())
    }

    /// Calls `each` with the slots of a range, in order, and what their entries say, until it answers false.
    pub fn entries(&self, slots: Range<u32>, mut each: impl FnMut(u32, Entry) -> bool) -> io::Result<()> {
        let mut raw = [0_u64; ENTRIES_AT_ONCE];
        let mut next = slots.start;
        while next < slots.end {
            let part = &mut raw[..ENTRIES_AT_ONCE.min((slots.end - next) as usize)];
            self.sidecar.read_exact_at(part.as_mut_bytes(), self.layout.entry_offset(next))?;
            for word in part {
                if !each(next, self.layout.entry(next, u64::from_le(*word))) {
                    return Ok(());
                }
                next += 1;
            }
        }
        Ok(())
    }

    /// The record of a block.
    pub fn record(&self, block: u32) -> io::Result<Record> {
        let mut bytes = [0; 8];
        self.sidecar.read_exact_at(&mut bytes, self.layout.record_offset(block))?;
        Ok(Record::decode(bytes))
    }

    /// The records of all blocks.
    pub fn records(&self) -> io::Result<Vec<Record>> {
        let mut bytes = vec![[0_u8; 8]; self.layout.file.blocks() as usize];
        self.sidecar.read_exact_at(bytes.as_mut_bytes(), self.layout.record_offset(0))?;
        Ok(bytes.into_iter().map(Record::decode).collect())
    }

    /// Notes that the blocks of a run of slots are in use at `stamp`. Errors are ignored: they cost order of eviction.
    pub fn touch(&self, slots: Range<u32>, stamp: u32) {
        if !self.is_writable || slots.is_empty() {
            return;
        }
        let per_block = self.layout.file.slots_per_block;
        for block in slots.start / per_block..=(slots.end - 1) / per_block {
            let touched = u64::from(block) << 32 | u64::from(stamp);
            if self.touched.swap(touched, Ordering::Relaxed) != touched {
                // See above.
                let _ = self.sidecar.write_all_at(&stamp.to_le_bytes(), self.layout.record_offset(block));
            }
        }
    }

    /// Keeps all others from changing the file.
    pub fn lock(&self) -> Result<LockedFile<'_>, NotKept> {
        self.lock_within(TURN_WAIT, LOCK_WAIT)?.ok_or(NotKept::Busy)
    }

    /// The same, if nobody holds it now.
    pub fn try_lock(&self) -> Result<Option<LockedFile<'_>>, NotKept> {
        self.lock_within(Duration::ZERO, Duration::ZERO)
    }

    fn lock_within(&self, turn: Duration, wait: Duration) -> Result<Option<LockedFile<'_>>, NotKept> {
        if !self.is_writable {
            return Err(NotKept::ReadOnly);
        }
        let Some(turn) = self.turn.try_lock_for(turn) else { return Ok(None) };
        let lock = FileLock::acquire(&self.sidecar, wait).map_err(|error| NotKept::of_io(&error))?;
        Ok(lock.map(|lock| LockedFile { open: self, _lock: lock, _turn: turn }))
    }
}

/// A store file that nobody else changes now.
#[derive(Debug)]
pub(crate) struct LockedFile<'a> {
    open: &'a OpenFile,
    _lock: FileLock<'a>,
    _turn: MutexGuard<'a, ()>,
}

impl<'a> LockedFile<'a> {
    /// The file.
    pub fn open(&self) -> &'a OpenFile {
        self.open
    }

    /// Its data, as this process has it open.
    pub fn data(&self) -> &'a File {
        &self.open.data
    }

    /// Writes the seal.
    pub fn set_seal(&self, seal: Seal) -> io::Result<()> {
        let word = seal.encode(self.open.layout.file.content);
        self.open.sidecar.write_all_at(&word.to_le_bytes(), SEAL_OFFSET)
    }

    /// Sets or takes away a mark.
    pub fn set_mark(&self, mark: u8, is_set: bool) -> io::Result<()> {
        let mut byte = [0];
        self.open.sidecar.read_exact_at(&mut byte, MARKS_OFFSET)?;
        let marks = if is_set { byte[0] | mark } else { byte[0] & !mark };
        if marks != byte[0] {
            self.open.sidecar.write_all_at(&[marks], MARKS_OFFSET)?;
        }
        self.open.marks.store(marks, Ordering::Relaxed);
        Ok(())
    }

    /// The raw entries of a range, absent ones being 0.
    pub fn raw_entries(&self, slots: Range<u32>) -> io::Result<Vec<u64>> {
        let mut raw = vec![0_u64; slots.len()];
        self.open.sidecar.read_exact_at(raw.as_mut_bytes(), self.open.layout.entry_offset(slots.start))?;
        raw.iter_mut().for_each(|word| *word = u64::from_le(*word));
        Ok(raw)
    }

    /// Writes the entries of the slots from `first` on.
    pub fn set_raw_entries(&self, first: u32, raw: &[u64]) -> io::Result<()> {
        let bytes: Vec<[u8; 8]> = raw.iter().map(|word| word.to_le_bytes()).collect();
        self.open.sidecar.write_all_at(bytes.as_bytes(), self.open.layout.entry_offset(first))
    }

    /// Writes the record of a block.
    pub fn set_record(&self, block: u32, record: Record) -> io::Result<()> {
        self.open.sidecar.write_all_at(&record.encode(), self.open.layout.record_offset(block))
    }

    /// Writes consecutive pieces of data with as few calls as the system allows.
    pub fn write_data(&self, pieces: &[&[u8]], mut offset: u64) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let mut left = slices.as_mut_slice();
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            // The system takes at most 1,024 pieces at once.
            let some = &left[..left.len().min(1024)];
            let written = match rustix::io::pwritev(&*self.open.data, some, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            offset += written as u64;
            IoSlice::advance_slices(&mut left, written);
        }
        Ok(())
    }

    /// Gives a range of data back to the file system; it then reads as zeros.
    pub fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&*self.open.data, hole, offset, len)?)
    }
}
