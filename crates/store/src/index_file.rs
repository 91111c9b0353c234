//! Where do the indexes of dataset versions lie, and is one that came in whole?
//!
//! One file a version, `<dir>/<version id>.idx`, shared by all processes of the folder. It comes in under another name
//! and gets its own only when its hash and structure are verified and its bytes are on the disk, so that what is found
//! under that name was whole once.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_api::ids::VersionId;
use millrace_api::index::{IndexView, OpenIndex, VerifyIndex};

use crate::map::MappedIndex;

/// Largest index that is read whole whenever it is opened: half a million objects, some 50 ms. Reading that of ten million
/// would take longer than a mount may, so whoever serves a larger one reads it behind the first reads.
const QUICK_BYTES: u64 = 64 << 20;

/// Why an index cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UseIndex {
    /// The folder has no index of this version.
    #[error("no index of version {id} in {dir:?}")]
    Absent {
        /// The version wanted.
        id: VersionId,
        /// The folder.
        dir: PathBuf,
    },
    /// The file system failed.
    #[error("{what} index file {path:?}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The bytes are not those of an index: remove the file and fetch it again.
    #[error("open index file {path:?}: it is damaged")]
    Open {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: OpenIndex,
    },
    /// Hash or structure do not hold: remove the file and fetch it again.
    #[error("verify index file {path:?}: it is damaged")]
    Verify {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: VerifyIndex,
    },
    /// It is the index of another version.
    #[error("index file {path:?} is of version {found}, expected {expected}")]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// The version it says.
        found: VersionId,
        /// The version wanted.
        expected: VersionId,
    },
}

impl UseIndex {
    /// Whether the file is there but must be fetched again.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Open { .. } | Self::Verify { .. } | Self::OtherVersion { .. } => true,
            Self::Absent { .. } | Self::Io { .. } => false,
        }
    }
}

/// The mapped index of a dataset version. Clones share the mapping.
#[derive(Debug, Clone)]
pub struct IndexFile {
    path: PathBuf,
    mapped: Arc<MappedIndex>,
}

impl IndexFile {
    /// Opens the index of a version without reading it: its header and bounds are checked, its hash is not. The caller
    /// calls [`verify`](Self::verify), before it serves where that [is quick](Self::is_quick_to_verify) or a process has
    /// died, else behind: bits may have flipped on the disk.
    ///
    /// # Errors
    /// [`UseIndex::Absent`] where it is not there; see [`UseIndex::is_damage`] for what to fetch again.
    pub fn open(dir: &Path, id: VersionId) -> Result<Self, UseIndex> {
        let path = path_of(dir, id);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(UseIndex::Absent { id, dir: dir.to_owned() });
            }
            other => other.map_err(failed("open", &path))?,
        };
        let mapped = map(&file, &path)?;
        let found = mapped.view().version_id();
        if found != id {
            return Err(UseIndex::OtherVersion { path, found, expected: id });
        }
        Ok(Self { path, mapped: Arc::new(mapped) })
    }

    /// Whether reading it whole takes no longer than whoever waits for a mount would notice.
    pub fn is_quick_to_verify(&self) -> bool {
        self.len() <= QUICK_BYTES
    }

    /// Reads the whole file and compares hash and structure.
    ///
    /// # Errors
    /// [`UseIndex::Verify`] where it does not hold.
    pub fn verify(&self) -> Result<(), UseIndex> {
        self.view().verify().map_err(|source| UseIndex::Verify { path: self.path.clone(), source })
    }

    /// The index.
    pub fn view(&self) -> IndexView<'_> {
        self.mapped.view()
    }

    /// Where it lies, to send it to others.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the file, bytes.
    pub fn len(&self) -> u64 {
        self.mapped.len()
    }

    /// Always false: the shortest index has a header.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The versions whose indexes are in a folder, in no order; none where the folder is not there.
    ///
    /// # Errors
    /// [`UseIndex::Io`] where the folder cannot be read.
    pub fn list(dir: &Path) -> Result<Vec<VersionId>, UseIndex> {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed("list", dir))?,
        };
        let id = |path: &Path| path.file_stem().and_then(OsStr::to_str)?.parse().ok();
        Ok(entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION))
            .filter_map(|path| id(&path))
            .collect())
    }

    /// Removes the index of a version. Whoever has it open keeps it.
    ///
    /// # Errors
    /// [`UseIndex::Io`] where it stays; one that is not there is removed already.
    pub fn remove(dir: &Path, id: VersionId) -> Result<(), UseIndex> {
        let path = path_of(dir, id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &path)(error)),
            _ => Ok(()),
        }
    }
}

/// An index that is being written or fetched. Its file is removed on drop unless it was installed.
#[derive(Debug)]
pub struct IncomingIndex {
    dir: PathBuf,
    path: PathBuf,
    file: File,
    is_installed: bool,
}

impl IncomingIndex {
    /// Makes an empty file in `dir`, which is made too.
    ///
    /// # Errors
    /// [`UseIndex::Io`] where that fails.
    pub fn create(dir: &Path) -> Result<Self, UseIndex> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("incoming-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = dir.join(name);
        fs::create_dir_all(dir).map_err(failed("make the folder of", &path))?;
        // A file of this name is what a killed process of the same number left.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed("make", &path))?;
        Ok(Self { dir: dir.to_owned(), path, file, is_installed: false })
    }

    /// The file to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where it is, for those who open it themselves.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Verifies the whole index, makes it lasting, gives it its name and opens it. It does not matter if another
    /// process installs the same version at the same time.
    ///
    /// `expected` is the version that was fetched; `None` where the index was made here.
    ///
    /// # Errors
    /// See [`UseIndex`]; the file is then removed.
    pub fn install(mut self, expected: Option<VersionId>) -> Result<IndexFile, UseIndex> {
        let mapped = map(&self.file, &self.path)?;
        let found = mapped.view().version_id();
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            return Err(UseIndex::OtherVersion { path: self.path.clone(), found, expected });
        }
        mapped.view().verify().map_err(|source| UseIndex::Verify { path: self.path.clone(), source })?;
        self.file.sync_all().map_err(failed("sync", &self.path))?;
        let path = path_of(&self.dir, found);
        fs::rename(&self.path, &path).map_err(failed("name", &path))?;
        self.is_installed = true;
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(failed("sync the folder of", &path))?;
        Ok(IndexFile { path, mapped: Arc::new(mapped) })
    }
}

impl Drop for IncomingIndex {
    fn drop(&mut self) {
        if !self.is_installed {
            // A left-over is overwritten or removed with the folder.
            let _ = fs::remove_file(&self.path);
        }
    }
}

const EXTENSION: &str = "idx";

fn path_of(dir: &Path, id: VersionId) -> PathBuf {
    dir.join(format!("{id}.{EXTENSION}"))
}

fn map(file: &File, path: &Path) -> Result<MappedIndex, UseIndex> {
    MappedIndex::new(file)
        .map_err(failed("map", path))?
        .map_err(|source| UseIndex::Open { path: path.to_owned(), source })
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> UseIndex {
    move |source| UseIndex::Io { what, path: path.to_owned(), source }
}
