//! How do chunks get from the origin to those who wait and into the store?

mod source;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use millrace_api::block::CHUNK_BYTES;
use millrace_api::crc::crc32c;
use millrace_api::ids::ContentId;
use millrace_daemon::shutdown::Tasks;
use millrace_store::{Class, Store};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::block_map::{BlockMap, Chunk, Flight};
use super::cutter::Cutter;
use super::disk_wait::look_into;
use super::error::FetchError;
use super::failures::{Failure, Failures, Hold};
use super::run_writer::{Kept, RUN_CHUNKS, RunWriter};
use super::timing::Timing;
use crate::metrics::Metrics;
use crate::origin::GetStream;
use crate::origin::error::OriginError;
use crate::origin::window::Priority;
use crate::versions::{Object, Version};
use source::{Source, byte_range};

/// Writes to the store at once. More than one lets a slow disk work in parallel; each holds a blocking thread.
const WRITERS: usize = 4;

/// How long a chunk waits for memory; then it is held beyond the bound, one chunk of each flight in this time at most.
const MEMORY_WAIT: Duration = Duration::from_secs(1);

/// How long the store is taken to be full after it kept nothing: then only what is wanted is fetched.
const FULL_FOR: Duration = Duration::from_secs(1);

/// An object of a version.
#[derive(Debug, Clone)]
pub struct Target {
    /// The version.
    pub version: Arc<Version>,
    /// The object.
    pub object: Arc<Object>,
}

impl Target {
    /// The store file.
    pub fn content(&self) -> ContentId {
        self.object.span.file.content
    }

    /// Slots of some of the object's chunks.
    pub fn slots(&self, chunks: &Range<u32>) -> Range<u32> {
        self.object.span.slots(chunks.clone())
    }

    /// Chunks of the object in some slots.
    pub fn chunks(&self, slots: &Range<u32>) -> Range<u32> {
        let first = self.object.span.first_slot;
        slots.start - first..slots.end - first
    }
}

/// How chunks are to be fetched.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Whether a reader waits.
    pub priority: Priority,
    /// How the store keeps them.
    pub class: Class,
    /// When the fetch is given up.
    pub deadline: Instant,
}

/// How a flight ended.
pub type Landing = Result<Kept, Arc<FetchError>>;

/// Fetches chunks; one for the whole worker.
#[derive(Debug)]
pub struct Fetcher {
    /// Where chunks are kept.
    pub store: Store,
    /// What is on its way.
    pub map: Mutex<BlockMap<FetchError>>,
    /// Objects that cannot be read.
    pub failures: Mutex<Failures>,
    /// What the origin's answers usually take.
    pub timing: Timing,
    /// Counters.
    pub metrics: Metrics,
    /// Notified whenever a flight ends.
    pub landed: Notify,
    memory: Arc<Semaphore>,
    memory_bytes: usize,
    writers: Arc<Semaphore>,
    tasks: Tasks,
    born: Instant,
    full_until_ms: AtomicU64,
    starting: AtomicUsize,
}

impl Fetcher {
    /// A fetcher that holds at most `memory_bytes` of chunks.
    pub fn new(store: Store, memory_bytes: u64, metrics: Metrics, tasks: Tasks) -> Arc<Self> {
        // A chunk must always fit.
        let memory_bytes = memory_bytes.clamp(4 * CHUNK_BYTES, 1 << 40) as usize;
        Arc::new(Self {
            store,
            map: Mutex::default(),
            failures: Mutex::default(),
            timing: Timing::default(),
            metrics,
            landed: Notify::new(),
            memory: Arc::new(Semaphore::new(memory_bytes)),
            memory_bytes,
            writers: Arc::new(Semaphore::new(WRITERS)),
            tasks,
            born: Instant::now(),
            full_until_ms: AtomicU64::new(0),
            starting: AtomicUsize::new(0),
        })
    }

    /// Whether the store has kept what it was given lately.
    pub fn admits(&self) -> bool {
        self.born.elapsed().as_millis() as u64 >= self.full_until_ms.load(Ordering::Relaxed)
    }

    /// Flights that were launched and have not come to the origin's window yet.
    pub fn starting(&self) -> usize {
        self.starting.load(Ordering::Relaxed)
    }

