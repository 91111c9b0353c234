//! How are small files of the driver written so that a reader never meets half of one?

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a file whole, or not at all; only its owner may read it. Not synced: what a power failure takes is void after it anyway.
///
/// # Errors
/// Of the file system; then the former content stands.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    file.write_all(content)?;
    std::fs::rename(&partial, path)
}

/// Removes a file; one that is not there is fine.
///
/// # Errors
/// Of the file system.
pub fn remove(path: &Path) -> io::Result<()> {
    absent_is_fine(std::fs::remove_file(path))
}

/// Removes an empty folder; one that is not there is fine.
///
/// # Errors
/// Of the file system, also when something is in it.
pub fn remove_folder(path: &Path) -> io::Result<()> {
    absent_is_fine(std::fs::remove_dir(path))
}

fn absent_is_fine(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
