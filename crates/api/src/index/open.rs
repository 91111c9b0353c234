//! Are these bytes an index that this program reads?

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::format::{
    FORMAT_VERSION, HEADER_BYTES, Header, MAGIC, MAX_NODES, MAX_SOURCES, SECTION_ALIGN_BYTES, Section,
};
use super::left_out::MAX_LEFT_OUT_LISTED;
use super::view::IndexView;
use crate::block::BlockSize;
use crate::ino::NUMBERING_VERSION;

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

    fn check_counts(&self) -> Result<(), OpenIndex> {
        let wrong = |field, value: usize| Err(OpenIndex::Header { field, value: value as u64 });
        let max_nodes = MAX_NODES as usize;
        match () {
            () if self.sources.len() > MAX_SOURCES => wrong("number of sources", self.sources.len()),
            () if self.files.len() > max_nodes => wrong("number of files", self.files.len()),
            () if self.dirs.is_empty() || self.dirs.len() > max_nodes => {
                wrong("number of directories", self.dirs.len())
            }
            () if self.left_out.len() > MAX_LEFT_OUT_LISTED => {
                wrong("number of listed keys", self.left_out.len())
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
