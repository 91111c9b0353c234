//! How fast are many small files read, in an order that nobody can foresee?

use std::fs::File;
use std::io::Read;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::error::Error;
use crate::run::{Outcome, Plan, for_each};
use crate::tree::Listed;

/// Files up to this size are small: opening one takes about as long as reading it.
pub const SMALL_BYTES: u64 = 1 << 20;

/// Opens, reads and closes each file once, shuffled by the plan's seed; each thread takes the next one. One operation is one
/// file, from open to close.
///
/// # Errors
/// The first file that cannot be read.
pub fn small_files(plan: Plan<'_>, files: &[&Listed]) -> Result<Outcome, Error> {
    let mut order: Vec<&Listed> = files.to_vec();
    order.shuffle(&mut SmallRng::seed_from_u64(plan.seed));
    let largest = order.iter().map(|file| file.size).max().unwrap_or(0);
    // One byte more than any file has, so that the end is seen without another read.
    let buffer_bytes = usize::try_from(largest).unwrap_or(usize::MAX).saturating_add(1);
    let buffer = || vec![0; buffer_bytes];
    for_each(plan, &order, buffer, |worker, file, buffer| {
        let read = worker.time(|| whole(file, buffer))?;
        file.ended_at(read)?;
        worker.bytes += read;
        Ok(true)
    })
}

/// Opens, reads and closes one file, and says how many bytes there were.
fn whole(file: &Listed, buffer: &mut [u8]) -> Result<u64, Error> {
    let mut opened =
        File::open(&file.path).map_err(|source| Error::Open { path: file.path.clone(), source })?;
    let mut offset = 0;
    loop {
        let read =
            opened.read(buffer).map_err(|source| Error::Read { path: file.path.clone(), offset, source })?;
        offset += read as u64;
        if read == 0 || offset >= file.size {
            return Ok(offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Monotonic;
    use crate::tree::{MAX_FILES, Tree};
    use std::time::Duration;

    #[test]
    fn every_file_is_read_once_by_any_number_of_threads() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..50 {
            std::fs::write(dir.path().join(number.to_string()), vec![1; number * 100]).unwrap();
        }
        let tree = Tree::list(dir.path(), MAX_FILES).unwrap();
        let files = tree.at_most(SMALL_BYTES).unwrap();
        for threads in [1, 4] {
            let plan = Plan { clock: &Monotonic, threads, runtime: Duration::from_secs(600), seed: 3 };
            let outcome = small_files(plan, &files).unwrap();
            assert_eq!((outcome.files, outcome.operations), (50, 50));
            assert_eq!((outcome.bytes, outcome.is_complete), (tree.bytes(), true));
        }
        std::fs::write(dir.path().join("7"), "").unwrap();
        let plan = Plan { clock: &Monotonic, threads: 2, runtime: Duration::from_secs(600), seed: 3 };
        let error = small_files(plan, &files).unwrap_err();
        assert!(matches!(&error, Error::Shrunk { offset: 0, size: 700, .. }), "{error}");
    }
}
