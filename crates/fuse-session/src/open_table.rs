//! Which files does the kernel hold open, in which mode and by which backing id?
//!
//! The kernel demands that all opens of a node agree: one backing id for all, and no passthrough beside cached opens;
//! else open(2) fails with EIO. An entry lives from before its OPEN is answered until its RELEASE has come, which is
//! longer than the kernel itself holds the file: it lets go of the mode before it sends RELEASE. The answer to an OPEN is
//! sent by the caller; [`OpenTable::answered`] hears whether the kernel took it.
//!
//! Ids of files that are closed are kept for the next open, the longest unused ones within [`Idle`]. All of it is also
//! written to [`OpenRecord`]s in shared memory, from which another process goes on ([`OpenTable::take_over`]).

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use parking_lot::Mutex;
use rustix::io::Errno;
use thiserror::Error;

use crate::abi::UNIQUE_RESEND;
use crate::backing::{Backing, BackingId};
use crate::filesystem::{OpenMode, Opened};
use crate::node::{FileHandle, NodeId};
use crate::open_record::{OpenRecord, Records, State};

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

#[derive(Debug)]
struct Table {
    records: Records,
    /// Open files by the id of their OPEN, which is their handle.
    handles: HashMap<u64, Handle>,
    nodes: HashMap<NodeId, Node>,
    /// Nodes with an idle id, by when it became idle.
    unused: BTreeMap<u64, NodeId>,
    uses: u64,
    idle_bytes: u64,
    ids: u64,
    passthrough: u64,
}

#[derive(Clone, Copy, Debug)]
struct Handle {
    node: NodeId,
    slot: u32,
    /// `None` for one through the page cache, or whose id is not there yet.
    id: Option<BackingId>,
    /// `false` for an entry whose file is still being handed to the kernel.
    is_counted: bool,
    /// Answers under way: the kernel sends a request again after RESEND.
    holders: u32,
    is_answered: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    cached: u32,
    passthrough: u32,
    backing: Option<Backed>,
}

#[derive(Clone, Copy, Debug)]
struct Backed {
    id: BackingId,
    tag: u64,
    bytes: u64,
    /// When it became idle, and its record meanwhile.
    idle: Option<(u64, u32)>,
}

impl Node {
    fn held(&self) -> Held {
        match (self.cached, self.passthrough, self.backing) {
            (0, 0, _) | (0, _, None) => Held::Free,
            (0, _, Some(Backed { tag, .. })) => Held::Passthrough { tag },
            _ => Held::Cached,
        }
    }
}

impl OpenTable {
    /// Makes an empty table.
    ///
    /// # Errors
    /// [`OpenTableError::Make`].
    pub fn new(backing: Backing, idle: Idle) -> Result<Self, OpenTableError> {
        let records = Records::new().map_err(OpenTableError::Make)?;
        let table = Table {
            records,
            handles: HashMap::new(),
            nodes: HashMap::new(),
            unused: BTreeMap::new(),
            uses: 0,
            idle_bytes: 0,
            ids: 0,
            passthrough: 0,
        };
        Ok(Self { backing, idle, state: Mutex::new(table) })
    }

    /// Goes on with the table of another process on the same connection.
    ///
    /// # Errors
    /// [`OpenTableError`].
    pub fn take_over(backing: Backing, idle: Idle, memory: File) -> Result<Self, OpenTableError> {
        let (records, found) = Records::read(memory)?;
        let table = Self::new(backing, idle)?;
        {
            let mut state = table.state.lock();
            state.records = records;
            found.into_iter().for_each(|(slot, record)| state.adopt(slot, &record));
        }
        Ok(table)
    }

    /// Gives the shared memory, for whoever keeps it for a successor.
    ///
    /// # Errors
    /// When the descriptor cannot be duplicated.
    pub fn memory(&self) -> io::Result<File> {
        self.state.lock().records.memory()
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
        if let Some(Handle { slot, .. }) = state.handles.remove(&unique) {
            state.records.free(slot);
        }
        let id = id?;
        // Another thread may have opened the node meanwhile.
        if let Some(known) = state.attach(&self.backing, unique, node, tag) {
            close(&self.backing, id);
            return known;
        }
        state.ids += 1;
        let node_state = state.nodes.entry(node).or_default();
        node_state.backing = Some(Backed { id, tag, bytes, idle: None });
        if state.enter(unique, node, Some((id, tag))).is_none() {
            state.forget_id(node);
            close(&self.backing, id);
            return Err(NotOpened::Full);
        }
        Ok(opened(unique, Some(id)))
    }

