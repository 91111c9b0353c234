//! What can go wrong while a folder is measured?

use std::io;
use std::path::PathBuf;

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A folder cannot be listed.
    #[error("read folder {path:?}")]
    ReadFolder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file or folder cannot be looked at.
    #[error("stat {path:?}")]
    Stat {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be opened.
    #[error("open {path:?}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file system knows no direct reads.
    #[error(
        "open {path:?} with O_DIRECT: its file system has no direct reads; leave away the case direct and --direct"
    )]
    NoDirect {
        /// The file.
        path: PathBuf,
    },
    /// A block size is not allowed with direct reads.
    #[error("block size {bytes} with O_DIRECT: must be a multiple of 4096")]
    UnalignedBlock {
        /// The block size, bytes.
        bytes: u64,
    },
    /// A file cannot be read.
    #[error("read {path:?} at {offset}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Where, bytes.
        offset: u64,
        /// Why.
        source: io::Error,
    },
    /// A file has become shorter.
    #[error(
        "{path:?} ends at {offset}, but had {size} bytes when it was listed: measure a folder that nobody writes to"
    )]
    Shrunk {
        /// The file.
        path: PathBuf,
        /// Where it ends, bytes.
        offset: u64,
        /// Its size by the listing, bytes.
        size: u64,
    },
    /// A file cannot be mapped into memory.
    #[error("map {path:?} into memory")]
    Map {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A folder does not hold what a case needs.
    #[error("no {wanted} below {path:?}: found {found}; {cure}")]
    NothingToRead {
        /// The folder.
        path: PathBuf,
        /// What the case needs, such as "file of at least 1 MiB".
        wanted: String,
        /// What is there.
        found: String,
        /// What to do about it.
        cure: String,
    },
    /// A folder for a new data set holds something.
    #[error(
        "make a data set in {path:?}: {entry:?} is there already; give a folder that is empty or does not exist"
    )]
    NotEmpty {
        /// The folder.
        path: PathBuf,
        /// One of the entries.
        entry: PathBuf,
    },
    /// A data set does not fit.
    #[error(
        "make a data set in {path:?}: it takes {}, and {} are free; make fewer --files, or smaller ones with --sample-scale",
        crate::tree::size_text(*needed),
        crate::tree::size_text(*free)
    )]
    NoRoom {
        /// The folder.
        path: PathBuf,
        /// Bytes of the data set.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A file of a data set cannot be written.
    #[error("write {path:?}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The page cache cannot be dropped.
    #[error("drop the page cache: run as root, or leave away --drop-caches and remount instead")]
    DropCaches {
        /// Why.
        source: io::Error,
    },
    /// No thread can be started.
    #[error("start a thread")]
    Thread {
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// Whether a case cannot be measured here because of what the folder holds or its file system can do, not because something
    /// failed.
    pub fn is_about_the_folder(&self) -> bool {
        match self {
            Self::NoDirect { .. } | Self::NothingToRead { .. } => true,
            Self::ReadFolder { .. }
            | Self::Stat { .. }
            | Self::Open { .. }
            | Self::UnalignedBlock { .. }
            | Self::Read { .. }
            | Self::Shrunk { .. }
            | Self::Map { .. }
            | Self::NotEmpty { .. }
            | Self::NoRoom { .. }
            | Self::Write { .. }
            | Self::DropCaches { .. }
            | Self::Thread { .. } => false,
        }
    }
}
