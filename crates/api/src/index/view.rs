//! What does a mapped index say about one directory, file or source?
//!
//! Nothing is parsed or copied: a view is a few slices of the mapped bytes. Every accessor checks its bounds and answers
//! `None` or nothing where the index is damaged, so that damage can never panic or loop; only [`IndexView::verify`] proves
//! that there is none.

use zerocopy::little_endian::U32;

use super::format::{
    DirRecord, FLAG_ARCHIVED, FileRecord, Header, LeftOutRecord, NONE, PackRecord, Slot, SourceRecord,
    TextRef,
};
use super::path_rule::LeftOutReason;
use crate::block::BlockSize;
use crate::ids::{OriginId, VersionId};
use crate::ino::Numbering;

/// A directory by its number; 0 is the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DirIndex(pub u32);

/// A file by its number: its place in path order, compared component by component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileIndex(pub u32);

/// A pack by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PackIndex(pub u32);

/// What a path may lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    /// A directory.
    Dir(DirIndex),
    /// A file.
    File(FileIndex),
}

/// One directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dir<'a> {
    /// Last component of its path; empty for the root.
    pub name: &'a [u8],
    /// The directory above; the root's is the root.
    pub parent: DirIndex,
    /// How many children it has.
    pub child_count: u32,
    /// How many of them are directories.
    pub subdir_count: u32,
    /// Newest modification of a file anywhere below, milliseconds since 1970; 0 where there is none.
    pub modified_ms: i64,
    /// Number of the first file anywhere below. The files below are contiguous.
    pub first_file: u32,
    /// How many files lie anywhere below.
    pub file_count: u32,
}

impl Dir<'_> {
    /// All files anywhere below, in path order.
    pub fn files_below(&self) -> impl Iterator<Item = FileIndex> + use<> {
        (self.first_file..self.first_file + self.file_count).map(FileIndex)
    }
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File<'a> {
    /// Last component of its path.
    pub name: &'a [u8],
    /// The directory it is in.
    pub parent: DirIndex,
    /// Size, bytes.
    pub size: u64,
    /// Last modification, milliseconds since 1970.
    pub modified_ms: i64,
    /// Which of [`IndexView::sources`] it comes from, counted from 0.
    pub source: u8,
    /// Whether its object has to be restored (GLACIER and the like) before it can be read.
    pub archived: bool,
    /// The pack that it is in; `None` for large and empty files.
    pub pack: Option<PackIndex>,
}

/// One source of the dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source<'a> {
    /// Where it appears in the mount, no leading slash; empty for the root.
    pub path: &'a str,
    /// Endpoint URL; empty where the region decides.
    pub endpoint: &'a str,
    /// Bucket.
    pub bucket: &'a str,
    /// What every key of the source starts with.
    pub prefix: &'a str,
    /// Region; may be empty where there is an endpoint.
    pub region: &'a str,
    /// Identity of endpoint and bucket.
    pub origin: OriginId,
}

/// Sums over the whole version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// Files.
    pub files: u32,
    /// Directories, the root included.
    pub dirs: u32,
    /// Packs.
    pub packs: u32,
    /// Bytes of all files.
    pub bytes: u64,
    /// Keys that are not shown, listed or not.
    pub left_out: u64,
}

/// A pack's place in the index; bytes and block are asked with [`IndexView::pack`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pack {
    /// Where its block is placed.
    pub placement: crate::placement::PlacementKey,
    /// The store file that holds it.
    pub file: crate::block::StoreFile,
    /// How many objects it holds.
    pub member_count: u32,
}

/// A mapped index.
#[derive(Debug, Clone, Copy)]
pub struct IndexView<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) header: &'a Header,
    pub(super) block: BlockSize,
    pub(super) sources: &'a [SourceRecord],
    pub(super) files: &'a [FileRecord],
    pub(super) dirs: &'a [DirRecord],
    pub(super) children: &'a [U32],
    pub(super) packs: &'a [PackRecord],
    pub(super) members: &'a [U32],
    pub(super) slots: &'a [Slot],
    pub(super) left_out: &'a [LeftOutRecord],
    pub(super) text: &'a [u8],
}

