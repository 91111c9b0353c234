//! What must a worker provide so that its data port can be served?

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use millrace_api::ids::{ContentId, VersionId};
use millrace_api::mount::MountSettings;
use millrace_api::placement::Membership;
use millrace_api::wire::ErrorCode;
use tokio::time::Instant;

use super::AnswerSink;
use crate::Priority;

/// The worker behind a data port.
pub trait Blocks: Send + Sync + 'static {
    /// Answers a read with all chunks of `request.chunks`, in any order, each exactly once, as they become ready.
    ///
    /// Polled once on the connection's own task, so a hit costs no task switch; keep that first poll short (a look-up in
    /// the store). The server itself tells the client every 500 ms that the read is still alive, and ends it at its
    /// deadline.
    ///
    /// # Errors
    /// Sent to the client. Chunks already handed to `answers` stay valid.
    ///
    /// # Cancel safety
    /// Dropped at any await when the client cancels or goes away, and at the deadline: what must go on (a fetch that
    /// others have joined) belongs to a task of the worker.
    fn read(
        &self,
        request: ReadRequest,
        answers: AnswerSink,
    ) -> impl Future<Output = Result<(), ReadError>> + Send;

    /// The membership in use. Called for every answer: keep it as cheap as cloning an [`Arc`].
    fn membership(&self) -> Arc<Membership>;

    /// How the dataset is to be mounted; `None` while it has no version.
    fn mount_settings(&self) -> Option<MountSettings>;

    /// The index file of a version; `None` where this worker does not have it.
    fn index(&self, version: VersionId) -> impl Future<Output = Option<IndexSource>> + Send;
}

/// One read of one object.
#[derive(Debug, Clone)]
pub struct ReadRequest {
    /// The dataset version that `file` counts in.
    pub version: VersionId,
    /// Number of the file in the index.
    pub file: u32,
    /// The store file that the client expects the object in; check it against the index.
    pub content: ContentId,
    /// Chunks of the object; never empty, at most [`MAX_READ_CHUNKS`](millrace_api::wire::MAX_READ_CHUNKS), not yet compared
    /// with the object's size.
    pub chunks: Range<u32>,
    /// The membership epoch by which the client chose this worker.
    pub epoch: u64,
    /// When the client gives up.
    pub deadline: Instant,
    /// Whether somebody waits.
    pub priority: Priority,
    /// An earlier answer to this client had a wrong CRC: check the stored bytes before answering, drop them if bad.
    pub verify: bool,
    /// Who asks: the name in its hello.
    pub peer: Arc<str>,
}

/// Some consecutive chunks of the object, on their way to the client.
#[derive(Debug)]
pub enum Answer {
    /// Bytes in a file, sent by sendfile. Longer than a frame is fine: it is split.
    FileRange {
        /// An open store file.
        file: Arc<File>,
        /// Where the first chunk lies.
        offset: u64,
        /// Bytes of all chunks.
        len: u64,
        /// The object's chunk at `offset`.
        first_chunk: u32,
        /// One CRC32C a chunk.
        crcs: Vec<u32>,
    },
    /// Bytes in memory: chunks in flight from the origin.
    Bytes {
        /// The object's chunk that comes first.
        first_chunk: u32,
        /// Each chunk whole, with its CRC32C.
        chunks: Vec<(Bytes, u32)>,
    },
}

/// Why a read was not (wholly) answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ReadError {
    /// What the client should do about it.
    pub code: ErrorCode,
    /// For logs and users: names object and reason; never a secret.
    pub message: String,
}

impl ReadError {
    /// An error with a message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// An index file to be sent.
#[derive(Debug, Clone)]
pub struct IndexSource {
    /// The open file.
    pub file: Arc<File>,
    /// Its length, bytes.
    pub len: u64,
}

/// The connection is gone, or the request was cancelled: nobody wants the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client no longer wants the answer")]
pub struct Unwanted;
