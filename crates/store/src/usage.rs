//! How much does a tier hold, counted over all processes that share it?
//!
//! One small record a tier, changed under flock. A process that is killed between a change here and its write leaves
//! the count too high by at most that write, until the next opening by one process alone counts again.
//!
//! | offset | bytes | what (little-endian) |
//! |---|---|---|
//! | 0 | 8 | magic `MRUSAGE\n` |
//! | 8 | 4 | format version, as of sidecars |
//! | 12 | 4 | zero |
//! | 16 | 8 | bytes: data and sidecars in whole pages |
//! | 24 | 8 | those of them that were read through for others |
//! | 32 | 8 | store files |
//! | 40 | 8 | changes: counts what may let a search for room succeed that did not before |
//! | 48 | 4 | CRC32C of bytes 0..48 |

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use millrace_api::crc::crc32c;

use crate::lock::{FileLock, LOCK_WAIT};
use crate::sidecar::FORMAT_VERSION;

const MAGIC: [u8; 8] = *b"MRUSAGE\n";

/// Length of the record, bytes.
pub(crate) const USAGE_BYTES: usize = 52;

/// What a tier holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Held {
    /// Allocated bytes, read-through included.
    pub bytes: u64,
    /// Bytes of blocks read through for others.
    pub read_through_bytes: u64,
    /// Store files.
    pub files: u64,
    /// See the table above.
    pub changes: u64,
}

/// Why bytes are not a usage record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecodeUsage {
    /// Too short, of another kind, or bits have changed.
    Damaged,
    /// A record of another version.
    Version(u32),
}

impl Held {
    /// The record's bytes.
    pub fn encode(&self) -> [u8; USAGE_BYTES] {
        let Self { bytes, read_through_bytes, files, changes } = self;
        let mut record = [0; USAGE_BYTES];
        record[..8].copy_from_slice(&MAGIC);
        record[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        for (place, number) in
            record[16..48].chunks_exact_mut(8).zip([bytes, read_through_bytes, files, changes])
        {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let crc = crc32c(&record[..48]);
        record[48..].copy_from_slice(&crc.to_le_bytes());
        record
    }

    /// Reads a record back.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeUsage> {
        let record = bytes.first_chunk::<USAGE_BYTES>().ok_or(DecodeUsage::Damaged)?;
        if record[..8] != MAGIC {
            return Err(DecodeUsage::Damaged);
        }
        let number = |at: usize, len: usize| {
            record[at..at + len].iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        if number(8, 4) != u64::from(FORMAT_VERSION) {
            return Err(DecodeUsage::Version(number(8, 4) as u32));
        }
        if number(48, 4) != u64::from(crc32c(&record[..48])) {
            return Err(DecodeUsage::Damaged);
        }
        let [bytes, read_through_bytes, files, changes] = [16, 24, 32, 40].map(|at| number(at, 8));
        Ok(Self { bytes, read_through_bytes, files, changes })
    }

    /// Takes away what has left the tier.
    pub fn release(&mut self, gone: Held) {
        self.bytes = self.bytes.saturating_sub(gone.bytes);
        self.read_through_bytes = self.read_through_bytes.saturating_sub(gone.read_through_bytes);
        self.files = self.files.saturating_sub(gone.files);
    }
}

/// The open record of a tier.
#[derive(Debug)]
pub(crate) struct UsageFile {
    file: File,
}

/// Why the record cannot be used now.
#[derive(Debug)]
pub(crate) enum UseUsage {
    /// Another process holds it.
    Busy,
    /// The file system fails.
    Io(io::Error),
    /// Its bytes are damaged, or the file is gone: count again.
    Damaged,
}

impl UsageFile {
    /// Wraps the opened file.
    pub fn new(file: File) -> Self {
        Self { file }
    }

    /// Reads the record without a lock; a torn read is a damaged one.
    pub fn peek(&self) -> Result<Held, UseUsage> {
        let mut bytes = [0; USAGE_BYTES];
        self.file.read_exact_at(&mut bytes, 0).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => UseUsage::Damaged,
            _ => UseUsage::Io(error),
        })?;
        Held::decode(&bytes).map_err(|_| UseUsage::Damaged)
    }

    /// Whether the file still has its name.
    pub fn is_linked(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }

    /// Changes the record while nobody else can. `change` may also make or remove files that the record counts.
    pub fn update<R>(&self, change: impl FnOnce(&mut Held) -> R) -> Result<R, UseUsage> {
        let _lock = FileLock::acquire(&self.file, LOCK_WAIT).map_err(UseUsage::Io)?.ok_or(UseUsage::Busy)?;
        let before = self.peek()?;
        let mut held = before;
        let answer = change(&mut held);
        if held != before {
            self.file.write_all_at(&held.encode(), 0).map_err(UseUsage::Io)?;
        }
        Ok(answer)
    }

    /// Replaces the record by what `count` finds while nobody else can change it.
    pub fn recount(&self, count: impl FnOnce() -> Held) -> Result<Held, UseUsage> {
        let _lock = FileLock::acquire(&self.file, LOCK_WAIT).map_err(UseUsage::Io)?.ok_or(UseUsage::Busy)?;
        let changes = self.peek().map_or(0, |held| held.changes);
        let held = Held { changes: changes + 1, ..count() };
        self.file.write_all_at(&held.encode(), 0).map_err(UseUsage::Io)?;
        Ok(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_version_1_are_pinned() {
        let held = Held { bytes: 0x0102, read_through_bytes: 3, files: 4, changes: 5 };
        let hex: String = held.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "4d5255534147450a0100000000000000020100000000000003000000000000000400000000000000050000000000000016abea0d"
        );
        assert_eq!(Held::decode(&held.encode()), Ok(held));
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_noticed() {
        let good = Held { bytes: 1 << 40, read_through_bytes: 1 << 20, files: 77, changes: 9 }.encode();
        for at in 0..USAGE_BYTES {
            for flip in 1..=255 {
                let mut bytes = good;
                bytes[at] ^= flip;
                assert!(Held::decode(&bytes).is_err(), "{at} {flip}");
            }
            assert_eq!(Held::decode(&good[..at]), Err(DecodeUsage::Damaged));
        }
        let mut newer = good;
        newer[8] = 9;
        assert_eq!(Held::decode(&newer), Err(DecodeUsage::Version(9)));
    }
}