    /// Hears whether the kernel took the answer to an OPEN; what it did not take is closed again. Gives whether the file is
    /// still open.
    pub fn answered(&self, fh: FileHandle, is_taken: bool) -> bool {
        let state = &mut *self.state.lock();
        // The RELEASE may have overtaken this call.
        let Some(handle) = state.handles.get_mut(&fh.0) else { return false };
        handle.holders = handle.holders.saturating_sub(1);
        handle.is_answered |= is_taken;
        let is_open = handle.is_answered || handle.holders > 0;
        if !is_open {
            state.leave(&self.backing, self.idle, fh.0);
        }
        is_open
    }

    /// Ends the use of an open file. False for a handle that is not known, or not any more.
    pub fn release(&self, fh: FileHandle) -> bool {
        self.state.lock().leave(&self.backing, self.idle, fh.0)
    }

    /// Gives back the ids that are kept for the next open.
    pub fn close_all_idle(&self) {
        let state = &mut *self.state.lock();
        while let Some(node) = state.unused.first_key_value().map(|(_, node)| *node) {
            state.close_idle(&self.backing, node);
        }
    }

    /// Gives what the table holds.
    pub fn counts(&self) -> Counts {
        let state = self.state.lock();
        let open = state.handles.values().filter(|handle| handle.is_counted).count() as u64;
        let ids_idle = state.unused.len() as u64;
        Counts {
            passthrough: state.passthrough,
            cached: open - state.passthrough,
            ids_open: state.ids - ids_idle,
            ids_idle,
            ambiguous: state.handles.len() as u64 - open,
        }
    }
}

fn opened(unique: u64, id: Option<BackingId>) -> Opened {
    let mode = id.map_or(OpenMode::Cached { keep: true }, OpenMode::Passthrough);
    Opened { fh: FileHandle(unique), mode }
}

fn close(backing: &Backing, id: BackingId) {
    // ENOENT where a predecessor died between this call and its note of it, ENODEV where the mount is gone.
    if let Err(errno) = backing.close(id) {
        tracing::debug!(?id, error = %errno, "close backing id");
    }
}

impl Table {
    fn held(&self, node: NodeId) -> Held {
        self.nodes.get(&node).map_or(Held::Free, Node::held)
    }

    /// The answer to an OPEN that was sent again, if it is one.
    fn again(&mut self, unique: u64) -> Option<Opened> {
        let handle = self.handles.get_mut(&unique).filter(|handle| handle.is_counted)?;
        handle.holders += 1;
        Some(opened(unique, handle.id))
    }

    /// Opens by the id that the node has already; `None` where it has none.
    fn attach(
        &mut self,
        backing: &Backing,
        unique: u64,
        node: NodeId,
        wanted: u64,
    ) -> Option<Result<Opened, NotOpened>> {
        match self.held(node) {
            held @ Held::Cached => return Some(Err(NotOpened::Held(held))),
            held @ Held::Passthrough { tag } if tag != wanted => return Some(Err(NotOpened::Held(held))),
            Held::Passthrough { .. } | Held::Free => {}
        }
        let Backed { id, tag, idle, .. } = self.nodes.get(&node)?.backing?;
        if tag != wanted {
            self.close_idle(backing, node);
            return None;
        }
        if let Some((use_number, slot)) = idle {
            self.unused.remove(&use_number);
            self.records.free(slot);
            if let Some(backed) = self.nodes.get_mut(&node).and_then(|node| node.backing.as_mut()) {
                backed.idle = None;
                self.idle_bytes = self.idle_bytes.saturating_sub(backed.bytes);
            }
        }
        let entered = self.enter(unique, node, Some((id, tag)));
        if entered.is_none() && idle.is_some() {
            // It is not idle any more and nobody has it open.
            self.forget_id(node);
            close(backing, id);
        }
        Some(entered.map(|()| opened(unique, Some(id))).ok_or(NotOpened::Full))
    }

    /// Notes that a file is about to be handed over.
    fn intend(&mut self, unique: u64, node: NodeId, tag: u64) -> Option<()> {
        let record = OpenRecord { unique, node: node.0, tag, id: 0, state: State::Intent };
        // A successor may find the entry of its predecessor, with nothing behind it.
        if let Some(Handle { slot, .. }) = self.handles.remove(&unique) {
            self.records.free(slot);
        }
        let slot = self.records.take(&record)?;
        let handle = Handle { node, slot, id: None, is_counted: false, holders: 1, is_answered: false };
        self.handles.insert(unique, handle);
        Some(())
    }

