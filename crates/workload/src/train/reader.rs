//! How is a sample read?

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::order::Sample;
use crate::error::Error;
use crate::tree::Listed;

/// Where samples come from.
pub trait Source: Sync {
    /// Reads a sample and says how many bytes it had.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn read(&self, sample: &Sample, scratch: &mut Scratch) -> Result<u64, Error>;
}

/// What a reading thread keeps from sample to sample. Bytes are read into the same buffer again and again: the memory of the
/// machine is left to what is measured.
#[derive(Debug)]
pub struct Scratch {
    buffer: Vec<u8>,
    open: Option<(usize, File)>,
}

impl Scratch {
    /// With a buffer of so many bytes.
    pub fn new(transfer_bytes: usize) -> Self {
        Self { buffer: vec![0; transfer_bytes.max(1)], open: None }
    }
}

/// Files of a folder.
#[derive(Debug, Clone, Copy)]
pub struct FolderSource<'a> {
    /// The files, by their numbers.
    pub files: &'a [&'a Listed],
}

impl Source for FolderSource<'_> {
    fn read(&self, sample: &Sample, scratch: &mut Scratch) -> Result<u64, Error> {
        let listed = self.files[sample.file];
        let path = || listed.path.clone();
        let opened = match scratch.open.take() {
            // The next record of the same file.
            Some((file, opened)) if file == sample.file && sample.offset > 0 => opened,
            _ => File::open(&listed.path).map_err(|source| Error::Open { path: path(), source })?,
        };
        let mut done = 0;
        while done < sample.length {
            let offset = sample.offset + done;
            let rest = usize::try_from(sample.length - done).unwrap_or(usize::MAX);
            let length = rest.min(scratch.buffer.len());
            let read = opened.read_at(&mut scratch.buffer[..length], offset);
            match read.map_err(|source| Error::Read { path: path(), offset, source })? {
                0 => return Err(Error::Shrunk { path: path(), offset, size: listed.size }),
                read => done += read as u64,
            }
        }
        // Files of one sample are closed with it; the last record of a file leaves it open until the next file.
        if sample.offset + sample.length < listed.size {
            scratch.open = Some((sample.file, opened));
        }
        Ok(done)
    }
}

/// No storage at all: copies from memory. What it leaves of an accelerator's time is what this program itself takes.
#[derive(Debug)]
pub struct MemorySource {
    bytes: Vec<u8>,
}

impl MemorySource {
    /// With so much to copy from, again and again.
    pub fn new(transfer_bytes: usize) -> Self {
        Self { bytes: vec![1; transfer_bytes.max(1)] }
    }
}

impl Source for MemorySource {
    fn read(&self, sample: &Sample, scratch: &mut Scratch) -> Result<u64, Error> {
        let mut done = 0;
        while done < sample.length {
            let rest = usize::try_from(sample.length - done).unwrap_or(usize::MAX);
            let length = rest.min(scratch.buffer.len()).min(self.bytes.len());
            scratch.buffer[..length].copy_from_slice(&self.bytes[..length]);
            std::hint::black_box(&mut scratch.buffer);
            done += length as u64;
        }
        Ok(done)
    }
}