    /// Looks which slots claimed by `flight` are in the store after all, releases them, and returns the others.
    pub fn absent_from_store(
        &self,
        target: &Target,
        claimed: Vec<Range<u32>>,
        flight: &Flight,
    ) -> Vec<Range<u32>> {
        let mut absent = Vec::new();
        for run in claimed {
            let file = &target.object.span.file;
            let presence = look_into(&self.store, file, || self.store.present(file, run.clone()));
            if presence.count() == 0 {
                absent.push(run);
                continue;
            }
            let missing: Vec<_> = presence.missing().collect();
            let mut map = self.map.lock();
            let mut at = run.start;
            for gap in missing.iter().cloned().chain(std::iter::once(run.end..run.end)) {
                map.release(target.content(), at..gap.start, flight);
                at = gap.end;
            }
            absent.extend(missing);
        }
        absent
    }

    /// Sends for the chunks in `slots`, which `flight` has claimed, in one request.
    pub fn launch(
        self: &Arc<Self>,
        target: Target,
        slots: Range<u32>,
        flight: Arc<Flight>,
        terms: Terms,
    ) -> oneshot::Receiver<Landing> {
        let (done, landing) = oneshot::channel();
        let fetcher = Arc::clone(self);
        self.metrics.flights.inc();
        self.starting.fetch_add(1, Ordering::Relaxed);
        self.tasks.spawn("fetch", async move {
            // From here to the origin's window there is no wait.
            fetcher.starting.fetch_sub(1, Ordering::Relaxed);
            let result = fetcher.fly(&target, slots.clone(), &flight, terms).await;
            let result = result.map_err(|error| fetcher.note_failure(&target, &slots, &flight, error));
            if result.is_ok() && !fetcher.failures.lock().is_empty() {
                fetcher.note_success(&target);
            }
            fetcher.metrics.flights.dec();
            fetcher.landed.notify_waiters();
            // Nobody may wait for the landing itself.
            let _ = done.send(result);
        });
        landing
    }

    /// Brings the chunks: cut, checksummed, handed on, written.
    async fn fly(
        self: &Arc<Self>,
        target: &Target,
        slots: Range<u32>,
        flight: &Flight,
        terms: Terms,
    ) -> Result<Kept, FetchError> {
        let source = Source::of(target)?;
        let range = byte_range(&target.object.span, &target.chunks(&slots));
        let mut cutter = Cutter::new(range.end - range.start);
        let mut body = source.get(range, terms.priority, terms.deadline);
        let mut may_be_urged = terms.priority == Priority::WarmUp;
        let mut writer = RunWriter::new(Arc::clone(self), target.clone(), terms.class);
        let stop = self.tasks.token();
        let mut next = slots.start;
        let mut waited = Duration::ZERO;
        let result = loop {
            let asked = Instant::now();
            let event = next_event(&mut body, flight, &stop, &mut may_be_urged).await;
            match event {
                Event::Piece(Ok(Some(piece))) => cutter.push(piece),
                Event::Piece(Ok(None)) if cutter.is_done() => break Ok(()),
                Event::Piece(Ok(None)) => {
                    break Err(FetchError::short(&target.version.path_text(target.object.file)));
                }
                Event::Piece(Err(error)) => break Err(FetchError::from_origin(&error)),
                Event::Stop => break Err(FetchError::stopping()),
                Event::Urged => {
                    // It waits behind others for its turn, and a reader waits for it: it goes to the readers' queue.
                    body = source.get(body.left(), Priority::Foreground, terms.deadline);
                    continue;
                }
            }
            if flight.has_begun() {
                waited += asked.elapsed();
            } else {
                self.timing.first_byte(asked.elapsed());
                flight.advance(next);
            }
            while let Some(bytes) = cutter.next_chunk() {
                let crc = crc32c(&bytes);
                let permit = match self.try_permit(bytes.len()) {
                    Some(permit) => Some(permit),
                    None => {
                        // What this flight holds itself must not be what it waits for.
                        writer.flush().await;
                        self.permit(bytes.len()).await
                    }
                };
                let chunk = Arc::new(Chunk::new(self.held(bytes, permit), crc));
                flight.advance(next + 1);
                if self.map.lock().arrive(target.content(), next, &chunk) {
                    writer.push(next, chunk).await;
                } else {
                    self.metrics.duplicate_chunks.inc();
                }
                next += 1;
                self.timing.chunk(std::mem::take(&mut waited));
            }
        };
        // What has arrived is kept, however the flight ended.
        let kept = writer.finish().await;
        result.map(|()| kept)
    }

