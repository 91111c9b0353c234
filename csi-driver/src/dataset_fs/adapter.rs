//! How do the kernel's requests become questions to tree and reader?

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millrace_api::block::LARGE_OBJECT_BYTES;
use millrace_api::index::FileIndex;
use millrace_fuse_session::{
    Attr, Caller, DirBuffer, DirPlusBuffer, Entry, Errno, FileHandle, Filesystem, Lookup, NodeId, OpenMode,
    OpenReply, Opened, OpenedDir, ReadReply, ReadRequest, Statfs, open_at_once,
};
use millrace_store::index_file::IndexFile;

use super::followed::Followed;
use super::handles::{Handles, OpenFile};
use super::mode::Served;
use super::open_metrics::How;
use super::pass_through::PassThrough;
use super::tree::{Ownership, Tree, XATTRS};
use crate::reads::{Located, Reader};

/// How long the kernel may believe names and attributes: a version never changes.
const TTL: Duration = Duration::from_secs(365 * 24 * 3600);

/// The handle of files that need no read-ahead.
const NO_HANDLE: FileHandle = FileHandle(0);

/// The answer to the open of a small file.
const SMALL: Opened = Opened { fh: NO_HANDLE, mode: OpenMode::Cached { keep: true } };

thread_local! {
    /// Each FUSE thread reads from the node store into a buffer of its own; at most one request, 1 MiB and a chunk.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// One dataset version as a file system.
#[derive(Debug)]
pub struct DatasetFs {
    index: Arc<IndexFile>,
    ownership: Ownership,
    reader: Arc<Reader>,
    served: Served,
    /// Large files that are open and read through us.
    handles: Arc<Handles>,
    next_handle: AtomicU64,
    /// Where the kernel takes whole files of the node store.
    pass_through: Option<Arc<PassThrough>>,
    /// Large files that are read without being opened.
    followed: Followed<OpenFile>,
}

impl DatasetFs {
    /// Shows `index` with the bytes that `reader` gives.
    pub fn new(
        index: Arc<IndexFile>,
        ownership: Ownership,
        reader: Arc<Reader>,
        served: Served,
        ahead_limit_bytes: u64,
    ) -> Self {
        Self {
            index,
            ownership,
            reader,
            served,
            handles: Arc::new(Handles::new(ahead_limit_bytes)),
            next_handle: AtomicU64::new(1),
            pass_through: None,
            followed: Followed::default(),
        }
    }

    /// The large files that are open and read through us.
    pub fn handles(&self) -> Arc<Handles> {
        Arc::clone(&self.handles)
    }

    /// Has the kernel read whole files itself.
    pub fn passing_through(self, pass_through: Arc<PassThrough>) -> Self {
        Self { pass_through: Some(pass_through), ..self }
    }

    fn tree(&self) -> Tree<'_> {
        Tree::new(self.index.view(), self.ownership)
    }

    /// What is known of a large file that nobody opened; `None` for small files.
    fn follow(&self, file: FileIndex) -> Option<Arc<OpenFile>> {
        let size = self.index.view().file(file)?.size;
        if size < LARGE_OBJECT_BYTES {
            return None;
        }
        self.followed.get(file.0, || self.start(file))
    }

    /// The entry of a name by which it opens best now.
    fn entry_now(&self, attr: Attr) -> Entry {
        let entry = entry(attr);
        let Some(pass_through) = self.pass_through.as_ref().filter(|_| attr.size >= LARGE_OBJECT_BYTES)
        else {
            return entry;
        };
        let locate = || self.tree().file(attr.ino).ok().and_then(|file| self.reader.locate(file));
        Entry { node: pass_through.node_of(attr.ino, locate), ..entry }
    }

    fn start(&self, file: FileIndex) -> Option<OpenFile> {
        Some(self.handles.start(self.reader.locate(file)?))
    }

    /// Where the bytes of a large file lie that is to be opened; `None` for a small one.
    fn large_to_open(&self, node: NodeId, flags: u32) -> Result<Option<Located>, Errno> {
        let tree = self.tree();
        let file = tree.file(node.0)?;
        if flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32 {
            return Err(Errno::ROFS);
        }
        if tree.index().file(file).ok_or(Errno::STALE)?.size < LARGE_OBJECT_BYTES {
            return Ok(None);
        }
        self.reader.locate(file).map(Some).ok_or(Errno::STALE)
    }
}

impl Filesystem for DatasetFs {
    fn lookup(&self, _caller: &Caller, parent: NodeId, name: &[u8]) -> Result<Lookup, Errno> {
        Ok(match self.tree().lookup(parent.0, name)? {
            Some(attr) => Lookup::Found(self.entry_now(attr)),
            None => Lookup::Absent { ttl: TTL },
        })
    }

    fn getattr(
        &self,
        _caller: &Caller,
        node: NodeId,
        _fh: Option<FileHandle>,
    ) -> Result<(Attr, Duration), Errno> {
        Ok((self.tree().attr(node.0)?, TTL))
    }

