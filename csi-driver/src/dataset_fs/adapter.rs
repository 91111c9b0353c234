//! How do the kernel's requests become questions to tree and reader?

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millrace_api::block::LARGE_OBJECT_BYTES;
use millrace_api::index::FileIndex;
use millrace_fuse_session::{
    Attr, Caller, DirBuffer, DirPlusBuffer, Entry, Errno, FileHandle, Filesystem, Lookup, NodeId, OpenMode,
    Opened, OpenedDir, ReadReply, ReadRequest, Statfs,
};
use millrace_store::index_file::IndexFile;
use parking_lot::Mutex;

use super::followed::Followed;
use super::mode::Served;
use super::tree::{Ownership, Tree, XATTRS};
use crate::reads::{Located, ReadAhead, Reader};

/// How long the kernel may believe names and attributes: a version never changes.
const TTL: Duration = Duration::from_secs(365 * 24 * 3600);

/// The handle of files that need no read-ahead.
const NO_HANDLE: FileHandle = FileHandle(0);

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
    /// Largest read-ahead window of one open file, bytes.
    ahead_limit_bytes: u64,
    /// Open large files; bounded by the kernel's limit on open files.
    handles: Mutex<HashMap<u64, Arc<OpenFile>>>,
    next_handle: AtomicU64,
    /// Large files that are read without being opened.
    followed: Followed<OpenFile>,
}

/// A large file that is open.
#[derive(Debug)]
struct OpenFile {
    located: Located,
    ahead: Mutex<ReadAhead>,
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
            ahead_limit_bytes,
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
            followed: Followed::default(),
        }
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

    fn start(&self, file: FileIndex) -> Option<OpenFile> {
        let located = self.reader.locate(file)?;
        Some(OpenFile { located, ahead: Mutex::new(ReadAhead::new(self.ahead_limit_bytes)) })
    }
}

impl Filesystem for DatasetFs {
    fn lookup(&self, _caller: &Caller, parent: NodeId, name: &[u8]) -> Result<Lookup, Errno> {
        Ok(match self.tree().lookup(parent.0, name)? {
            Some(attr) => Lookup::Found(entry(attr)),
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
        let tree = self.tree();
        let file = tree.file(node.0)?;
        if flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32 {
            return Err(Errno::ROFS);
        }
        let size = tree.index().file(file).ok_or(Errno::STALE)?.size;
        let mode = OpenMode::Cached { keep: true };
        if size < LARGE_OBJECT_BYTES {
            return Ok(Opened { fh: NO_HANDLE, mode });
        }
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let started = self.start(file).ok_or(Errno::STALE)?;
        self.handles.lock().insert(handle, Arc::new(started));
        Ok(Opened { fh: FileHandle(handle), mode })
    }

    fn read(&self, _caller: &Caller, request: ReadRequest, reply: ReadReply) {
        let file = self.tree().file(request.node.0);
        let open_file = match (request.fh, self.served) {
            (NO_HANDLE, Served::Files) => None,
            (NO_HANDLE, Served::Packed) => file.ok().and_then(|file| self.follow(file)),
            (FileHandle(handle), _) => self.handles.lock().get(&handle).cloned(),
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
        if fh != NO_HANDLE {
            self.handles.lock().remove(&fh.0);
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
