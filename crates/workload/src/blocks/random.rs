//! How fast are blocks read at random?

use std::fs::File;
use std::os::unix::fs::FileExt;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::Access;
use super::opening::{buffer_bytes, open};
use crate::aligned::AlignedBuffer;
use crate::error::Error;
use crate::run::{Outcome, Plan, on_threads};
use crate::tree::Listed;

/// So many files at most are read, the largest ones: all are held open, and 1,024 descriptors is what a process may have.
pub const MAX_OPEN_FILES: usize = 256;

/// Reads blocks at random for the whole of the plan's time, each block of the largest files as likely as any other.
///
/// # Errors
/// The first file that cannot be read.
pub fn random(plan: Plan<'_>, files: &[&Listed], block_bytes: u64, access: Access) -> Result<Outcome, Error> {
    let length = buffer_bytes(block_bytes, access)?;
    let block_bytes = length as u64;
    let opened = Blocks::open(files, block_bytes, access)?;
    on_threads(plan, |worker| {
        // Another sequence for each thread, the same in each run of a seed.
        let mut rng = SmallRng::seed_from_u64(plan.seed ^ (worker.index as u64).rotate_left(32));
        let mut buffer = AlignedBuffer::new(length);
        while worker.goes_on() && opened.count > 0 {
            let (file, opened, block) = opened.block(rng.random_range(0..opened.count));
            let offset = block * block_bytes;
            let read = worker.time(|| opened.read_at(buffer.as_mut(), offset));
            let read = read.map_err(|source| Error::Read { path: file.path.clone(), offset, source })?;
            if read < length {
                let offset = offset + read as u64;
                return Err(Error::Shrunk { path: file.path.clone(), offset, size: file.size });
            }
            worker.bytes += read as u64;
        }
        Ok(true)
    })
}

/// All whole blocks of some open files, numbered.
struct Blocks<'a> {
    /// Each with the number of its first block.
    files: Vec<(u64, &'a Listed, File)>,
    count: u64,
}

impl<'a> Blocks<'a> {
    fn open(files: &[&'a Listed], block_bytes: u64, access: Access) -> Result<Self, Error> {
        let mut largest: Vec<_> = files.iter().copied().filter(|file| file.size >= block_bytes).collect();
        largest.sort_by(|one, other| other.size.cmp(&one.size).then_with(|| one.path.cmp(&other.path)));
        largest.truncate(MAX_OPEN_FILES);
        let mut blocks = Self { files: Vec::with_capacity(largest.len()), count: 0 };
        for file in largest {
            blocks.files.push((blocks.count, file, open(&file.path, access)?));
            blocks.count += file.size / block_bytes;
        }
        Ok(blocks)
    }

    /// The file of a block, and the block's number in it.
    fn block(&self, number: u64) -> (&'a Listed, &File, u64) {
        let after = self.files.partition_point(|(first, _, _)| *first <= number);
        // The first file begins with block 0, so that at least one file is not after the block.
        let (first, file, opened) = &self.files[after - 1];
        (file, opened, number - first)
    }
}
