//! What must a file system answer to be served?

use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use crate::abi;
use crate::backing::BackingId;
use crate::directory::{DirBuffer, DirPlusBuffer};
use crate::node::{Attr, Entry, FileHandle, Lookup, NodeId, Statfs};
use crate::reply::{OpenReply, ReadReply};
use crate::request::Caller;

/// How the kernel treats the content of an open file. All opens of a file must agree while it is open.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OpenMode {
    /// Through the page cache; what an earlier open left there is kept or dropped.
    Cached {
        /// Whether cached content of an earlier open is still right.
        keep: bool,
    },
    /// Every read and write is a request.
    Direct,
    /// The kernel reads and writes the file behind this id itself; no READ comes. All opens of a node must give the same id.
    Passthrough(BackingId),
}

/// Answer to OPEN and CREATE.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Opened {
    /// Handed in with every use of the open file.
    pub fh: FileHandle,
    /// How the kernel treats its content.
    pub mode: OpenMode,
}

impl Opened {
    pub(crate) fn reply(&self) -> abi::OpenOut {
        // Nothing is flushed on close: FLUSH would cost a round trip only to be told ENOSYS.
        let (flags, backing_id) = match self.mode {
            OpenMode::Cached { keep: true } => (abi::open::KEEP_CACHE, 0),
            OpenMode::Cached { keep: false } => (0, 0),
            OpenMode::Direct => (abi::open::DIRECT_IO | abi::open::PARALLEL_DIRECT_WRITES, 0),
            OpenMode::Passthrough(BackingId(id)) => (abi::open::PASSTHROUGH, id),
        };
        abi::OpenOut { fh: self.fh.0, open_flags: flags | abi::open::NO_FLUSH, backing_id }
    }
}

/// Answer to OPENDIR.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct OpenedDir {
    /// Handed in with every use of the open directory.
    pub fh: FileHandle,
    /// Whether the kernel may keep the listing for later opens.
    pub is_cacheable: bool,
}

impl OpenedDir {
    pub(crate) fn reply(&self) -> abi::OpenOut {
        let flags = match self.is_cacheable {
            true => abi::open::CACHE_DIR | abi::open::KEEP_CACHE,
            false => 0,
        };
        abi::OpenOut { fh: self.fh.0, open_flags: flags, backing_id: 0 }
    }
}

/// What a READ asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReadRequest {
    /// The file.
    pub node: NodeId,
    /// What its OPEN gave.
    pub fh: FileHandle,
    /// First byte.
    pub offset: u64,
    /// Bytes wanted.
    pub size: u32,
    /// Flags of the open file (`O_DIRECT` and so on).
    pub flags: u32,
}

/// A time to set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SetTime {
    /// The time at which the request is served.
    Now,
    /// This time.
    At(SystemTime),
}

/// The attributes that a SETATTR changes; truncation is a change of `size`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SetAttr {
    /// The open file, when it is changed through one.
    pub fh: Option<FileHandle>,
    /// Type and permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes of content.
    pub size: Option<u64>,
    /// Time of the last read.
    pub atime: Option<SetTime>,
    /// Time of the last change of content.
    pub mtime: Option<SetTime>,
}

