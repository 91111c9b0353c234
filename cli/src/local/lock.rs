//! Which process supervises a Dataset?

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::process::ProcessId;

/// The lock; given up when it is dropped, and by the kernel when the process ends in whatever way.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Why the lock is not ours.
#[derive(Debug, thiserror::Error)]
pub enum TakeLock {
    /// Another process holds it.
    #[error("dataset is up already{}: stop it with `millrace local down`", by(*holder))]
    Held {
        /// Who, where it is known.
        holder: Option<u32>,
    },
    /// The file cannot be used.
    #[error("lock {path:?}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn by(holder: Option<u32>) -> String {
    holder.map(|pid| format!(", by process {pid}")).unwrap_or_default()
}

/// Takes the lock for this process and writes its id into the file.
///
/// # Errors
/// [`TakeLock`].
pub fn take(path: &Path) -> Result<Lock, TakeLock> {
    let failed = |source| TakeLock::File { path: path.to_owned(), source };
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            return Err(TakeLock::Held { holder: holder(path).map(|holder| holder.pid) });
        }
        Err(errno) => return Err(failed(errno.into())),
    }
    let me = ProcessId::of(std::process::id());
    let text = serde_json::to_vec(&me).map_err(|error| failed(error.into()))?;
    file.set_len(0).and_then(|()| file.write_all(&text)).map_err(failed)?;
    Ok(Lock { _file: file })
}

/// Tells who supervises, without touching the lock; `None` where nobody does.
pub fn holder(path: &Path) -> Option<ProcessId> {
    let text = std::fs::read(path).ok()?;
    let holder: Option<ProcessId> = serde_json::from_slice(&text).ok()?;
    holder.filter(ProcessId::is_alive)
}

impl Lock {
    /// Gives the lock up, and takes our name off it first.
    pub fn release(self, path: &Path) {
        // Whoever reads the name of a process that has ended sees that it has; the name is only kept from misleading.
        let _ = std::fs::write(path, "null");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_supervisor_is_refused_by_the_first_ones_id() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(holder(&path), None);
        let first = take(&path).unwrap();
        let refused = take(&path).unwrap_err();
        assert!(matches!(refused, TakeLock::Held { holder: Some(pid) } if pid == std::process::id()));
        assert!(refused.to_string().contains("millrace local down"));
        first.release(&path);
        assert_eq!(holder(&path), None);
        assert!(take(&path).is_ok());
    }
}
