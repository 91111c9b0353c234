//! How is one read answered?
//!
//! From the node store on the calling thread, if all of it is there; else by a task that waits for the workers, so that
//! no FUSE thread ever waits for the network.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use millrace_api::block::{CHUNK_BYTES, Span, chunks_of_range};
use millrace_api::ids::VersionId;
use millrace_api::index::{FileIndex, IndexView};
use millrace_api::placement::PlacementKey;
use millrace_api::wire::ErrorCode;
use millrace_fuse_session::{Errno, ReadReply};
use millrace_store::index_file::IndexFile;
use millrace_store::{Presence, Store};
use millrace_transport::Priority;
use millrace_transport::client::{Client, ReadError};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::assemble::cut;
use super::chunk_table::ChunkTable;
use super::errno::errno_of;
use super::fetch::{Run, fetch, split_by_block};
use super::look_ahead::plan::{Seen, version_bytes};
use super::look_ahead::{AheadCounters, LookAhead};
use super::read_ahead::ReadAhead;
use super::verifier::Verifier;
use crate::metrics::ReadCounters;

/// How often a read begins again because chunks that the store had were evicted or damaged before they were read, or
/// because a fetch that it had joined was given up.
const ATTEMPTS: u32 = 8;

/// What a reader is made of.
#[derive(Debug)]
pub struct ReaderConfig {
    /// The mounted version.
    pub index: Arc<IndexFile>,
    /// Where what was read is kept; `None` where nothing is.
    pub store: Option<Store>,
    /// The way to the workers.
    pub client: Client,
    /// How long one read may wait.
    pub deadline: Duration,
    /// Most bytes fetched ahead and not yet stored, over all open files.
    pub ahead_bytes: usize,
    /// Most bytes to keep in memory of what could not be stored.
    pub keep_bytes: usize,
    /// Where tasks run.
    pub runtime: Handle,
    /// Counts what is read.
    pub counters: ReadCounters,
    /// Counts what is fetched ahead; only where there is a store.
    pub ahead_counters: AheadCounters,
    /// Most bytes that the store may hold; 0 where there is none.
    pub store_bytes: u64,
}

/// Answers the reads of one mount.
#[derive(Debug)]
pub struct Reader {
    pub(super) version: VersionId,
    pub(super) store: Option<Store>,
    pub(super) client: Client,
    pub(super) table: ChunkTable,
    pub(super) counters: ReadCounters,
    pub(super) index: Arc<IndexFile>,
    pub(super) deadline: Duration,
    /// Only where there is a store to keep what it brings.
    pub(super) look_ahead: Option<LookAhead>,
    /// One permit for each chunk that may be fetched ahead.
    ahead: Arc<Semaphore>,
    runtime: Handle,
    tasks: TaskTracker,
    /// Notified whenever chunks were stored, or will not be.
    pub(super) settled: Notify,
    /// Verifies files once they are whole, where that is of use.
    verifier: OnceLock<Arc<Verifier>>,
}

/// A file of the version and where its bytes lie in the store.
#[derive(Debug, Clone, Copy)]
pub struct Located {
    pub(super) file: FileIndex,
    pub(super) span: Span,
}

impl Located {
    /// Where the bytes lie in the store.
    pub fn span(&self) -> &Span {
        &self.span
    }
}

/// A read that the node store could not answer at once.
struct Later {
    file: FileIndex,
    span: Span,
    chunks: Range<u32>,
    offset: u64,
    len: u64,
}

impl Reader {
    /// Makes the reader of one mount.
    pub fn new(config: ReaderConfig) -> Arc<Self> {
        let ReaderConfig {
            index, store, client, deadline, ahead_bytes, keep_bytes, runtime, counters, ..
        } = config;
        let fits = fits(index.view(), config.store_bytes);
        let look_ahead =
            store.as_ref().map(|_| LookAhead::new(index.view(), fits, config.ahead_counters.clone()));
        Arc::new(Self {
            look_ahead,
            version: index.view().version_id(),
            store,
            client,
            table: ChunkTable::new(keep_bytes),
            counters,
            index,
            deadline,
            ahead: Arc::new(Semaphore::new(ahead_bytes / CHUNK_BYTES as usize)),
            runtime,
            tasks: TaskTracker::new(),
            settled: Notify::new(),
            verifier: OnceLock::new(),
        })
    }

    /// Has files verified once they are whole. The first call counts.
    pub fn verify_by(&self, verifier: Arc<Verifier>) {
        // A second one would be the same store's.
        let _ = self.verifier.set(verifier);
    }

    /// Where what was read is kept.
    pub fn node_store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Hears that chunks of an object were stored.
    pub(super) fn stored(&self, span: &Span) {
        if let Some(verifier) = self.verifier.get() {
            verifier.stored(span);
        }
    }

