//! What do the entries of the table of open files add up to, node by node?

use std::collections::{BTreeMap, HashMap};

use crate::backing::{Backing, BackingId};
use crate::filesystem::{OpenMode, Opened};
use crate::node::{FileHandle, NodeId};
use crate::open_record::{OpenRecord, Records, State};
use crate::open_table::{Counts, Held, Idle, NotOpened};

/// Everything behind the lock of a table.
#[derive(Debug)]
pub(crate) struct Table {
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

/// The answer to an OPEN.
pub(crate) fn opened(unique: u64, id: Option<BackingId>) -> Opened {
    let mode = id.map_or(OpenMode::Cached { keep: true }, OpenMode::Passthrough);
    Opened { fh: FileHandle(unique), mode }
}

/// Takes an id back.
pub(crate) fn close(backing: &Backing, id: BackingId) {
    // ENOENT where a predecessor died between this call and its note of it, ENODEV where the mount is gone.
    if let Err(errno) = backing.close(id) {
        tracing::debug!(?id, error = %errno, "close backing id");
    }
}

impl Table {
    /// A table without entries.
    pub fn new(records: Records) -> Self {
        Self {
            records,
            handles: HashMap::new(),
            nodes: HashMap::new(),
            unused: BTreeMap::new(),
            uses: 0,
            idle_bytes: 0,
            ids: 0,
            passthrough: 0,
        }
    }

    /// A table with what another process has noted.
    pub fn adopt(records: Records, found: Vec<(u32, OpenRecord)>) -> Self {
        let mut table = Self::new(records);
        found.into_iter().for_each(|(slot, record)| table.enter_noted(slot, &record));
        table
    }

    /// Duplicates the descriptor of the shared memory.
    pub fn memory(&self) -> std::io::Result<std::fs::File> {
        self.records.memory()
    }

    /// Gives what there is.
    pub fn counts(&self) -> Counts {
        let open = self.handles.values().filter(|handle| handle.is_counted).count() as u64;
        let ids_idle = self.unused.len() as u64;
        Counts {
            passthrough: self.passthrough,
            cached: open - self.passthrough,
            ids_open: self.ids - ids_idle,
            ids_idle,
            ambiguous: self.handles.len() as u64 - open,
        }
    }

    /// Opens a node by an id that was made for it.
    pub fn begin(
        &mut self,
        backing: &Backing,
        unique: u64,
        node: NodeId,
        (id, tag, bytes): (BackingId, u64, u64),
    ) -> Result<Opened, NotOpened> {
        self.ids += 1;
        self.nodes.entry(node).or_default().backing = Some(Backed { id, tag, bytes, idle: None });
        if self.enter(unique, node, Some((id, tag))).is_none() {
            self.forget_id(node);
            close(backing, id);
            return Err(NotOpened::Full);
        }
        Ok(opened(unique, Some(id)))
    }

    /// Hears whether the kernel took an answer; gives whether the file is still open.
    pub fn answered(&mut self, backing: &Backing, limit: Idle, unique: u64, is_taken: bool) -> bool {
        // The RELEASE may have overtaken this call.
        let Some(handle) = self.handles.get_mut(&unique) else { return false };
        handle.holders = handle.holders.saturating_sub(1);
        handle.is_answered |= is_taken;
        let is_open = handle.is_answered || handle.holders > 0;
        if !is_open {
            self.leave(backing, limit, unique);
        }
        is_open
    }

    /// Forgets that a file is about to be handed over.
    pub fn forget_intent(&mut self, unique: u64) {
        if let Some(Handle { slot, .. }) = self.handles.remove(&unique) {
            self.records.free(slot);
        }
    }

    /// How a node is held open.
    pub fn held(&self, node: NodeId) -> Held {
        self.nodes.get(&node).map_or(Held::Free, Node::held)
    }

    /// The answer to an OPEN that was sent again, if it is one.
    pub fn again(&mut self, unique: u64) -> Option<Opened> {
        let handle = self.handles.get_mut(&unique).filter(|handle| handle.is_counted)?;
        handle.holders += 1;
        Some(opened(unique, handle.id))
    }

    /// Opens by the id that the node has already; `None` where it has none.
    pub fn attach(
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
    pub fn intend(&mut self, unique: u64, node: NodeId, tag: u64) -> Option<()> {
        let record = OpenRecord { unique, node: node.0, tag, id: 0, state: State::Intent };
        // A successor may find the entry of its predecessor, with nothing behind it.
        self.forget_intent(unique);
        let slot = self.records.take(&record)?;
        let handle = Handle { node, slot, id: None, is_counted: false, holders: 1, is_answered: false };
        self.handles.insert(unique, handle);
        Some(())
    }

    /// Enters an open file.
    pub fn enter(&mut self, unique: u64, node: NodeId, backing: Option<(BackingId, u64)>) -> Option<()> {
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
    pub fn leave(&mut self, backing: &Backing, limit: Idle, unique: u64) -> bool {
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
    pub fn trim(&mut self, backing: &Backing, limit: Idle) {
        while self.unused.len() > limit.ids || self.idle_bytes > limit.bytes {
            let Some(node) = self.unused.first_key_value().map(|(_, node)| *node) else { return };
            self.close_idle(backing, node);
        }
    }

    /// Gives back the id of a node that nobody has open.
    pub fn close_idle(&mut self, backing: &Backing, node: NodeId) {
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
    fn enter_noted(&mut self, slot: u32, record: &OpenRecord) {
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