    /// Enters an open file.
    fn enter(&mut self, unique: u64, node: NodeId, backing: Option<(BackingId, u64)>) -> Option<()> {
        let (id, tag) = backing.map_or((0, 0), |(BackingId(id), tag)| (id, tag));
        let slot = self.records.take(&OpenRecord { unique, node: node.0, tag, id, state: State::Open })?;
        let id = backing.map(|(id, _)| id);
        self.count(unique, node, Handle { node, slot, id, is_counted: true, holders: 1, is_answered: false });
        Some(())
    }

    fn count(&mut self, unique: u64, node: NodeId, handle: Handle) {
        let node = self.nodes.entry(node).or_default();
        match handle.id {
            Some(_) => {
                node.passthrough += 1;
                self.passthrough += 1;
            }
            None => node.cached += 1,
        }
        self.handles.insert(unique, handle);
    }

    /// Takes an open file out; its id becomes idle with the last one.
    fn leave(&mut self, backing: &Backing, limit: Idle, unique: u64) -> bool {
        let Some(handle) = self.handles.remove(&unique) else { return false };
        let Handle { node, slot, id, is_counted, .. } = handle;
        let Some(state) = self.nodes.get_mut(&node).filter(|_| is_counted) else {
            self.records.free(slot);
            return true;
        };
        if id.is_none() {
            state.cached -= 1;
        } else {
            state.passthrough -= 1;
            self.passthrough -= 1;
        }
        let is_last = state.cached == 0 && state.passthrough == 0;
        match &mut state.backing {
            Some(backed) if is_last && id.is_some() => {
                self.uses += 1;
                backed.idle = Some((self.uses, slot));
                self.idle_bytes += backed.bytes;
                let (id, tag) = (backed.id.0, backed.tag);
                self.unused.insert(self.uses, node);
                self.records.set(slot, &OpenRecord { unique: 0, node: node.0, tag, id, state: State::Idle });
                self.trim(backing, limit);
            }
            None if is_last => {
                self.nodes.remove(&node);
                self.records.free(slot);
            }
            Some(_) | None => self.records.free(slot),
        }
        true
    }

    /// Gives back the longest unused ids above the limit.
    fn trim(&mut self, backing: &Backing, limit: Idle) {
        while self.unused.len() > limit.ids || self.idle_bytes > limit.bytes {
            let Some(node) = self.unused.first_key_value().map(|(_, node)| *node) else { return };
            self.close_idle(backing, node);
        }
    }

    /// Gives back the id of a node that nobody has open.
    fn close_idle(&mut self, backing: &Backing, node: NodeId) {
        let Some(Backed { id, bytes, idle: Some((use_number, slot)), .. }) =
            self.nodes.get(&node).and_then(|node| node.backing)
        else {
            return;
        };
        self.unused.remove(&use_number);
        self.idle_bytes = self.idle_bytes.saturating_sub(bytes);
        self.forget_id(node);
        // Closed first: a successor closes once more what it finds noted.
        close(backing, id);
        self.records.free(slot);
    }

    fn forget_id(&mut self, node: NodeId) {
        self.ids -= 1;
        if let Some(state) = self.nodes.get_mut(&node) {
            state.backing = None;
            if state.cached == 0 && state.passthrough == 0 {
                self.nodes.remove(&node);
            }
        }
    }

    /// Enters what another process has noted.
    fn adopt(&mut self, slot: u32, record: &OpenRecord) {
        let OpenRecord { unique, node, tag, id, state } = *record;
        let node = NodeId(node);
        let id = Some(BackingId(id)).filter(|id| id.0 > 0);
        // How large the file is was not noted; a new open of it notes it again.
        let backed = id.map(|id| Backed { id, tag, bytes: 0, idle: None });
        let is_counted = state == State::Open;
        let handle = Handle { node, slot, id, is_counted, holders: 0, is_answered: false };
        match state {
            State::Intent => drop(self.handles.insert(unique, handle)),
            State::Open => {
                if let Some(backed) = backed {
                    let entry = self.nodes.entry(node).or_default();
                    if entry.backing.is_none() {
                        self.ids += 1;
                    }
                    entry.backing.get_or_insert(backed);
                }
                self.count(unique, node, handle);
            }
            State::Idle => {
                let Some(backed) = backed else { return self.records.free(slot) };
                self.uses += 1;
                self.ids += 1;
                self.unused.insert(self.uses, node);
                let backing = Some(Backed { idle: Some((self.uses, slot)), ..backed });
                self.nodes.insert(node, Node { backing, ..Node::default() });
            }
        }
    }
}
