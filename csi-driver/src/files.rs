//! How are files and folders of the driver removed, whether they are there or not, and how are files seen to change?

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

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

/// How often a file that is followed is looked at: one stat a second costs nothing.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A file that others write and that is followed.
#[derive(Debug)]
pub struct WatchedFile {
    path: PathBuf,
    seen: Option<Stamp>,
}

/// What tells two states of a file apart.
type Stamp = (SystemTime, u64, u64);

impl WatchedFile {
    /// Of which nothing is known: what it says now is news.
    pub fn new(path: PathBuf) -> Self {
        Self { path, seen: None }
    }

    /// Of which is known what it says now.
    pub fn from_now(path: PathBuf) -> Self {
        Self { seen: stamp(&path), path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its state is another than at the last look; also one that has gone.
    pub fn has_changed(&mut self) -> bool {
        let now = stamp(&self.path);
        std::mem::replace(&mut self.seen, now) != now
    }

    /// Waits until its state is another than at the last look.
    ///
    /// # Cancel safety
    /// Safe: no change is lost.
    pub async fn changed(&mut self) {
        while !self.has_changed() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// The state of a file; none where it is not there.
fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
}
