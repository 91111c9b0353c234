//! How does a reader get verified chunks, whichever worker has them?

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millrace_api::block::Span;
use millrace_api::ids::VersionId;
use millrace_api::keys::Key;
use millrace_api::placement::{Membership, PlacementKey};
use millrace_api::wire::ErrorCode;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Priority;

/// What a client needs.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// The data key.
    pub key: Key,
    /// Who reads: node or worker name, for the workers' logs.
    pub name: String,
    /// The workers as known at the start.
    pub membership: Membership,
    /// TCP connections to each worker, opened when it is first asked. [`DEFAULT_CONNECTIONS`] if in doubt.
    pub connections_per_worker: usize,
    /// Deadlines.
    pub timing: Timing,
}

/// Connections to a worker where nothing else is said.
pub const DEFAULT_CONNECTIONS: usize = 2;

/// Deadlines of a client. The defaults are meant to be used.
#[derive(Debug, Clone)]
pub struct Timing {
    /// Without a byte from a worker that owes an answer: it is gone round.
    pub silence: Duration,
    /// For connecting and the hello.
    pub connect: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { silence: Duration::from_secs(2), connect: Duration::from_secs(2) }
    }
}

/// Chunks of one object that are wanted.
#[derive(Debug, Clone)]
pub struct Want {
    /// Number of the file in the index of the version.
    pub file: u32,
    /// Where the object lies in its store file.
    pub span: Span,
    /// By which the owner is found.
    pub placement: PlacementKey,
    /// Chunks of the object, of one block; at most [`MAX_READ_CHUNKS`](millrace_api::wire::MAX_READ_CHUNKS).
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
            ReadError::DeadlinePassed { .. } => ErrorCode::DeadlinePassed,
        }
    }
}

/// Why an index could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchIndex {
    /// The file to write to.
    #[error("write the index of {version} to {path:?}")]
    Write {
        /// Dataset version.
        version: VersionId,
        /// Where to.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// No worker gave it in time.
    #[error("no worker gave the index of {version} within the deadline; last trouble: {trouble}")]
    DeadlinePassed {
        /// Dataset version.
        version: VersionId,
        /// What was last wrong.
        trouble: String,
    },
}

/// Reads from the workers of one dataset. Clones share everything.
#[derive(Debug, Clone)]
pub struct Client {
    membership: Arc<watch::Sender<Arc<Membership>>>,
}

impl Client {
    /// A client whose tasks run on the current tokio runtime; nothing is connected yet.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(config: ClientConfig) -> Self {
        Self { membership: Arc::new(watch::Sender::new(Arc::new(config.membership))) }
    }

    /// The newest membership known; changes when a worker tells of a newer one.
    pub fn membership(&self) -> watch::Receiver<Arc<Membership>> {
        self.membership.subscribe()
    }

    /// Takes a membership, if it is newer than the one known.
    pub fn set_membership(&self, membership: Membership) {
        let _ = membership;
    }

    /// Reads chunks of one object; they come in any order, each once, verified.
    pub fn read(&self, version: VersionId, want: Want, deadline: Instant, priority: Priority) -> ChunkStream {
        let _ = (version, want, deadline, priority);
        ChunkStream {}
    }

    /// Reads chunks of many objects with one request for each worker concerned.
    pub fn read_batch(
        &self,
        version: VersionId,
        wants: Vec<Want>,
        deadline: Instant,
        priority: Priority,
    ) -> BatchStream {
        let _ = (version, wants, deadline, priority);
        BatchStream {}
    }

    /// Writes the index of a version to a new file at `path`, asking one worker after the other; the caller verifies it.
    /// Answers its length.
    ///
    /// # Errors
    /// The file is left as far as it came.
    pub async fn fetch_index(
        &self,
        version: VersionId,
        path: &Path,
        deadline: Instant,
    ) -> Result<u64, FetchIndex> {
        let _ = (version, path, deadline);
        Ok(0)
    }
}

/// Chunks of one object as they come. Dropping it cancels what is open.
#[derive(Debug)]
pub struct ChunkStream {}

impl ChunkStream {
    /// The next chunk; `None` when all have come, or after an error.
    ///
    /// # Cancel safety
    /// Safe: a chunk that came is kept for the next call.
    pub async fn next(&mut self) -> Option<Result<Chunk, ReadError>> {
        None
    }
}

/// Chunks of many objects as they come. Dropping it cancels what is open.
#[derive(Debug)]
pub struct BatchStream {}

impl BatchStream {
    /// The next chunk or error and the number of its want; `None` when all wants have ended. An error ends its want only.
    ///
    /// # Cancel safety
    /// Safe: a chunk that came is kept for the next call.
    pub async fn next(&mut self) -> Option<(usize, Result<Chunk, ReadError>)> {
        None
    }
}
