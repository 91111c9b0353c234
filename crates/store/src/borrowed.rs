//! How are files of another process's store read where they lie?
//!
//! A worker that runs on the reader's node has its store in a volume which the node sees too. Its files are read there, and
//! handed to the kernel, without a copy of them. Nothing is written but what every reader of a store writes: stamps of
//! use, marks and seals. What does not fit is not mended, which is its owner's affair: it is no longer believed, and
//! read another way. Who owns the store evicts nothing that the kernel holds, as ever (see the module `whole`).
//!
//! The folder belongs to somebody with fewer rights than this process. Every file is therefore opened below it without
//! following links and without leaving its file system, and only if it is a regular file.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use millrace_api::ids::ContentId;
use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::Errno;

use crate::pair::{Opened, Part, open_pair_by};

/// Most contents that are not believed; with one more the whole folder is not.
const MAX_DISTRUSTED: usize = 4096;

/// Where somebody else's store is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BorrowedFolder {
    /// A folder that only the system writes to.
    pub base: PathBuf,
    /// The store's folder, below it.
    pub below: PathBuf,
}

impl BorrowedFolder {
    /// The store's folder.
    pub fn path(&self) -> PathBuf {
        self.base.join(&self.below)
    }
}

/// A folder of somebody else's store, opened.
#[derive(Debug)]
pub(crate) struct Borrowed {
    root: OwnedFd,
    distrusted: Mutex<HashSet<ContentId>>,
}

impl Borrowed {
    /// Opens a folder in which a store lies.
    pub fn open(folder: &BorrowedFolder) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = openat(CWD, &folder.base, flags, Mode::empty())?;
        let root = openat2(base, &folder.below, flags, Mode::empty(), beneath())?;
        openat2(&root, "blocks", flags, Mode::empty(), beneath())?;
        Ok(Self { root, distrusted: Mutex::default() })
    }

    /// Opens a data file and its sidecar.
    pub fn open_pair(&self, content: ContentId) -> io::Result<Opened> {
        open_pair_by(content, |part| self.open_part(content, part))
    }

    /// Opens one of them: the sidecar for writing too, where that can be.
    pub fn open_part(&self, content: ContentId, part: Part) -> io::Result<Option<(File, bool)>> {
        let name = content.to_string();
        let path = Path::new("blocks").join(&name[..2]).join(format!("{name}.{}", part.extension()));
        let access = match part {
            Part::Data => &[OFlags::RDONLY][..],
            Part::Sidecar => &[OFlags::RDWR, OFlags::RDONLY],
        };
        // Else the open of a pipe that somebody put there would wait.
        let flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        for access in access {
            match openat2(&self.root, &path, *access | flags, Mode::empty(), beneath()) {
                Ok(file) if FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::RegularFile => {
                    return Ok(Some((file.into(), part == Part::Data || access.contains(OFlags::RDWR))));
                }
                Ok(_) => return Err(io::Error::other("not a regular file")),
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::ROFS) if access.contains(OFlags::RDWR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::ROFS.into())
    }

    /// Believes nothing more of a content here.
    pub fn distrust(&self, content: ContentId) {
        let mut distrusted = self.distrusted.lock();
        if distrusted.len() <= MAX_DISTRUSTED {
            distrusted.insert(content);
        }
    }

    /// Whether a content may be looked for here.
    pub fn trusts(&self, content: ContentId) -> bool {
        let distrusted = self.distrusted.lock();
        distrusted.len() <= MAX_DISTRUSTED && !distrusted.contains(&content)
    }
}

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV
}
