//! Which files does the kernel hold open, in which mode and by which backing id?
//!
//! The kernel demands that all opens of a node agree: one backing id for all, and no passthrough beside cached opens;
//! else open(2) fails with EIO. An entry lives from before its OPEN is answered until its RELEASE has come, which is
//! longer than the kernel itself holds the file: it lets go of the mode before it sends RELEASE. The answer to an OPEN is
//! sent by the caller; [`OpenTable::answered`] hears whether the kernel took it.
//!
//! Ids of files that are closed are kept for the next open, the longest unused ones within [`Idle`]. All of it is also
//! written to records in shared memory (module `open_record`), from which another process goes on ([`OpenTable::take_over`]).

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use parking_lot::Mutex;
use rustix::io::Errno;
use thiserror::Error;

use crate::abi::UNIQUE_RESEND;
use crate::backing::Backing;
use crate::filesystem::Opened;
use crate::node::{FileHandle, NodeId};
use crate::open_nodes::{Table, close, opened};
use crate::open_record::Records;

/// A table that cannot be made or taken over.
#[derive(Debug, Error)]
pub enum OpenTableError {
    /// Shared memory could not be had.
    #[error("make the table of open files in shared memory")]
    Make(#[source] io::Error),
    /// The memory of another process could not be read.
    #[error("read the table of open files of another process")]
    Read(#[source] io::Error),
    /// It is of another version.
    #[error("table of open files has another layout: it cannot be taken over")]
    Layout,
}

/// Why a file was not opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NotOpened {
    /// The node is open in a way that does not go with the one wanted.
    Held(Held),
    /// The table is full.
    Full,
    /// There is no file to hand to the kernel any more.
    NoFile,
    /// The kernel refused the file.
    Refused(Errno),
}

/// How a node is held open.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Held {
    /// Not at all.
    Free,
    /// Through the page cache.
    Cached,
    /// By the kernel itself; the tag is that of the file it reads.
    Passthrough {
        /// What the file system called the file.
        tag: u64,
    },
}

/// How many backing ids of closed files are kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Idle {
    /// Most ids.
    pub ids: usize,
    /// Most bytes of the files behind them, which nobody can evict meanwhile.
    pub bytes: u64,
}

/// What the table holds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Open files that the kernel reads itself.
    pub passthrough: u64,
    /// Open files through the page cache.
    pub cached: u64,
    /// Backing ids in use.
    pub ids_open: u64,
    /// Backing ids kept for the next open.
    pub ids_idle: u64,
    /// Entries of another process that may or may not have been opened.
    pub ambiguous: u64,
}

/// The table of one connection.
#[derive(Debug)]
pub struct OpenTable {
    backing: Backing,
    idle: Idle,
    state: Mutex<Table>,
}

impl OpenTable {
    /// Makes an empty table.
    ///
    /// # Errors
    /// [`OpenTableError::Make`].
    pub fn new(backing: Backing, idle: Idle) -> Result<Self, OpenTableError> {
        let table = Table::new(Records::new().map_err(OpenTableError::Make)?);
        Ok(Self { backing, idle, state: Mutex::new(table) })
    }

    /// Goes on with the table of another process on the same connection.
    ///
    /// # Errors
    /// [`OpenTableError`].
    pub fn take_over(backing: Backing, idle: Idle, memory: File) -> Result<Self, OpenTableError> {
        let (records, found) = Records::read(memory)?;
        let table = Self::new(backing, idle)?;
        *table.state.lock() = Table::adopt(records, found);
        Ok(table)
    }

    /// Gives the shared memory, for whoever keeps it for a successor.
    ///
    /// # Errors
    /// When the descriptor cannot be duplicated.
    pub fn memory(&self) -> io::Result<File> {
        self.state.lock().memory()
    }

    /// Tells how a node is held open.
    pub fn held(&self, node: NodeId) -> Held {
        self.state.lock().held(node)
    }

    /// Enters an OPEN through the page cache; `unique` is that of the request.
    ///
    /// # Errors
    /// [`NotOpened::Held`] or [`NotOpened::Full`].
    pub fn open_cached(&self, unique: u64, node: NodeId) -> Result<Opened, NotOpened> {
        let state = &mut *self.state.lock();
        let unique = unique & !UNIQUE_RESEND;
        if let Some(opened) = state.again(unique) {
            return Ok(opened);
        }
        match state.held(node) {
            Held::Free | Held::Cached => {}
            held @ Held::Passthrough { .. } => return Err(NotOpened::Held(held)),
        }
        // The file has changed its kind since; its old id is of no use.
        state.close_idle(&self.backing, node);
        state.enter(unique, node, None).ok_or(NotOpened::Full)?;
        Ok(opened(unique, None))
    }

    /// Enters an OPEN that the kernel is to serve itself, from the file that `make` opens unless its id is still known.
    /// `tag` tells files apart, `bytes` is the size of this one.
    ///
    /// # Errors
    /// [`NotOpened`].
    pub fn open_passthrough<F: AsFd>(
        &self,
        unique: u64,
        node: NodeId,
        (tag, bytes): (u64, u64),
        make: impl FnOnce() -> Option<F>,
    ) -> Result<Opened, NotOpened> {
        let unique = unique & !UNIQUE_RESEND;
        {
            let state = &mut *self.state.lock();
            if let Some(opened) = state.again(unique) {
                return Ok(opened);
            }
            if let Some(known) = state.attach(&self.backing, unique, node, tag) {
                return known;
            }
            // Before the file is handed over: a successor then knows that there may be an id it is not told of.
            state.intend(unique, node, tag).ok_or(NotOpened::Full)?;
        }
        let made = make().ok_or(NotOpened::NoFile);
        let id = made.and_then(|file| self.backing.open(file.as_fd()).map_err(NotOpened::Refused));
        let state = &mut *self.state.lock();
        // The same request, sent again, may have been served meanwhile.
        if let Some(opened) = state.again(unique) {
            if let Ok(id) = id {
                close(&self.backing, id);
            }
            return Ok(opened);
        }
        state.forget_intent(unique);
        let id = id?;
        // Another thread may have opened the node meanwhile.
        if let Some(known) = state.attach(&self.backing, unique, node, tag) {
            close(&self.backing, id);
            return known;
        }
        state.begin(&self.backing, unique, node, (id, tag, bytes))
    }

    /// Hears whether the kernel took the answer to an OPEN; what it did not take is closed again. Gives whether the file is
    /// still open.
    pub fn answered(&self, fh: FileHandle, is_taken: bool) -> bool {
        let state = &mut *self.state.lock();
        state.answered(&self.backing, self.idle, fh.0, is_taken)
    }

    /// Ends the use of an open file. False for a handle that is not known, or not any more.
    pub fn release(&self, fh: FileHandle) -> bool {
        self.state.lock().leave(&self.backing, self.idle, fh.0)
    }

    /// Gives back the ids that are kept for the next open.
    pub fn close_all_idle(&self) {
        let state = &mut *self.state.lock();
        state.trim(&self.backing, Idle { ids: 0, bytes: 0 });
    }

    /// Gives what the table holds.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts()
    }
}
