//! How fast are whole files read, each from its beginning to its end?

use std::io::Read;

use super::Access;
use super::opening::{buffer_bytes, open};
use crate::aligned::AlignedBuffer;
use crate::error::Error;
use crate::map::MappedFile;
use crate::run::{Outcome, Plan, for_each};
use crate::tree::Listed;

/// Reads each file once by `read`, in the order given; each thread takes the next one.
///
/// # Errors
/// The first file that cannot be read.
pub fn sequential(
    plan: Plan<'_>,
    files: &[&Listed],
    block_bytes: u64,
    access: Access,
) -> Result<Outcome, Error> {
    let length = buffer_bytes(block_bytes, access)?;
    let buffer = || AlignedBuffer::new(length);
    for_each(plan, files, buffer, |worker, file, buffer| {
        let buffer = buffer.as_mut();
        let mut opened = open(&file.path, access)?;
        let mut offset = 0;
        while worker.goes_on() {
            let read = worker.time(|| opened.read(buffer));
            let read = read.map_err(|source| Error::Read { path: file.path.clone(), offset, source })?;
            offset += read as u64;
            worker.bytes += read as u64;
            // A short read is the end too: another one would only be answered by 0, and count as an operation.
            if read < buffer.len() || offset >= file.size {
                return file.ended_at(offset).map(|()| true);
            }
        }
        Ok(false)
    })
}

/// Reads each file once through a mapping, copying block by block.
///
/// # Errors
/// The first file that cannot be opened or mapped. One that cannot be read ends the program with SIGBUS.
pub fn mapped(plan: Plan<'_>, files: &[&Listed], block_bytes: u64) -> Result<Outcome, Error> {
    let length = buffer_bytes(block_bytes, Access::Cached)?;
    let buffer = || AlignedBuffer::new(length);
    for_each(plan, files, buffer, |worker, file, buffer| {
        let opened = open(&file.path, Access::Cached)?;
        let map =
            MappedFile::new(&opened).map_err(|source| Error::Map { path: file.path.clone(), source })?;
        let mut offset = 0;
        while worker.goes_on() {
            let copied = worker.time(|| map.copy(offset, buffer.as_mut()));
            offset += copied;
            worker.bytes += copied as u64;
            if offset >= map.len() {
                return file.ended_at(offset as u64).map(|()| true);
            }
        }
        Ok(false)
    })
}
