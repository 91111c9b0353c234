//! What goes into an index, and why may it not?

use std::io;

use super::format::{MAX_NODES, MAX_SOURCES, MAX_TEXT_BYTES};
use crate::ids::OriginId;

/// Says why an index could not be assembled or written.
#[derive(Debug, thiserror::Error)]
pub enum AssembleIndex {
    /// More sources than an index can name.
    #[error("{count} sources: an index holds at most {MAX_SOURCES}")]
    SourceCount {
        /// How many there are.
        count: usize,
    },
    /// Two sources would show files in the same folder, or the list is not sorted.
    #[error("source paths {first:?} and {second:?} overlap or are not sorted")]
    SourcePaths {
        /// The one before.
        first: String,
        /// The one after.
        second: String,
    },
    /// A source has no text or path that fits.
    #[error(
        "source {path:?}: {field} is not a path without leading slash, or is longer than {MAX_TEXT_BYTES} bytes"
    )]
    SourceText {
        /// The source's path.
        path: String,
        /// Which field.
        field: &'static str,
    },
    /// A file names no source, or is not below its source's path.
    #[error("file {path:?} does not belong to source {source_number}")]
    Source {
        /// The file's path.
        path: String,
        /// The source it names.
        source_number: u8,
    },
    /// A path that [`judge_key`](super::judge_key) does not show.
    #[error("path {path:?} cannot be shown")]
    Path {
        /// The path.
        path: String,
    },
    /// Paths did not come in order.
    #[error("path {path:?} came after {after:?}, which is higher in path order")]
    Order {
        /// The path.
        path: String,
        /// The one before it.
        after: String,
    },
    /// An ETag that no server gives.
    #[error("ETag of {path:?} has {len} bytes, more than {MAX_TEXT_BYTES}")]
    Etag {
        /// The file's path.
        path: String,
        /// Its length.
        len: usize,
    },
    /// The dataset is larger than the format.
    #[error("too many {what} for one index, which holds {limit}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many an index holds.
        limit: u64,
    },
    /// A stream could not be written or read.
    #[error("write {stream} of an index")]
    Write {
        /// Which stream.
        stream: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A stream does not hold what was written to it.
    #[error("{stream} of an index: {got} bytes were read back, {expected} had been written")]
    Length {
        /// Which stream.
        stream: &'static str,
        /// How many bytes were written.
        expected: u64,
        /// How many are there.
        got: u64,
    },
}

/// A source, as it is written into an index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceEntry {
    /// Where it appears in the mount, without slashes at its ends; empty for the root.
    pub path: String,
    /// Endpoint URL; empty where the region decides.
    pub endpoint: String,
    /// Bucket.
    pub bucket: String,
    /// What every key starts with.
    pub prefix: String,
    /// Region; may be empty where there is an endpoint.
    pub region: String,
}

impl SourceEntry {
    /// The identity of endpoint and bucket.
    pub fn origin(&self) -> OriginId {
        if self.endpoint.is_empty() {
            OriginId::of(&format!("region:{}", self.region), &self.bucket)
        } else {
            OriginId::of(&self.endpoint, &self.bucket)
        }
    }

    /// The path in the mount of what lies at `relative` below this source.
    pub fn path_of(&self, relative: &str) -> String {
        match (self.path.as_str(), relative) {
            ("", _) => relative.to_owned(),
            (_, "") => self.path.clone(),
            (path, _) => format!("{path}/{relative}"),
        }
    }
}

/// A file, as it is written into an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileEntry<'a> {
    /// Path in the mount, without a leading slash: the source's path and what follows the prefix in the key.
    pub path: &'a [u8],
    /// Which source, counted from 0.
    pub source: u8,
    /// Size, bytes.
    pub size: u64,
    /// Last modification, milliseconds since 1970.
    pub modified_ms: i64,
    /// ETag without quotes.
    pub etag: &'a str,
    /// Whether the object must be restored before it can be read.
    pub archived: bool,
}

/// What grows with the number of files, each apart: in memory or in temporary files.
#[derive(Debug, Clone, Default)]
pub struct Streams<T> {
    /// 64 bytes a file.
    pub files: T,
    /// 4 bytes a file or directory.
    pub children: T,
    /// 40 bytes a pack.
    pub packs: T,
    /// 4 bytes a packed file.
    pub members: T,
    /// 12 bytes a file or directory; what the hash slots are made from, no section of the index.
    pub hashes: T,
    /// Names, and what else is text.
    pub text: T,
}

pub(super) fn too_many(what: &'static str) -> AssembleIndex {
    AssembleIndex::TooMany { what, limit: MAX_NODES.into() }
}
