//! How is a file read through a mapping?
//!
//! The crate's only unsafe code.

#![expect(
    unsafe_code,
    reason = "mapping a file is unsafe by nature; what makes it sound is said at the block"
)]

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// A mapped file.
#[derive(Debug)]
pub(crate) struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps all of a file.
    pub fn new(file: &File) -> io::Result<Self> {
        // SAFETY: bytes leave the map only as copies into a buffer that nobody looks at, so that a file that changes under
        // the map changes no decision. One that is cut short, or cannot be read, ends the program with SIGBUS, as it
        // does every program that maps it; the help says so.
        Ok(Self { map: unsafe { Mmap::map(file)? } })
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Copies bytes from an offset on, and says how many: fewer than asked for at the end.
    pub fn copy(&self, offset: usize, buffer: &mut [u8]) -> usize {
        let rest = self.map.get(offset..).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        length
    }
}
