//! Did an earlier process die while it served from the maps of a folder?
//!
//! A read error under a mapped index is a SIGBUS, which ends the process. Its successor must not trust that index before
//! it has read it whole. So each process that serves from a folder leaves a file there, locked while it lives and removed
//! when it ends in order: an unlocked one was left by a dead process.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// What the names of the files start with; the process id follows.
const PREFIX: &str = "serving.";

/// The mark of a process that serves from a folder.
#[derive(Debug)]
pub struct ServingMark {
    path: PathBuf,
    /// Holds the lock.
    file: File,
    is_after_death: bool,
}

impl ServingMark {
    /// Marks `dir`, which is made if it is not there, and takes away what dead processes have left.
    ///
    /// # Errors
    /// When the folder cannot be read or the file not be made.
    pub fn leave(dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let is_after_death = take_away_marks_of_the_dead(dir)?;
        let path = dir.join(format!("{PREFIX}{}", std::process::id()));
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { path, file, is_after_death })
    }

    /// Whether a process died here without taking its mark away: verify before serving.
    pub fn is_after_death(&self) -> bool {
        self.is_after_death
    }
}

impl Drop for ServingMark {
    fn drop(&mut self) {
        // Removed before the lock goes with the file. If it stays, the successor verifies once too often.
        let _ = std::fs::remove_file(&self.path);
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

fn take_away_marks_of_the_dead(dir: &Path) -> io::Result<bool> {
    let mut found = false;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(file) = OpenOptions::new().write(true).open(entry.path()) else {
            continue;
        };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            found = true;
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_left_behind_tells_of_a_death_once() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!ServingMark::leave(dir.path()).unwrap().is_after_death(), "the first");
        assert!(!ServingMark::leave(dir.path()).unwrap().is_after_death(), "after one that ended in order");
        std::fs::write(dir.path().join("serving.999999999"), "").unwrap();
        assert!(ServingMark::leave(dir.path()).unwrap().is_after_death());
        assert!(!ServingMark::leave(dir.path()).unwrap().is_after_death());
    }

    #[test]
    fn a_living_neighbour_is_not_taken_for_dead() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("serving.1");
        let neighbour = File::create(&path).unwrap();
        flock(&neighbour, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(!ServingMark::leave(dir.path()).unwrap().is_after_death());
        assert!(path.exists());
    }
}