    /// Runs a task that the end of this process waits for.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Where a file's bytes lie. For a large object that hashes its key: a file that stays open keeps the answer.
    pub fn locate(&self, file: FileIndex) -> Option<Located> {
        Some(Located { file, span: self.index.view().span(file)? })
    }

    /// Answers `reply.size()` bytes of a file at `offset`, now or later; `buffer` is the calling thread's to reuse.
    pub fn read(
        self: &Arc<Self>,
        located: Located,
        offset: u64,
        ahead: Option<&Mutex<ReadAhead>>,
        buffer: &mut Vec<u8>,
        reply: ReadReply,
    ) {
        let Located { file, span } = located;
        let len = u64::from(reply.size()).min(span.size.saturating_sub(offset));
        let chunks = chunks_of_range(span.size, offset, len);
        if chunks.is_empty() {
            return reply.bytes(&[]);
        }
        if let Some(ahead) = ahead {
            let range = ahead.lock().observe(offset, len, span.size);
            if let Some(end) = range.and_then(|range| self.fetch_ahead(file, span, range)) {
                ahead.lock().cut_short(end);
            }
        }
        let is_hit = self.is_in_store(&span, &chunks, buffer);
        if let Some(look_ahead) = &self.look_ahead {
            let seen = Seen { file, bytes: len, is_start: offset == 0, is_miss: !is_hit };
            look_ahead.saw(self.index.view(), span.size, seen);
        }
        if is_hit {
            self.counters.hits.inc();
            let start = (offset - u64::from(chunks.start) * CHUNK_BYTES) as usize;
            return match buffer.get(start..start + len as usize) {
                Some(bytes) => reply.bytes(bytes),
                None => reply.error(Errno::IO),
            };
        }
        let later = Later { file, span, chunks, offset, len };
        self.tasks.spawn_on(self.clone().answer_later(later, reply), &self.runtime);
    }

    /// The share of a file that the node store holds, percent; 100 for an empty file.
    pub fn stored_percent(&self, file: FileIndex) -> Option<u32> {
        let span = self.index.view().span(file)?;
        let all = span.chunks().len() as u64;
        let stored = self.presence(&span, &span.chunks()).map_or(0, |there| u64::from(there.count()));
        Some((stored * 100).checked_div(all).unwrap_or(100) as u32)
    }

    /// Waits for the fetches under way, after the last read.
    pub async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Which of some chunks the store has.
    pub(super) fn presence(&self, span: &Span, chunks: &Range<u32>) -> Option<Presence> {
        self.store.as_ref().map(|store| store.present(&span.file, span.slots(chunks.clone())))
    }

    /// Claims the chunks of an object that the node store does not have and that nobody fetches.
    pub(super) fn claim_absent(&self, file: FileIndex, span: &Span, chunks: Range<u32>) -> Vec<Range<u32>> {
        let presence = self.presence(span, &chunks);
        let is_stored = |chunk| presence.as_ref().is_some_and(|p| p.contains(span.first_slot + chunk));
        let most = chunks.len();
        self.table.claim_ahead(file.0, chunks, most, is_stored)
    }

    pub(super) fn placement_key(&self, run: &Run) -> Option<PlacementKey> {
        self.index.view().placement_key(run.file, run.span.block_of(run.chunks.start).index)
    }

    /// Logs and counts an error once, where it stops travelling.
    pub(super) fn report(&self, run: &Run, error: &ReadError) {
        if let Some(suppressed) = self.counters.count_error(error.code()) {
            let path = self.index.view().path(millrace_api::index::Node::File(run.file)).unwrap_or_default();
            let object = String::from_utf8_lossy(&path);
            tracing::warn!(object = &*object, chunks = ?run.chunks, suppressed, error = %error, "chunks could not be read");
        }
    }

    /// Starts to fetch a range that nobody waits for; where memory does not allow all of it, returns where it was cut.
    fn fetch_ahead(self: &Arc<Self>, file: FileIndex, span: Span, range: Range<u64>) -> Option<u64> {
        let chunks = chunks_of_range(span.size, range.start, range.end - range.start);
        let presence = self.presence(&span, &chunks);
        let is_stored = |chunk| presence.as_ref().is_some_and(|p| p.contains(span.first_slot + chunk));
        for run in split_by_block(file, span, chunks) {
            let Ok(permit) = self.ahead.clone().try_acquire_many_owned(run.chunks.len() as u32) else {
                return Some(u64::from(run.chunks.start) * CHUNK_BYTES);
            };
            let mut permit = Some(permit);
            for chunks in self.table.claim_ahead(file.0, run.chunks.clone(), run.chunks.len(), is_stored) {
                let permit = permit.as_mut().and_then(|permit| permit.split(chunks.len()));
                self.start(Run { chunks, ..run.clone() }, Priority::Prefetch, permit);
            }
        }
        None
    }

    pub(super) fn start(
        self: &Arc<Self>,
        run: Run,
        priority: Priority,
        permit: Option<tokio::sync::OwnedSemaphorePermit>,
    ) {
        let deadline = Instant::now() + self.deadline;
        self.tasks.spawn_on(fetch(self.clone(), run, deadline, priority, permit), &self.runtime);
    }

