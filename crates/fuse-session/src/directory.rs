//! How are directory entries laid out in the room that the kernel gave?
//!
//! An entry is [`Dirent`] (24 bytes), the name, and zeros up to a multiple of 8; with attributes it is preceded by
//! [`EntryOut`] (128 bytes). An entry that does not fit whole is left for the next request.

use zerocopy::IntoBytes;

use crate::abi::{Dirent, EntryOut, NAME_MAX};
use crate::node::{Entry, Kind};

/// Most bytes of one answer, whatever the kernel asks for: a request is at most 256 pages by default.
const MAX_BYTES: u32 = 1024 * 1024;

/// Room for the entries of one READDIR.
#[derive(Debug)]
pub struct DirBuffer {
    room: Room,
    /// Put before each name: nothing, or no attributes in the form of READDIRPLUS.
    before: &'static [u8],
}

/// Room for the entries of one READDIRPLUS: names with attributes.
///
/// Each entry but "." and ".." counts as one lookup of its node, as far as it was sent.
#[derive(Debug)]
pub struct DirPlusBuffer(Room);

impl DirBuffer {
    pub(crate) fn new(size: u32) -> Self {
        Self { room: Room::new(size), before: &[] }
    }

    /// Makes room for names alone in an answer to READDIRPLUS.
    pub(crate) fn new_plus(size: u32) -> Self {
        Self { room: Room::new(size), before: &[0; size_of::<EntryOut>()] }
    }

    /// Adds a name; `false` when it does not fit, which ends the answer.
    ///
    /// `next_offset` is handed back by the kernel to go on behind this entry; it must differ for each and not be 0. A
    /// name that the kernel would refuse with the whole answer (empty, above 1,024 bytes, with a slash or a zero byte)
    /// is left out.
    pub fn push(&mut self, ino: u64, kind: Kind, name: &[u8], next_offset: u64) -> bool {
        self.room.push(self.before, ino, kind, name, next_offset)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.room.bytes
    }
}

impl DirPlusBuffer {
    pub(crate) fn new(size: u32) -> Self {
        Self(Room::new(size))
    }

    /// Adds a file; see [`DirBuffer::push`].
    pub fn push(&mut self, entry: &Entry, name: &[u8], next_offset: u64) -> bool {
        self.0.push(entry.reply().as_bytes(), entry.attr.ino, entry.attr.kind, name, next_offset)
    }

    /// Adds a name without attributes, as "." and ".." are: the kernel looks it up when it needs to.
    pub fn push_name(&mut self, ino: u64, kind: Kind, name: &[u8], next_offset: u64) -> bool {
        self.0.push(EntryOut::default().as_bytes(), ino, kind, name, next_offset)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }
}

#[derive(Debug)]
struct Room {
    bytes: Vec<u8>,
    size: usize,
}

impl Room {
    fn new(size: u32) -> Self {
        let size = size.min(MAX_BYTES) as usize;
        Self { bytes: Vec::with_capacity(size), size }
    }

    fn push(&mut self, attributes: &[u8], ino: u64, kind: Kind, name: &[u8], next_offset: u64) -> bool {
        if !is_sendable(name) {
            tracing::warn!(ino, name_length = name.len(), "name cannot be shown by the kernel, left out");
            return true;
        }
        let length = attributes.len() + size_of::<Dirent>() + name.len();
        let padded = length.next_multiple_of(8);
        if self.bytes.len() + padded > self.size {
            return false;
        }
        let entry = Dirent { ino, next_offset, name_len: name.len() as u32, kind: kind.entry_type() };
        self.bytes.extend_from_slice(attributes);
        self.bytes.extend_from_slice(entry.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(self.bytes.len() + padded - length, 0);
        true
    }
}

fn is_sendable(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_is_laid_out_as_the_kernel_reads_it() {
        let mut buffer = DirBuffer::new(64);
        assert!(buffer.push(7, Kind::File, b"abc", 9));
        let mut golden = Vec::new();
        golden.extend(7u64.to_ne_bytes());
        golden.extend(9u64.to_ne_bytes());
        golden.extend(3u32.to_ne_bytes());
        golden.extend(8u32.to_ne_bytes());
        golden.extend(b"abc\0\0\0\0\0");
        assert_eq!(buffer.bytes(), golden);
    }

    #[test]
    fn name_alone_in_a_listing_with_attributes_has_no_node() {
        let (mut names, mut plus) = (DirBuffer::new_plus(4096), DirPlusBuffer::new(4096));
        assert!(names.push(7, Kind::File, b"abc", 9));
        assert!(plus.push_name(7, Kind::File, b"abc", 9));
        assert_eq!(names.bytes(), plus.bytes());
        assert_eq!((names.bytes().len(), &names.bytes()[..128]), (160, [0; 128].as_slice()));
    }

    #[test]
    fn entry_that_does_not_fit_whole_is_left_for_the_next_request() {
        let mut buffer = DirBuffer::new(63);
        assert!(buffer.push(1, Kind::Directory, b"12345678", 1));
        assert!(!buffer.push(2, Kind::File, b"12345678", 2));
        assert_eq!(buffer.bytes().len(), 32);
    }

    #[test]
    fn name_that_the_kernel_refuses_does_not_spoil_the_others() {
        let mut buffer = DirBuffer::new(4096);
        for name in [b"".as_slice(), b"a/b", b"a\0b", &[b'x'; 1025]] {
            assert!(buffer.push(1, Kind::File, name, 1));
        }
        assert!(buffer.bytes().is_empty());
        assert!(buffer.push(1, Kind::File, &[b'x'; 1024], 1));
    }
}
