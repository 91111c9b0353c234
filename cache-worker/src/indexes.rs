//! How do index files get into this worker's folder?

use std::path::{Path, PathBuf};

use millrace_api::ids::VersionId;
use millrace_store::index_file::{IncomingIndex, IndexFile, UseIndex};

/// Why an index could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallIndex {
    /// The index cannot be used, or not be put in its place.
    #[error("install index")]
    Use(#[source] UseIndex),
    /// The bytes cannot be copied to their place.
    #[error("copy index {path:?} to its folder")]
    Copy {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The worker is stopping.
    #[error("the worker is stopping")]
    CutOff,
}

/// Opens the installed index of a version, and reads all of it where that is asked for or quick; `None` where there is
/// none.
///
/// # Errors
/// It is there and cannot be used.
pub fn open(dir: &Path, id: VersionId, verifies: bool) -> Result<Option<IndexFile>, UseIndex> {
    let index = match IndexFile::open(dir, id) {
        Ok(index) => index,
        Err(UseIndex::Absent { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    if verifies || index.is_quick_to_verify() {
        index.verify()?;
    }
    Ok(Some(index))
}

/// Verifies a whole index file, puts a copy of it in its place, and opens that.
///
/// # Errors
/// It is damaged or another version's, or the folder cannot be written.
pub async fn install(dir: &Path, file: &Path, id: VersionId) -> Result<IndexFile, InstallIndex> {
    let (dir, file) = (dir.to_owned(), file.to_owned());
    let installing = tokio::task::spawn_blocking(move || {
        let incoming = IncomingIndex::create(&dir).map_err(InstallIndex::Use)?;
        let copy =
            std::fs::File::open(&file).and_then(|mut from| std::io::copy(&mut from, &mut incoming.file()));
        copy.map_err(|source| InstallIndex::Copy { path: file, source })?;
        incoming.install(Some(id)).map_err(InstallIndex::Use)
    });
    installing.await.unwrap_or(Err(InstallIndex::CutOff))
}

/// Removes a version's index; reads that still use it go on.
pub fn remove(dir: &Path, id: VersionId) {
    if let Err(error) = IndexFile::remove(dir, id) {
        tracing::warn!(version = %id, error = %error, "index not removed");
    }
}
