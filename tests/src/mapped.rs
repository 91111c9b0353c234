//! How does a test read a file by mmap?

#![expect(unsafe_code, reason = "mapping a file is unsafe, and it is what these tests are about")]

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

/// Maps a file of a mount.
pub fn map(path: &Path) -> Mmap {
    let file = File::open(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    // SAFETY: the files of a mount never change, which the mount process keeps; where their bytes cannot be had the
    // kernel sends SIGBUS, which ends the process and is what one of the tests looks for.
    unsafe { Mmap::map(&file) }.unwrap_or_else(|error| panic!("{path:?}: {error}"))
}
