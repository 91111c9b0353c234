//! How are files and folders of the driver removed, whether they are there or not, and how are files seen to change?

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

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

/// What tells two states of a file apart.
pub type Stamp = (SystemTime, u64, u64);

/// The state of a file; none where it is not there.
pub fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}