    /// Copies all chunks to `buffer`, if the store has them all.
    fn is_in_store(&self, span: &Span, chunks: &Range<u32>, buffer: &mut Vec<u8>) -> bool {
        let Some(store) = &self.store else {
            return false;
        };
        let len = chunks.len() * CHUNK_BYTES as usize;
        if buffer.len() < len {
            // Never shorter again: growing fills with zeros.
            buffer.resize(len, 0);
        }
        store.read_into(span, chunks.clone(), &mut buffer[..len]) as usize == chunks.len()
    }

    async fn answer_later(self: Arc<Self>, later: Later, reply: ReadReply) {
        let interruption = reply.interruption().clone();
        let deadline = Instant::now() + self.deadline;
        let stall = self.look_ahead.as_ref().map(LookAhead::stall);
        let collected = tokio::select! {
            collected = self.collect(&later, deadline) => collected,
            () = interruption.interrupted() => Err(Errno::INTR),
        };
        drop(stall);
        match collected {
            Ok(chunks) => reply.pieces(&cut(chunks, later.chunks.start, later.offset, later.len)),
            Err(errno) => reply.error(errno),
        }
    }

    /// Gets whole chunks, from memory, store or workers.
    async fn collect(self: &Arc<Self>, later: &Later, deadline: Instant) -> Result<Vec<Bytes>, Errno> {
        let Later { file, span, chunks, .. } = later;
        let mut is_counted = false;
        for _ in 0..ATTEMPTS {
            let presence = self.presence(span, chunks);
            let is_stored = |chunk| presence.as_ref().is_some_and(|p| p.contains(span.first_slot + chunk));
            let claim = self.table.claim(file.0, chunks.clone(), is_stored);
            if !std::mem::replace(&mut is_counted, true) {
                self.counters.count_miss(claim.to_fetch.is_empty());
            }
            for run in claim.to_fetch.into_iter().flat_map(|chunks| split_by_block(*file, *span, chunks)) {
                self.start(run, Priority::Foreground, None);
            }
            match tokio::time::timeout_at(deadline, claim.wait.done()).await {
                Ok(Ok(())) => {}
                // The fetch of another read began earlier, and its deadline passed earlier.
                Ok(Err(error)) if claim.has_joined && may_pass(error.code()) => continue,
                Ok(Err(error)) => return Err(errno_of(error.code())),
                Err(_) => return Err(Errno::IO),
            }
            if let Some(chunks) = self.fill_from_store(span, chunks.start, claim.wait.take()).await {
                return Ok(chunks);
            }
        }
        tracing::warn!(file = file.0, "chunks are lost faster than they can be read");
        Err(Errno::IO)
    }

    /// Reads the chunks that were in the store; `None` where one of them is not there any more.
    async fn fill_from_store(
        &self,
        span: &Span,
        first: u32,
        chunks: Vec<Option<Bytes>>,
    ) -> Option<Vec<Bytes>> {
        if chunks.iter().all(Option::is_some) {
            return chunks.into_iter().collect();
        }
        let store = self.store.clone()?;
        let span = *span;
        let read = move || -> Option<Vec<Bytes>> {
            let place = |(i, chunk): (usize, Option<Bytes>)| match chunk {
                Some(bytes) => Some(bytes),
                None => {
                    let chunk = first + i as u32;
                    let mut bytes = vec![0; span.place(chunk)?.len as usize];
                    (store.read_into(&span, chunk..chunk + 1, &mut bytes) == 1).then(|| Bytes::from(bytes))
                }
            };
            chunks.into_iter().enumerate().map(place).collect()
        };
        // A panic in the store was logged; to the reader it is a miss.
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }
}

/// Whether a store of so many bytes can hold all of a version, with a twentieth of it to spare.
fn fits(index: IndexView<'_>, store_bytes: u64) -> bool {
    let needed = version_bytes(index);
    needed.saturating_add(needed / 20) <= store_bytes
}

/// Whether a fetch that failed so may succeed when it has more time.
fn may_pass(code: ErrorCode) -> bool {
    match code {
        ErrorCode::DeadlinePassed
        | ErrorCode::OriginUnavailable
        | ErrorCode::Overloaded
        | ErrorCode::Stopping
        | ErrorCode::Cancelled => true,
        ErrorCode::ObjectChanged
        | ErrorCode::ObjectGone
        | ErrorCode::Archived
        | ErrorCode::OriginDenied
        | ErrorCode::NotFound
        | ErrorCode::UnknownVersion
        | ErrorCode::BadRequest
        | ErrorCode::Unsupported
        | ErrorCode::WrongKey
        | ErrorCode::Internal
        | ErrorCode::NotIndexed
        | ErrorCode::Unknown(_) => false,
    }
}
