//! What does a mapped index say about one directory, file or source?
//!
//! Nothing is parsed or copied: a view is a few slices of the mapped bytes. Every accessor checks its bounds and answers
//! `None` or nothing where the index is damaged, so that damage can never panic or loop; only [`IndexView::verify`] proves
//! that there is none.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::format::{
    DirRecord, FLAG_ARCHIVED, FORMAT_VERSION, FileRecord, HEADER_BYTES, Header, LeftOutRecord, MAGIC,
    MAX_NODES, MAX_SOURCES, NONE, PackRecord, SECTION_ALIGN_BYTES, Section, Slot, SourceRecord, TextRef,
};
use super::path_rule::LeftOutReason;
use crate::block::BlockSize;
use crate::ids::{OriginId, VersionId};
use crate::ino::{NUMBERING_VERSION, Numbering};

/// Says why bytes are not an index that this program reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenIndex {
    /// Shorter than a header.
    #[error("index is cut short: {len} bytes, a header alone has {HEADER_BYTES}")]
    TooShort {
        /// Length of the refused bytes.
        len: usize,
    },
    /// Another kind of file.
    #[error("not an index: starts with {magic:?}")]
    Magic {
        /// What it starts with.
        magic: [u8; 8],
    },
    /// Written by a newer or older program.
    #[error("index has format version {version}, this program reads {FORMAT_VERSION}")]
    FormatVersion {
        /// The version it names.
        version: u32,
    },
    /// Its files have other inode numbers than this program gives.
    #[error("index has inode numbering {version}, this program has {NUMBERING_VERSION}")]
    NumberingVersion {
        /// The numbering it names.
        version: u32,
    },
    /// The header contradicts itself.
    #[error("index header is damaged: {field} is {value}")]
    Header {
        /// Which field.
        field: &'static str,
        /// What it says.
        value: u64,
    },
    /// The section table does not fit the file.
    #[error(
        "index is cut short or damaged: section {section:?} is at {offset}, {len} bytes, in a file of {file_len}"
    )]
    Section {
        /// Which section.
        section: Section,
        /// Where it is said to start.
        offset: u64,
        /// How long it is said to be.
        len: u64,
        /// How long the file is.
        file_len: u64,
    },
}

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
    /// Looks at a mapped index: checks header and section bounds, in constant time.
    ///
    /// # Errors
    /// [`OpenIndex`] names what is wrong; `FormatVersion` and `NumberingVersion` mean an index of another program.
    pub fn open(bytes: &'a [u8]) -> Result<Self, OpenIndex> {
        let (header, _) =
            Header::ref_from_prefix(bytes).map_err(|_| OpenIndex::TooShort { len: bytes.len() })?;
        let block = check_header(header)?;
        check_places(header, bytes.len() as u64)?;
        let view = Self {
            bytes,
            header,
            block,
            sources: records(bytes, header, Section::Sources)?,
            files: records(bytes, header, Section::Files)?,
            dirs: records(bytes, header, Section::Dirs)?,
            children: records(bytes, header, Section::Children)?,
            packs: records(bytes, header, Section::Packs)?,
            members: records(bytes, header, Section::Members)?,
            slots: records(bytes, header, Section::Slots)?,
            left_out: records(bytes, header, Section::LeftOut)?,
            text: records(bytes, header, Section::Text)?,
        };
        view.check_counts()?;
        Ok(view)
    }

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
        Some(Dir {
            name: self.text(record.name)?,
            parent: DirIndex(record.parent.get()),
            child_count: self.child_refs(dir).len() as u32,
            subdir_count: record.subdirs.get(),
            modified_ms: record.modified_ms.get(),
            first_file: record.first_file.get(),
            file_count: record.files.get(),
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

    fn check_counts(&self) -> Result<(), OpenIndex> {
        let wrong = |field, value: usize| Err(OpenIndex::Header { field, value: value as u64 });
        let max_nodes = MAX_NODES as usize;
        match () {
            () if self.sources.len() > MAX_SOURCES => wrong("number of sources", self.sources.len()),
            () if self.files.len() > max_nodes => wrong("number of files", self.files.len()),
            () if self.dirs.is_empty() || self.dirs.len() > max_nodes => {
                wrong("number of directories", self.dirs.len())
            }
            () if self.packs.len() > self.files.len() => wrong("number of packs", self.packs.len()),
            () => Ok(()),
        }
    }
}

fn check_header(header: &Header) -> Result<BlockSize, OpenIndex> {
    if header.magic != MAGIC {
        return Err(OpenIndex::Magic { magic: header.magic });
    }
    if header.format_version.get() != FORMAT_VERSION {
        return Err(OpenIndex::FormatVersion { version: header.format_version.get() });
    }
    if header.numbering_version.get() != NUMBERING_VERSION {
        return Err(OpenIndex::NumberingVersion { version: header.numbering_version.get() });
    }
    if header.header_bytes.get() as usize != HEADER_BYTES {
        return Err(OpenIndex::Header { field: "header length", value: header.header_bytes.get().into() });
    }
    let bytes = header.block_bytes.get();
    BlockSize::new(bytes).ok_or(OpenIndex::Header { field: "block size", value: bytes })
}

/// Checks that the sections follow each other and end with the file.
fn check_places(header: &Header, file_len: u64) -> Result<(), OpenIndex> {
    let mut end = HEADER_BYTES as u64;
    for section in Section::ALL {
        let place = header.sections[section as usize];
        let (offset, len) = (place.offset.get(), place.len.get());
        let fits = offset == end.next_multiple_of(SECTION_ALIGN_BYTES)
            && len % section.record_bytes() as u64 == 0
            && len <= file_len
            && offset <= file_len - len
            && (section != Section::Text || offset + len == file_len);
        if !fits {
            return Err(OpenIndex::Section { section, offset, len, file_len });
        }
        end = offset + len;
    }
    Ok(())
}

fn records<'a, T>(bytes: &'a [u8], header: &Header, section: Section) -> Result<&'a [T], OpenIndex>
where
    [T]: FromBytes + Immutable + KnownLayout + Unaligned,
{
    let place = header.sections[section as usize];
    let (offset, len) = (place.offset.get(), place.len.get());
    let slice = || {
        let start = usize::try_from(offset).ok()?;
        let section = bytes.get(start..start.checked_add(usize::try_from(len).ok()?)?)?;
        <[T]>::ref_from_bytes(section).ok()
    };
    slice().ok_or(OpenIndex::Section { section, offset, len, file_len: bytes.len() as u64 })
}