/// A file system that a session serves. Methods run on session threads, several at a time; a method that waits keeps
/// its thread from serving others. READ is different: its answer is an object that may be kept, so that a read that
/// waits for the network costs no thread.
///
/// What changes the file system answers EROFS unless it is overridden; so a read-only one implements the first half
/// only. Errors go to the caller as they are. ENOSYS often means "do not ask again", as the kernel takes it.
pub trait Filesystem: Send + Sync + 'static {
    /// Finds a name in a directory. Under `Capabilities::EXPORT_SUPPORT` the names "." and ".." come too.
    ///
    /// # Errors
    /// ENOENT when there is none; [`Lookup::Absent`] lets the kernel remember that.
    fn lookup(&self, caller: &Caller, parent: NodeId, name: &[u8]) -> Result<Lookup, Errno>;

    /// Takes back look-ups of a node; at zero the kernel does not know it any more.
    fn forget(&self, _node: NodeId, _lookups: u64) {}

    /// Gives the attributes of a file and how long the kernel may believe them.
    ///
    /// # Errors
    /// Any.
    fn getattr(
        &self,
        caller: &Caller,
        node: NodeId,
        fh: Option<FileHandle>,
    ) -> Result<(Attr, Duration), Errno>;

    /// Opens a file; `flags` as in open(2), without creation flags.
    ///
    /// # Errors
    /// Any; ENOSYS under `Capabilities::NO_OPEN_SUPPORT` ends OPEN and RELEASE for the whole connection.
    fn open(&self, caller: &Caller, node: NodeId, flags: u32) -> Result<Opened, Errno>;

    /// Opens a file like [`Filesystem::open`], which the default calls; the answer is given through `reply`, now or later,
    /// from any thread. Where the kernel does not take it, nothing is open and no release comes.
    fn open_with(&self, caller: &Caller, node: NodeId, flags: u32, reply: OpenReply) {
        open_at_once(self, caller, node, flags, reply);
    }

    /// Reads; the answer is given through `reply`, now or later, from any thread.
    fn read(&self, caller: &Caller, request: ReadRequest, reply: ReadReply);

    /// Ends the use of an open file; every OPEN is released once.
    fn release(&self, _node: NodeId, _fh: FileHandle) {}

    /// Opens a directory.
    ///
    /// # Errors
    /// Any.
    fn opendir(&self, _caller: &Caller, _node: NodeId) -> Result<OpenedDir, Errno> {
        Ok(OpenedDir::default())
    }

    /// Lists names from `offset` on, which is 0 or the `next_offset` of the entry to go on behind.
    ///
    /// # Errors
    /// Any.
    fn readdir(
        &self,
        caller: &Caller,
        node: NodeId,
        fh: FileHandle,
        offset: u64,
        buffer: &mut DirBuffer,
    ) -> Result<(), Errno>;

    /// Lists names with attributes; comes only when readdirplus was negotiated.
    ///
    /// # Errors
    /// Any; ENOSYS, the default, has [`Filesystem::readdir`] list names alone.
    fn readdirplus(
        &self,
        _caller: &Caller,
        _node: NodeId,
        _fh: FileHandle,
        _offset: u64,
        _buffer: &mut DirPlusBuffer,
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Ends the use of an open directory.
    fn releasedir(&self, _node: NodeId, _fh: FileHandle) {}

    /// Gives size and room.
    ///
    /// # Errors
    /// Any.
    fn statfs(&self, caller: &Caller, node: NodeId) -> Result<Statfs, Errno>;

    /// Checks access; comes only on mounts without `default_permissions`.
    ///
    /// # Errors
    /// EACCES; ENOSYS allows all.
    fn access(&self, _caller: &Caller, _node: NodeId, _mask: u32) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Gives the value of an extended attribute.
    ///
    /// # Errors
    /// ENODATA when there is none; ENOSYS when there are none at all.
    fn getxattr(&self, _caller: &Caller, _node: NodeId, _name: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(Errno::NOSYS)
    }

    /// Gives the names of the extended attributes.
    ///
    /// # Errors
    /// ENOSYS when there are none at all.
    fn listxattr(&self, _caller: &Caller, _node: NodeId) -> Result<Vec<Vec<u8>>, Errno> {
        Err(Errno::NOSYS)
    }

    /// Finds data or a hole; `whence` is SEEK_DATA or SEEK_HOLE.
    ///
    /// # Errors
    /// ENOSYS makes the kernel take the whole file as data.
    fn lseek(&self, _node: NodeId, _fh: FileHandle, _offset: u64, _whence: u32) -> Result<u64, Errno> {
        Err(Errno::NOSYS)
    }

    /// Brings written content to the disk.
    ///
    /// # Errors
    /// ENOSYS, the default, counts as done: nothing was written.
    fn fsync(&self, _node: NodeId, _fh: FileHandle, _data_only: bool) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// EROFS unless overridden.
    fn setattr(&self, _caller: &Caller, _node: NodeId, _set: &SetAttr) -> Result<(Attr, Duration), Errno> {
        Err(Errno::ROFS)
    }

    /// Makes and opens a file.
    ///
    /// # Errors
    /// EROFS unless overridden.
    fn create(
        &self,
        _caller: &Caller,
        _parent: NodeId,
        _name: &[u8],
        _mode: u32,
        _flags: u32,
    ) -> Result<(Entry, Opened), Errno> {
        Err(Errno::ROFS)
    }

    /// Writes, and gives the number of bytes written.
    ///
    /// # Errors
    /// EROFS unless overridden.
    fn write(&self, _node: NodeId, _fh: FileHandle, _offset: u64, _data: &[u8]) -> Result<u32, Errno> {
        Err(Errno::ROFS)
    }

    /// Reserves or frees room in a file.
    ///
    /// # Errors
    /// EROFS unless overridden.
    fn fallocate(
        &self,
        _node: NodeId,
        _fh: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: u32,
    ) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Makes a directory; `mode` with the caller's umask taken off.
    ///
    /// # Errors
    /// EROFS unless overridden.
    fn mkdir(&self, _caller: &Caller, _parent: NodeId, _name: &[u8], _mode: u32) -> Result<Entry, Errno> {
        Err(Errno::ROFS)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// EROFS unless overridden.
    fn unlink(&self, _caller: &Caller, _parent: NodeId, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Removes a directory.
    ///
    /// # Errors
    /// EROFS unless overridden.
    fn rmdir(&self, _caller: &Caller, _parent: NodeId, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Renames; `flags` as in renameat2(2).
    ///
    /// # Errors
    /// EROFS unless overridden.
    fn rename(
        &self,
        _caller: &Caller,
        _from: (NodeId, &[u8]),
        _to: (NodeId, &[u8]),
        _flags: u32,
    ) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }
}

/// Opens a file by [`Filesystem::open`] and answers; what the kernel does not take is released.
pub fn open_at_once(
    file_system: &(impl Filesystem + ?Sized),
    caller: &Caller,
    node: NodeId,
    flags: u32,
    reply: OpenReply,
) {
    match file_system.open(caller, node, flags) {
        Ok(opened) => {
            if !reply.opened(opened) {
                file_system.release(node, opened.fh);
            }
        }
        Err(errno) => reply.error(errno),
    }
}
