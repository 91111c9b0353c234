//! Which byte of an index file means what?
//!
//! Format version 1. All integers are little endian. The file is a header, then the sections in the order of
//! [`Section`], each starting at the next multiple of 64 bytes after the one before it (the gaps are zero); the file ends
//! with the last byte of the last section. The same files give the same bytes: there is no clock and no chance in it.
//! Compatibility: a reader refuses another format version or numbering scheme; reserved bytes are written as zero. The
//! bytes are pinned by the test `bytes_of_a_small_index_are_pinned`.
//!
//! **Header**, 256 bytes:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `MLRCIDX1` |
//! | 8 | 4 | format version: 1 |
//! | 12 | 4 | header length: 256 |
//! | 16 | 4 | inode numbering scheme: 1 |
//! | 20 | 4 | longest probe: how many slots the longest look-up visits |
//! | 24 | 8 | block size, bytes |
//! | 32 | 8 | bytes of all files |
//! | 40 | 8 | how many keys were left out, listed or not |
//! | 48 | 144 | nine times (offset 8, length 8): the sections, bytes |
//! | 192 | 32 | reserved |
//! | 224 | 32 | SHA-256 of bytes 0..224 and everything after the header; its first half is the version id |
//!
//! **Text reference**, 8 bytes: offset in the text section (6), length (2).
//!
//! **Node reference**, 4 bytes: the number of a file, or `0x8000_0000 +` the number of a directory.
//! `0xffff_ffff` is no node.
//!
//! **Sections**:
//!
//! | section | record | order | fields (bytes) |
//! |---|---|---|---|
//! | sources | 64 | by path | path, endpoint, bucket, prefix, region (text reference each, 8), origin id (16), reserved (8) |
//! | files | 64 | by path, compared component by component | name (text reference, 8), parent directory (4), source (1), flags (1), reserved (2), size (8), modified, ms since 1970 (8), ETag (16), ETag parts (4), pack or `0xffff_ffff` (4), offset in the pack ÷ 4096 (4), first slot in the pack (4) |
//! | dirs | 40 | by path, likewise; the root first | name (text reference, 8), parent (4; the root's is itself), first child (4), children (4), subdirectories (4), newest modified below, ms (8), first file below (4), files below (4) |
//! | children | 4 | each directory's contiguous and sorted by name | node reference (4) |
//! | packs | 40 | by first member | placement key (8), content id (16), first member (4), members (4), length (4), chunk slots (4) |
//! | members | 4 | each pack's contiguous and in path order | file (4) |
//! | slots | 8 | by hash | tag: low half of the hash (4), node reference (4) |
//! | left out | 16 | by source and key | key (text reference, 8), reason (1), source (1), reserved (6) |
//! | text | 1 | | names, keys, ETags |
//!
//! *File flags*: bit 0 archived; bits 1 and 2 the kind of ETag: 0 none, 1 32 hexadecimal digits (16 raw bytes in the
//! record), 2 the same followed by `-` and the number in "ETag parts", 3 another text (reference in the first 8 bytes).
//!
//! *Slots*: a node's hash is XXH3-64 of its name, seeded with the number of its directory. It lies in slot
//! `hash * slots / 2^64` or, where that is taken, in the next free one (round the end). Every node but the root is in.

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of every index file.
pub const MAGIC: [u8; 8] = *b"MLRCIDX1";
/// The version described above.
pub const FORMAT_VERSION: u32 = 1;
/// Length of [`Header`], bytes.
pub const HEADER_BYTES: usize = 256;
/// Sections start at multiples of this, so that a file record never straddles two cache lines.
pub const SECTION_ALIGN_BYTES: u64 = 64;
/// The node reference, pack and so on that means "none".
pub const NONE: u32 = u32::MAX;
/// Set in the node reference of a directory.
pub const DIR_BIT: u32 = 1 << 31;
/// Most files, and most directories, of an index: their references fit 31 bits and are never [`NONE`].
pub const MAX_NODES: u32 = DIR_BIT - 1;
/// Most sources of an index.
pub const MAX_SOURCES: usize = 16;
/// Longest text that a reference can name, bytes.
pub const MAX_TEXT_BYTES: usize = u16::MAX as usize;

/// Flag of a file whose object cannot be read until it is restored (GLACIER and the like).
pub const FLAG_ARCHIVED: u8 = 1;
/// Where the kind of ETag lies in the flags.
pub const ETAG_KIND_SHIFT: u8 = 1;

/// A section, as its position in the header's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Section {
    /// [`SourceRecord`]s.
    Sources,
    /// [`FileRecord`]s.
    Files,
    /// [`DirRecord`]s.
    Dirs,
    /// Node references.
    Children,
    /// [`PackRecord`]s.
    Packs,
    /// File numbers.
    Members,
    /// [`Slot`]s.
    Slots,
    /// [`LeftOutRecord`]s.
    LeftOut,
    /// Bytes.
    Text,
}

impl Section {
    /// All sections in file order.
    pub const ALL: [Self; 9] = [
        Self::Sources,
        Self::Files,
        Self::Dirs,
        Self::Children,
        Self::Packs,
        Self::Members,
        Self::Slots,
        Self::LeftOut,
        Self::Text,
    ];

    /// Length of one record, bytes.
    pub fn record_bytes(self) -> usize {
        match self {
            Self::Sources => size_of::<SourceRecord>(),
            Self::Files => size_of::<FileRecord>(),
            Self::Dirs => size_of::<DirRecord>(),
            Self::Children | Self::Members => size_of::<U32>(),
            Self::Packs => size_of::<PackRecord>(),
            Self::Slots => size_of::<Slot>(),
            Self::LeftOut => size_of::<LeftOutRecord>(),
            Self::Text => 1,
        }
    }
}

