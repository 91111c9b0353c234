//! Where does a warm-up's ledger outlive its process?

use std::io::Write;
use std::path::{Path, PathBuf};

use millrace_api::ids::VersionId;

use super::ledger::Ledger;

/// Why a ledger could not be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum KeepLedger {
    /// The file cannot be written.
    #[error("write warm-up ledger {path:?}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file cannot be read.
    #[error("read warm-up ledger {path:?}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file is no ledger.
    #[error("parse warm-up ledger {path:?}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        source: serde_json::Error,
    },
}

fn path_of(dir: &Path, version: VersionId) -> PathBuf {
    dir.join(format!("{version}.json"))
}

/// Keeps a ledger: written beside and renamed, so that a reader finds the old or the new one.
///
/// # Errors
/// [`KeepLedger::Write`].
pub fn save(dir: &Path, version: VersionId, ledger: &Ledger) -> Result<(), KeepLedger> {
    let path = path_of(dir, version);
    let write = || {
        std::fs::create_dir_all(dir)?;
        let new = path.with_extension("new");
        let mut file = std::fs::File::create(&new)?;
        file.write_all(&serde_json::to_vec(ledger)?)?;
        file.sync_data()?;
        std::fs::rename(&new, &path)
    };
    write().map_err(|source| KeepLedger::Write { path: path.clone(), source })
}

/// Reads a version's ledger; `None` where there is none.
///
/// # Errors
/// [`KeepLedger::Read`] or [`KeepLedger::Parse`]: the caller starts a new one.
pub fn load(dir: &Path, version: VersionId) -> Result<Option<Ledger>, KeepLedger> {
    let path = path_of(dir, version);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(KeepLedger::Read { path, source }),
    };
    let mut ledger: Ledger =
        serde_json::from_slice(&bytes).map_err(|source| KeepLedger::Parse { path, source })?;
    ledger.rewind();
    Ok(Some(ledger))
}

/// Forgets the ledger of a version that is no longer used.
pub fn remove(dir: &Path, version: VersionId) {
    // A ledger left behind is small and read only if the version comes back.
    let _ = std::fs::remove_file(path_of(dir, version));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_reads_back_and_damage_is_told_apart_from_absence() {
        let dir = tempfile::tempdir().unwrap();
        let id = VersionId([3; 16]);
        assert!(load(dir.path(), id).unwrap().is_none());
        let ledger = Ledger::new(vec!["train".into()], 4);
        save(dir.path(), id, &ledger).unwrap();
        assert_eq!(load(dir.path(), id).unwrap(), Some(ledger));
        std::fs::write(path_of(dir.path(), id), b"{\"paths\": 7").unwrap();
        assert!(matches!(load(dir.path(), id), Err(KeepLedger::Parse { .. })));
        remove(dir.path(), id);
        assert!(load(dir.path(), id).unwrap().is_none());
    }
}
