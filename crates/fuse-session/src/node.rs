//! What does a file system say about a file, in words that are not the kernel's?

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::abi::{AttrOut, AttrRaw, EntryOut, StatfsOut};

/// The kernel's name for a file, chosen by the file system; the root is 1, 0 means none.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The directory that is mounted.
    pub const ROOT: Self = Self(1);
}

/// What a file system gave back for an open file or directory; the kernel hands it in with every use.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct FileHandle(pub u64);

/// Kind of a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
}

impl Kind {
    /// Gives the type bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Directory => libc::S_IFDIR,
            Self::File => libc::S_IFREG,
            Self::Symlink => libc::S_IFLNK,
        }
    }

    /// Gives the `d_type` of a directory entry: the type bits shifted down.
    pub(crate) fn entry_type(self) -> u32 {
        self.mode_bits() >> 12
    }
}

/// Attributes of a file, as `stat` shows them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Attr {
    /// Number shown as `st_ino`; several node ids may show the same one.
    pub ino: u64,
    /// Kind of the file.
    pub kind: Kind,
    /// Permission bits, `0o7777` at most.
    pub permissions: u16,
    /// Bytes of content.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Preferred size of I/O in bytes, a power of two.
    pub block_size: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last read.
    pub atime: SystemTime,
    /// Time of the last change of content.
    pub mtime: SystemTime,
    /// Time of the last change of attributes.
    pub ctime: SystemTime,
}

/// A file found by name, or made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry {
    /// The file; each reply with it counts one lookup until it is forgotten.
    pub node: NodeId,
    /// Tells apart files that had the same node id one after another; 0 when ids are never used again.
    pub generation: u64,
    /// Its attributes.
    pub attr: Attr,
    /// How long the kernel may believe that the name means this file.
    pub entry_ttl: Duration,
    /// How long the kernel may believe the attributes.
    pub attr_ttl: Duration,
}

/// Answer to a look-up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Lookup {
    /// The name means this file.
    Found(Entry),
    /// There is no such name, and the kernel need not ask again for this long.
    Absent {
        /// How long the kernel may remember it.
        ttl: Duration,
    },
}

/// Size and room of a file system, as `df` shows them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Statfs {
    /// Unit of the block counts in bytes.
    pub block_size: u32,
    /// All blocks.
    pub blocks: u64,
    /// Blocks not used.
    pub blocks_free: u64,
    /// Blocks that an ordinary user may still use.
    pub blocks_available: u64,
    /// All inodes.
    pub files: u64,
    /// Inodes not used.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// Splits a time into seconds and nanoseconds since 1970, the seconds negative for earlier times.
fn split(time: SystemTime) -> (u64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs(), after.subsec_nanos()),
        Err(error) => {
            let before = error.duration();
            let seconds = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            match before.subsec_nanos() {
                0 => (seconds as u64, 0),
                nanos => (seconds.wrapping_sub(1) as u64, 1_000_000_000 - nanos),
            }
        }
    }
}

/// Puts together a time from the kernel; values out of range become 1970.
pub(crate) fn join_time(seconds: u64, nanos: u32) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(nanos));
    let seconds = seconds as i64;
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base.and_then(|time| time.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

impl Attr {
    fn raw(&self) -> AttrRaw {
        let Self { ino, kind, permissions, size, blocks, block_size, nlink, uid, gid, atime, mtime, ctime } =
            *self;
        let (atime, atime_nanos) = split(atime);
        let (mtime, mtime_nanos) = split(mtime);
        let (ctime, ctime_nanos) = split(ctime);
        AttrRaw {
            ino,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            atime_nanos,
            mtime_nanos,
            ctime_nanos,
            mode: kind.mode_bits() | u32::from(permissions & 0o7777),
            nlink,
            uid,
            gid,
            rdev: 0,
            block_size,
            flags: 0,
        }
    }

    pub(crate) fn reply(&self, ttl: Duration) -> AttrOut {
        AttrOut {
            attr_valid: ttl.as_secs(),
            attr_valid_nanos: ttl.subsec_nanos(),
            dummy: 0,
            attr: self.raw(),
        }
    }
}

impl Entry {
    pub(crate) fn reply(&self) -> EntryOut {
        let Self { node, generation, attr, entry_ttl, attr_ttl } = self;
        EntryOut {
            node: node.0,
            generation: *generation,
            entry_valid: entry_ttl.as_secs(),
            attr_valid: attr_ttl.as_secs(),
            entry_valid_nanos: entry_ttl.subsec_nanos(),
            attr_valid_nanos: attr_ttl.subsec_nanos(),
            attr: attr.raw(),
        }
    }
}

impl Lookup {
    pub(crate) fn reply(&self) -> EntryOut {
        match self {
            Self::Found(entry) => entry.reply(),
            Self::Absent { ttl } => EntryOut {
                entry_valid: ttl.as_secs(),
                entry_valid_nanos: ttl.subsec_nanos(),
                ..EntryOut::default()
            },
        }
    }
}

impl Statfs {
    pub(crate) fn reply(&self) -> StatfsOut {
        let Self { block_size, blocks, blocks_free, blocks_available, files, files_free, name_max } = *self;
        StatfsOut {
            blocks,
            blocks_free,
            blocks_available,
            files,
            files_free,
            block_size,
            name_max,
            fragment_size: block_size,
            padding: 0,
            spare: [0; 6],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_way_to_the_kernel_and_back() {
        let earlier = UNIX_EPOCH - Duration::new(5, 250_000_000);
        let later = UNIX_EPOCH + Duration::new(1_764_547_200, 7);
        for time in [UNIX_EPOCH, earlier, later, UNIX_EPOCH - Duration::from_secs(1)] {
            let (seconds, nanos) = split(time);
            assert_eq!(join_time(seconds, nanos), time);
        }
    }

    #[test]
    fn absent_name_is_a_reply_without_a_node() {
        let reply = Lookup::Absent { ttl: Duration::from_millis(1500) }.reply();
        assert_eq!((reply.node, reply.entry_valid, reply.entry_valid_nanos), (0, 1, 500_000_000));
    }
}
