//! What does the mounted version look like, as a read-only tree?
//!
//! Pure: everything is answered from the index. Nothing here knows FUSE requests, stores or workers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace_api::index::{DirIndex, FileIndex, IndexView, Node};
use millrace_api::ino::Numbering;
use millrace_fuse_session::{Attr, Errno, Kind, Statfs};

/// Unit of `st_blksize`: reads of this size reach us as one request.
const IO_BYTES: u32 = 1 << 20;

/// Unit of `st_blocks`, fixed by POSIX.
const STAT_BLOCK_BYTES: u64 = 512;

/// Unit of the block counts of `statfs`.
const STATFS_BLOCK_BYTES: u32 = 4096;

/// Longest name that an index can hold, bytes.
const NAME_MAX: u32 = 255;

/// The names of the extended attributes of a file, in the order in which they are listed.
pub const XATTRS: [&str; 4] =
    ["user.millrace.etag", "user.millrace.key", "user.millrace.version", "user.millrace.cached"];

/// Who owns what the mount shows, and with which permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// Owner of every file and directory.
    pub uid: u32,
    /// Group of every file and directory.
    pub gid: u32,
    /// Permission bits of files.
    pub file_mode: u16,
    /// Permission bits of directories.
    pub dir_mode: u16,
}

/// One name of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The name; `.` and `..` come first.
    pub name: &'a [u8],
    /// Inode number of what it means.
    pub ino: u64,
    /// Directory or file.
    pub kind: Kind,
    /// Where to go on behind this name.
    pub next_offset: u64,
}

/// The tree of one version.
#[derive(Debug, Clone, Copy)]
pub struct Tree<'a> {
    index: IndexView<'a>,
    ownership: Ownership,
}

impl<'a> Tree<'a> {
    /// Shows an index as a tree.
    pub fn new(index: IndexView<'a>, ownership: Ownership) -> Self {
        Self { index, ownership }
    }

    /// The index that is shown.
    pub fn index(&self) -> IndexView<'a> {
        self.index
    }

    /// The file with this inode number.
    ///
    /// # Errors
    /// EISDIR for a directory, ESTALE for a number that the version does not have.
    pub fn file(&self, ino: u64) -> Result<FileIndex, Errno> {
        match self.node(ino)? {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(Errno::ISDIR),
        }
    }

    /// The directory with this inode number.
    ///
    /// # Errors
    /// ENOTDIR for a file, ESTALE for a number that the version does not have.
    pub fn dir(&self, ino: u64) -> Result<DirIndex, Errno> {
        match self.node(ino)? {
            Node::Dir(dir) => Ok(dir),
            Node::File(_) => Err(Errno::NOTDIR),
        }
    }

    /// Attributes of a file or directory.
    ///
    /// # Errors
    /// ESTALE for a number that the version does not have.
    pub fn attr(&self, ino: u64) -> Result<Attr, Errno> {
        let node = self.node(ino)?;
        self.attr_of(node, self.numbering().ino_of(node)).ok_or(Errno::STALE)
    }

    /// The attributes of the child of a directory with this name; `None` where there is none.
    ///
    /// # Errors
    /// As [`dir`](Self::dir); ENAMETOOLONG for a name of over 255 bytes.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Option<Attr>, Errno> {
        if name.len() > NAME_MAX as usize {
            return Err(Errno::NAMETOOLONG);
        }
        let dir = self.dir(parent)?;
        let node = match name {
            b"." => Some(Node::Dir(dir)),
            b".." => self.index.parent(Node::Dir(dir)).map(Node::Dir),
            name => self.index.lookup(dir, name),
        };
        node.map(|node| self.attr_of(node, self.numbering().ino_of(node)).ok_or(Errno::STALE)).transpose()
    }

    /// The names of a directory from `offset` on: 0, or the `next_offset` of a name to go on behind.
    ///
    /// # Errors
    /// As [`dir`](Self::dir).
    pub fn list(&self, ino: u64, offset: u64) -> Result<impl Iterator<Item = Listed<'a>> + use<'a>, Errno> {
        let tree = *self;
        let dir = self.dir(ino)?;
        let numbering = self.numbering();
        let parent = self.index.parent(Node::Dir(dir)).ok_or(Errno::STALE)?;
        let dots = [(&b"."[..], Node::Dir(dir)), (&b".."[..], Node::Dir(parent))];
        let dots_done = usize::try_from(offset).unwrap_or(usize::MAX).min(dots.len());
        let skip = u32::try_from(offset.saturating_sub(dots.len() as u64)).unwrap_or(u32::MAX);
        let children =
            self.index.children(dir, skip).map(move |node| (tree.index.name(node).unwrap_or_default(), node));
        Ok(dots.into_iter().skip(dots_done).chain(children).zip(offset.saturating_add(1)..).map(
            move |((name, node), next_offset)| Listed {
                name,
                ino: numbering.ino_of(node),
                kind: kind_of(node),
                next_offset,
            },
        ))
    }

    /// Size of the dataset: all of it used, nothing free.
    pub fn statfs(&self) -> Statfs {
        let totals = self.index.totals();
        Statfs {
            block_size: STATFS_BLOCK_BYTES,
            blocks: totals.bytes.div_ceil(u64::from(STATFS_BLOCK_BYTES)),
            files: u64::from(totals.files) + u64::from(totals.dirs),
            name_max: NAME_MAX,
            ..Statfs::default()
        }
    }

    fn numbering(&self) -> Numbering {
        self.index.numbering()
    }

    fn node(&self, ino: u64) -> Result<Node, Errno> {
        self.numbering().node_of(ino).ok_or(Errno::STALE)
    }

    fn attr_of(&self, node: Node, ino: u64) -> Option<Attr> {
        let Ownership { uid, gid, file_mode, dir_mode } = self.ownership;
        let (size, modified_ms, permissions, nlink) = match node {
            Node::File(file) => {
                let file = self.index.file(file)?;
                (file.size, file.modified_ms, file_mode, 1)
            }
            Node::Dir(dir) => {
                let dir = self.index.dir(dir)?;
                (u64::from(STATFS_BLOCK_BYTES), dir.modified_ms, dir_mode, dir.subdir_count.saturating_add(2))
            }
        };
        let time = time_of(modified_ms);
        Some(Attr {
            ino,
            kind: kind_of(node),
            permissions,
            size,
            blocks: size.div_ceil(STAT_BLOCK_BYTES),
            block_size: IO_BYTES,
            nlink,
            uid,
            gid,
            atime: time,
            mtime: time,
            ctime: time,
        })
    }
}

fn kind_of(node: Node) -> Kind {
    match node {
        Node::Dir(_) => Kind::Directory,
        Node::File(_) => Kind::File,
    }
}

/// Times out of what the system can express become 1970: S3 has none before its own birth.
fn time_of(modified_ms: i64) -> SystemTime {
    let millis = Duration::from_millis(modified_ms.unsigned_abs());
    let time = if modified_ms < 0 { UNIX_EPOCH.checked_sub(millis) } else { UNIX_EPOCH.checked_add(millis) };
    time.unwrap_or(UNIX_EPOCH)
}