/// Where a section lies in the file, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SectionPlace {
    /// From the start of the file.
    pub offset: U64,
    /// Without the gap after it.
    pub len: U64,
}

/// The first 256 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`].
    pub format_version: U32,
    /// [`HEADER_BYTES`].
    pub header_bytes: U32,
    /// [`crate::ino::NUMBERING_VERSION`].
    pub numbering_version: U32,
    /// How many slots the longest look-up visits.
    pub longest_probe: U32,
    /// Block size of the dataset, bytes.
    pub block_bytes: U64,
    /// Sum of the sizes of all files, bytes.
    pub total_bytes: U64,
    /// All keys that are not shown; at most [`super::MAX_LEFT_OUT_LISTED`] of them are listed.
    pub left_out_total: U64,
    /// By [`Section`].
    pub sections: [SectionPlace; 9],
    /// Zero.
    pub reserved: [u8; 32],
    /// SHA-256 of all bytes of the file but these.
    pub digest: [u8; 32],
}

/// A piece of the text section.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct TextRef {
    offset: [u8; 6],
    len: U16,
}

impl TextRef {
    /// Refers to `len` bytes from `offset` on; `None` where either does not fit.
    pub fn new(offset: u64, len: usize) -> Option<Self> {
        let [a, b, c, d, e, f, 0, 0] = offset.to_le_bytes() else { return None };
        Some(Self { offset: [a, b, c, d, e, f], len: U16::new(u16::try_from(len).ok()?) })
    }

    /// Start, bytes from the start of the text section.
    pub fn offset(&self) -> u64 {
        let [a, b, c, d, e, f] = self.offset;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        usize::from(self.len.get())
    }

    /// Whether it refers to no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One source of the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SourceRecord {
    /// Where it appears in the mount, no leading slash; empty for the root.
    pub path: TextRef,
    /// Endpoint URL; empty where the region decides.
    pub endpoint: TextRef,
    /// Bucket.
    pub bucket: TextRef,
    /// What every key of the source starts with.
    pub prefix: TextRef,
    /// Region; may be empty where there is an endpoint.
    pub region: TextRef,
    /// Identity of endpoint and bucket.
    pub origin: [u8; 16],
    /// Zero.
    pub reserved: [u8; 8],
}

/// One file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FileRecord {
    /// Last component of the path.
    pub name: TextRef,
    /// Directory.
    pub parent: U32,
    /// Source.
    pub source: u8,
    /// [`FLAG_ARCHIVED`] and the kind of ETag.
    pub flags: u8,
    /// Zero.
    pub reserved: [u8; 2],
    /// Bytes.
    pub size: U64,
    /// Milliseconds since 1970.
    pub modified_ms: I64,
    /// As the flags say.
    pub etag: [u8; 16],
    /// As the flags say.
    pub etag_parts: U32,
    /// Pack, or [`NONE`].
    pub pack: U32,
    /// Offset in the pack in units of [`crate::block::PACK_ALIGN_BYTES`].
    pub pack_page: U32,
    /// Slot of the first chunk in the pack.
    pub first_slot: U32,
}

/// One directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DirRecord {
    /// Last component of the path; empty for the root.
    pub name: TextRef,
    /// Directory above; the root's is the root.
    pub parent: U32,
    /// Position of its first child in the children section.
    pub first_child: U32,
    /// How many children it has.
    pub children: U32,
    /// How many of them are directories.
    pub subdirs: U32,
    /// Newest modification of a file anywhere below; 0 where there is none.
    pub modified_ms: I64,
    /// First file anywhere below; the files below are contiguous.
    pub first_file: U32,
    /// How many files lie anywhere below.
    pub files: U32,
}

/// One pack of small objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PackRecord {
    /// Where its block is placed.
    pub placement: U64,
    /// Identity of its bytes.
    pub content: [u8; 16],
    /// Position of its first member in the members section.
    pub first_member: U32,
    /// How many members it has.
    pub members: U32,
    /// Length of its store file, bytes.
    pub len: U32,
    /// How many chunk slots its store file has.
    pub slots: U32,
}

/// One slot of the hash table of (directory, name).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Slot {
    /// Low half of the hash; tells most other nodes apart without a look at their records.
    pub tag: U32,
    /// Node reference, or [`NONE`].
    pub node: U32,
}

impl Slot {
    /// A slot that holds no node.
    pub const EMPTY: Self = Self { tag: U32::ZERO, node: U32::MAX_VALUE };
}

/// One key that is not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LeftOutRecord {
    /// The whole key.
    pub key: TextRef,
    /// Code of a [`super::LeftOutReason`].
    pub reason: u8,
    /// Source.
    pub source: u8,
    /// Zero.
    pub reserved: [u8; 6],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_lengths_of_the_table() {
        assert_eq!(size_of::<Header>(), HEADER_BYTES);
        assert_eq!(Section::ALL.map(Section::record_bytes), [64, 64, 40, 4, 40, 4, 8, 16, 1]);
        assert_eq!(Section::ALL.map(|section| section as usize), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn text_references_hold_48_and_16_bits() {
        let last = TextRef::new((1 << 48) - 1, MAX_TEXT_BYTES).unwrap();
        assert_eq!((last.offset(), last.len()), ((1 << 48) - 1, MAX_TEXT_BYTES));
        assert_eq!(TextRef::new(1 << 48, 0), None);
        assert_eq!(TextRef::new(0, MAX_TEXT_BYTES + 1), None);
    }
}
