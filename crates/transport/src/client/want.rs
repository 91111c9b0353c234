//! What does a reader ask for, and what does it get?

use std::ops::Range;

use bytes::Bytes;
use millrace_api::block::Span;
use millrace_api::ids::VersionId;
use millrace_api::placement::PlacementKey;
use millrace_api::wire::ErrorCode;

/// Chunks of one object that are wanted.
#[derive(Debug, Clone)]
pub struct Want {
    /// Number of the file in the index of the version.
    pub file: u32,
    /// Where the object lies in its store file.
    pub span: Span,
    /// By which the owner is found.
    pub placement: PlacementKey,
    /// Chunks of the object, of one block (they are placed together); those past its end are left out.
    pub chunks: Range<u32>,
}

/// A verified chunk.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Counted from the object's start.
    pub index: u32,
    /// The whole chunk. Part of the frame it came in: keeping it keeps up to 1 MiB.
    pub bytes: Bytes,
    /// Its CRC32C.
    pub crc: u32,
}

/// Why chunks could not be had.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// A worker says that it cannot be read.
    #[error("worker {worker:?} refuses file {file} of version {version}: {code}: {message}")]
    Refused {
        /// Dataset version.
        version: VersionId,
        /// Number of the file.
        file: u32,
        /// Who says so.
        worker: String,
        /// Why.
        code: ErrorCode,
        /// In the worker's words.
        message: String,
    },
    /// All workers that could be asked sent bytes that do not fit their CRC, also after checking their copy.
    #[error("worker {worker:?} sends bytes of file {file} of version {version} that do not fit their CRC")]
    BadChunk {
        /// Dataset version.
        version: VersionId,
        /// Number of the file.
        file: u32,
        /// The last one that did.
        worker: String,
    },
    /// The deadline passed.
    #[error("file {file} of version {version} did not come within the deadline; last trouble: {trouble}")]
    DeadlinePassed {
        /// Dataset version.
        version: VersionId,
        /// Number of the file.
        file: u32,
        /// What was last wrong.
        trouble: String,
    },
}

impl ReadError {
    /// The code that tells what is wrong.
    pub fn code(&self) -> ErrorCode {
        match self {
            ReadError::Refused { code, .. } => *code,
            ReadError::BadChunk { .. } => ErrorCode::Internal,
            ReadError::DeadlinePassed { .. } => ErrorCode::DeadlinePassed,
        }
    }
}