impl<'a> IndexView<'a> {
    /// The id of this version, as the header has it; [`verify`](Self::verify) proves it.
    pub fn version_id(&self) -> VersionId {
        let mut id = [0; 16];
        id.copy_from_slice(&self.header.digest[..16]);
        VersionId(id)
    }

    /// The dataset's block size.
    pub fn block_size(&self) -> BlockSize {
        self.block
    }

    /// Sums over the whole version.
    pub fn totals(&self) -> Totals {
        Totals {
            files: self.files.len() as u32,
            dirs: self.dirs.len() as u32,
            packs: self.packs.len() as u32,
            bytes: self.header.total_bytes.get(),
            left_out: self.header.left_out_total.get(),
        }
    }

    /// Numbers the nodes of this index for the kernel.
    pub fn numbering(&self) -> Numbering {
        Numbering { dirs: self.dirs.len() as u32, files: self.files.len() as u32 }
    }

    /// The dataset's sources, sorted by path.
    pub fn sources(&self) -> impl Iterator<Item = Source<'a>> + use<'a> {
        let view = *self;
        (0..self.sources.len()).filter_map(move |source| view.source(source as u8))
    }

    /// The source with this number.
    pub fn source(&self, source: u8) -> Option<Source<'a>> {
        let record = self.sources.get(usize::from(source))?;
        Some(Source {
            path: self.str(record.path)?,
            endpoint: self.str(record.endpoint)?,
            bucket: self.str(record.bucket)?,
            prefix: self.str(record.prefix)?,
            region: self.str(record.region)?,
            origin: OriginId(record.origin),
        })
    }

    /// One directory.
    pub fn dir(&self, dir: DirIndex) -> Option<Dir<'a>> {
        let record = self.dirs.get(dir.0 as usize)?;
        let first_file = record.first_file.get().min(self.files.len() as u32);
        Some(Dir {
            name: self.text(record.name)?,
            parent: DirIndex(record.parent.get()),
            child_count: self.child_refs(dir).len() as u32,
            subdir_count: record.subdirs.get(),
            modified_ms: record.modified_ms.get(),
            first_file,
            file_count: record.files.get().min(self.files.len() as u32 - first_file),
        })
    }

    /// One file.
    pub fn file(&self, file: FileIndex) -> Option<File<'a>> {
        let record = self.files.get(file.0 as usize)?;
        Some(File {
            name: self.text(record.name)?,
            parent: DirIndex(record.parent.get()),
            size: record.size.get(),
            modified_ms: record.modified_ms.get(),
            source: record.source,
            archived: record.flags & FLAG_ARCHIVED != 0,
            pack: Some(record.pack.get()).filter(|&pack| pack != NONE).map(PackIndex),
        })
    }

    /// The keys that are not shown, with their source and the reason: the first by source and key, at most
    /// [`super::MAX_LEFT_OUT_LISTED`] of them. [`totals`](Self::totals) counts all.
    pub fn left_out(&self) -> impl Iterator<Item = (u8, &'a [u8], LeftOutReason)> + use<'a> {
        let view = *self;
        self.left_out.iter().filter_map(move |record| {
            Some((record.source, view.text(record.key)?, LeftOutReason::from_code(record.reason)?))
        })
    }

    pub(super) fn text(&self, place: TextRef) -> Option<&'a [u8]> {
        let start = usize::try_from(place.offset()).ok()?;
        self.text.get(start..start.checked_add(place.len())?)
    }

    pub(super) fn str(&self, place: TextRef) -> Option<&'a str> {
        std::str::from_utf8(self.text(place)?).ok()
    }

    /// The node references of a directory's children; none where they do not lie in the section.
    pub(super) fn child_refs(&self, dir: DirIndex) -> &'a [U32] {
        let range = || {
            let record = self.dirs.get(dir.0 as usize)?;
            let start = record.first_child.get() as usize;
            self.children.get(start..start.checked_add(record.children.get() as usize)?)
        };
        range().unwrap_or_default()
    }
}