    fn try_permit(&self, len: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.memory).try_acquire_many_owned(len as u32).ok()
    }

    /// Waits until a chunk may be held, but not for ever: those who hold memory may themselves wait for this chunk.
    async fn permit(&self, len: usize) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.memory).acquire_many_owned(len as u32);
        tokio::time::timeout(MEMORY_WAIT, permit).await.ok()?.ok()
    }

    /// Counts a chunk's bytes as held until the last user has dropped them.
    fn held(&self, bytes: Bytes, permit: Option<OwnedSemaphorePermit>) -> Bytes {
        self.metrics.in_flight_bytes.add(bytes.len() as i64);
        let gauge = self.metrics.in_flight_bytes.clone();
        Bytes::from_owner(Held { bytes, gauge, _permit: permit })
    }

    /// Records that the flight failed, and tells those who wait.
    fn note_failure(
        &self,
        target: &Target,
        slots: &Range<u32>,
        flight: &Flight,
        error: FetchError,
    ) -> Arc<FetchError> {
        let error = Arc::new(error);
        self.map.lock().fail(target.content(), slots.clone(), flight, &error);
        if let Some(hold) = error.hold {
            self.record_failure(target, hold, &error);
        }
        error
    }

    /// Remembers an object's failure; logged once for each object.
    pub fn record_failure(&self, target: &Target, hold: Hold, error: &Arc<FetchError>) {
        let object = target.version.path_text(target.object.file);
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let path = object.as_str().into();
        let failure =
            Failure { hold, error: Arc::clone(error), path, since: Instant::now().into_std(), at_ms };
        let mut failures = self.failures.lock();
        if failures.record(target.object.id, failure) {
            self.metrics.failures.with_label_values(&[error.reason]).inc();
            tracing::warn!(object, reason = error.reason, error = %error, "object cannot be read as indexed");
        }
        self.metrics.failed_objects.set(failures.len() as i64);
    }

    /// Takes objects no longer for failed that could not be read for a reason which is no more.
    pub fn forget_failures(&self, reason: &str) {
        let mut failures = self.failures.lock();
        failures.forget(reason);
        self.metrics.failed_objects.set(failures.len() as i64);
    }

    fn note_success(&self, target: &Target) {
        let mut failures = self.failures.lock();
        if failures.clear(&target.object.id) {
            self.metrics.failed_objects.set(failures.len() as i64);
        }
    }

    /// Whether little memory is left for chunks.
    pub(super) fn is_short_of_memory(&self) -> bool {
        self.memory.available_permits() < 4 * RUN_CHUNKS * CHUNK_BYTES as usize
    }

    /// Whether half of the memory for chunks is in use: the rest is for what a reader waits for.
    pub(super) fn is_half_full(&self) -> bool {
        self.memory.available_permits() < self.memory_bytes / 2
    }

    /// Bounds the writes at once.
    pub(super) fn writers(&self) -> Arc<Semaphore> {
        Arc::clone(&self.writers)
    }

    /// Records that the store did not keep what it was given.
    pub(super) fn note_not_kept(&self) {
        let until = self.born.elapsed() + FULL_FOR;
        self.full_until_ms.store(until.as_millis() as u64, Ordering::Relaxed);
    }
}

/// What a flight waits for.
enum Event {
    Piece(Result<Option<Bytes>, OriginError>),
    Urged,
    Stop,
}

/// Waits for the next piece, a stop, or a reader who comes to wait for a request that is still queued in the window.
async fn next_event(
    body: &mut GetStream,
    flight: &Flight,
    stop: &CancellationToken,
    may_be_urged: &mut bool,
) -> Event {
    let is_sent = body.is_sent();
    // Kept over an urge: dropping it would send a request that is under way again.
    let piece = body.next();
    tokio::pin!(piece);
    loop {
        tokio::select! {
            piece = &mut piece => return Event::Piece(piece),
            () = stop.cancelled() => return Event::Stop,
            () = flight.urged(), if *may_be_urged => {
                *may_be_urged = false;
                if !is_sent.load(Ordering::Relaxed) {
                    return Event::Urged;
                }
            }
        }
    }
}

/// Bytes that count against the bound on chunks in memory.
struct Held {
    bytes: Bytes,
    gauge: prometheus::IntGauge,
    _permit: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gauge.sub(self.bytes.len() as i64);
    }
}