    fn open(&self, _caller: &Caller, node: NodeId, flags: u32) -> Result<Opened, Errno> {
        if self.served == Served::Packed {
            // The kernel never asks again, for no file of this mount. It refuses to open for writing by itself, since the
            // mount is read-only.
            return Err(Errno::NOSYS);
        }
        let Some(located) = self.large_to_open(node, flags)? else {
            return Ok(SMALL);
        };
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.handles.insert(handle, located);
        Ok(Opened { fh: FileHandle(handle), ..SMALL })
    }

    fn open_with(&self, caller: &Caller, node: NodeId, flags: u32, reply: OpenReply) {
        let Some(pass_through) = &self.pass_through else {
            return open_at_once(self, caller, node, flags, reply);
        };
        match self.large_to_open(node, flags) {
            Ok(Some(located)) => pass_through.open(caller, node, flags, located, reply),
            Ok(None) => {
                pass_through.counters().count(How::Packed);
                // Nothing is kept of it, so nothing is lost where the kernel does not take it.
                let _ = reply.opened(SMALL);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(&self, _caller: &Caller, request: ReadRequest, reply: ReadReply) {
        let file = self.tree().file(request.node.0);
        let open_file = match (request.fh, self.served) {
            (NO_HANDLE, Served::Files) => None,
            (NO_HANDLE, Served::Packed) => file.ok().and_then(|file| self.follow(file)),
            (FileHandle(handle), _) => self.handles.get(handle),
        };
        let located = match &open_file {
            Some(open_file) => Ok(open_file.located),
            None => file.and_then(|file| self.reader.locate(file).ok_or(Errno::STALE)),
        };
        let ahead = open_file.as_ref().map(|open_file| &open_file.ahead);
        match located {
            Ok(located) => BUFFER.with_borrow_mut(|buffer| {
                self.reader.read(located, request.offset, ahead, buffer, reply);
            }),
            Err(errno) => reply.error(errno),
        }
    }

    fn release(&self, _node: NodeId, fh: FileHandle) {
        match &self.pass_through {
            _ if fh == NO_HANDLE => {}
            Some(pass_through) => pass_through.release(fh.0),
            None => self.handles.remove(fh.0),
        }
    }

    fn opendir(&self, _caller: &Caller, node: NodeId) -> Result<OpenedDir, Errno> {
        if self.served == Served::Packed {
            return Err(Errno::NOSYS);
        }
        self.tree().dir(node.0)?;
        Ok(OpenedDir { fh: NO_HANDLE, is_cacheable: true })
    }

    fn readdir(
        &self,
        _caller: &Caller,
        node: NodeId,
        _fh: FileHandle,
        offset: u64,
        buffer: &mut DirBuffer,
    ) -> Result<(), Errno> {
        for listed in self.tree().list(node.0, offset)? {
            if !buffer.push(listed.ino, listed.kind, listed.name, listed.next_offset) {
                break;
            }
        }
        Ok(())
    }

    fn readdirplus(
        &self,
        _caller: &Caller,
        node: NodeId,
        _fh: FileHandle,
        offset: u64,
        buffer: &mut DirPlusBuffer,
    ) -> Result<(), Errno> {
        let tree = self.tree();
        for listed in tree.list(node.0, offset)? {
            let has_room = match listed.name {
                b"." | b".." => buffer.push_name(listed.ino, listed.kind, listed.name, listed.next_offset),
                name => buffer.push(&entry(tree.attr(listed.ino)?), name, listed.next_offset),
            };
            if !has_room {
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self, _caller: &Caller, _node: NodeId) -> Result<Statfs, Errno> {
        Ok(self.tree().statfs())
    }

    fn getxattr(&self, _caller: &Caller, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let tree = self.tree();
        // Directories have none.
        let file = tree.file(node.0).map_err(|_| Errno::NODATA)?;
        let index = tree.index();
        let value = match name {
            b"user.millrace.etag" => index.etag(file).map(|etag| etag.into_owned().into_bytes()),
            b"user.millrace.key" => index.key(file),
            b"user.millrace.version" => Some(index.version_id().to_string().into_bytes()),
            b"user.millrace.cached" => {
                self.reader.stored_percent(file).map(|share| share.to_string().into_bytes())
            }
            _ => None,
        };
        value.ok_or(Errno::NODATA)
    }

    fn listxattr(&self, _caller: &Caller, node: NodeId) -> Result<Vec<Vec<u8>>, Errno> {
        match self.tree().file(node.0) {
            Ok(_) => Ok(XATTRS.map(|name| name.as_bytes().to_vec()).to_vec()),
            Err(Errno::ISDIR) => Ok(Vec::new()),
            Err(errno) => Err(errno),
        }
    }
}

fn entry(attr: Attr) -> Entry {
    Entry { node: NodeId(attr.ino), generation: 0, attr, entry_ttl: TTL, attr_ttl: TTL }
}
