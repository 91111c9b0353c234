//! How fast are whole files read, each from its beginning to its end?

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Access;
use super::opening::{buffer_bytes, open};
use crate::aligned::AlignedBuffer;
use crate::error::Error;
use crate::map::MappedFile;
use crate::run::{Outcome, Plan, Worker, on_threads};
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
    each_file(plan, files, length, |worker, file, buffer| {
        let mut opened = open(&file.path, access)?;
        let mut offset = 0;
        while worker.goes_on() {
            let read = worker.time(|| opened.read(buffer));
            let read = read.map_err(|source| Error::Read { path: file.path.clone(), offset, source })?;
            offset += read as u64;
            worker.bytes += read as u64;
            // A short read is the end too: another one would only be answered by 0, and count as an operation.
            if read < buffer.len() || offset >= file.size {
                return is_whole(file, offset).map(|()| true);
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
    each_file(plan, files, length, |worker, file, buffer| {
        let opened = open(&file.path, Access::Cached)?;
        let map =
            MappedFile::new(&opened).map_err(|source| Error::Map { path: file.path.clone(), source })?;
        let mut offset = 0;
        while worker.goes_on() {
            let copied = worker.time(|| map.copy(offset, buffer));
            offset += copied;
            worker.bytes += copied as u64;
            if offset >= map.len() {
                return is_whole(file, offset as u64).map(|()| true);
            }
        }
        Ok(false)
    })
}

fn is_whole(file: &Listed, offset: u64) -> Result<(), Error> {
    if offset < file.size {
        return Err(Error::Shrunk { path: file.path.clone(), offset, size: file.size });
    }
    Ok(())
}

/// Gives each file to one thread; `read` says whether it came to the file's end.
fn each_file<F>(plan: Plan<'_>, files: &[&Listed], buffer_bytes: usize, read: F) -> Result<Outcome, Error>
where
    F: Fn(&mut Worker<'_>, &Listed, &mut [u8]) -> Result<bool, Error> + Sync,
{
    let next = AtomicUsize::new(0);
    on_threads(plan, |worker| {
        let mut buffer = AlignedBuffer::new(buffer_bytes);
        while worker.goes_on() {
            let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) else { return Ok(true) };
            if !read(worker, file, buffer.as_mut())? {
                return Ok(false);
            }
            worker.files += 1;
        }
        Ok(next.load(Ordering::Relaxed) >= files.len())
    })
}
