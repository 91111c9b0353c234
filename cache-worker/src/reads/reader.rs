//! How is one read of the data port answered?

mod asking;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millrace_api::ids::VersionId;
use millrace_api::index::FileIndex;
use millrace_api::mount::MountSettings;
use millrace_api::placement::Membership;
use millrace_api::wire::ErrorCode;
use millrace_transport::server::{Answer, AnswerSink, Blocks, IndexSource, ReadError, ReadRequest};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::ahead::Ahead;
use super::background::{Background, Hint};
use super::block_map::{Arrival, Chunk};
use super::disk_wait::look_into;
use super::error::{FetchError, code_label};
use super::fetcher::{Fetcher, Target};
use super::patience::{Next, Patience};
use crate::members::Members;
use crate::metrics::From;
use crate::origin::window::Priority;
use crate::versions::Versions;

/// Chunks of one read that are waited for at once: what a reader may hold of arrived chunks, 16 MiB.
const MAX_WAIT_CHUNKS: u32 = 256;

/// A read is answered in pieces of at least this many chunks, or whole, to save frames.
const PIECE_CHUNKS: usize = 4;

/// How long an arrived chunk waits for others to go with it.
const LINGER: Duration = Duration::from_millis(2);

/// How long a read ahead leaves others before it, then it counts as a reader's own: by now one waits for it, and where the
/// window stays full it would never have its turn. A few times the first byte of S3.
const AHEAD_YIELDS: Duration = Duration::from_millis(250);

/// The worker behind the data port.
#[derive(Debug)]
pub struct Reads {
    fetcher: Arc<Fetcher>,
    versions: Arc<Versions>,
    members: Arc<Members>,
    background: Arc<Background>,
    ahead: Mutex<Ahead>,
}

/// One read under way.
struct Reading<'a> {
    target: Target,
    wanted: Range<u32>,
    /// The next chunk to send.
    next: u32,
    /// Chunks that arrived and were not sent yet.
    arrived: BTreeMap<u32, (Arc<Chunk>, From)>,
    deadline: Instant,
    priority: Priority,
    patience: Patience,
    answers: &'a AnswerSink,
    /// What follows once this read is answered: earlier it would take bandwidth from it.
    behind: Option<Hint>,
}

/// Why a wait for chunks ended.
enum Waited {
    /// All that was waited for has been sent.
    Sent,
    /// The next chunk is in the store, or has to be asked for again.
    LookAgain,
    /// A flight failed.
    Failed(Arc<FetchError>),
}

impl Blocks for Reads {
    async fn read(&self, request: ReadRequest, answers: AnswerSink) -> Result<(), ReadError> {
        let result = self.answer(request, &answers).await;
        if let Err(error) = &result {
            self.fetcher.metrics.read_errors.with_label_values(&[code_label(error.code)]).inc();
        }
        result
    }

    fn membership(&self) -> Arc<Membership> {
        self.members.current()
    }

    fn mount_settings(&self) -> Option<MountSettings> {
        self.versions.mount()
    }

    async fn index(&self, version: VersionId) -> Option<IndexSource> {
        let version = self.versions.get(&version)?;
        if version.is_to_be_verified(Instant::now()) {
            let (versions, served) = (Arc::clone(&self.versions), Arc::clone(&version));
            let verifying = tokio::task::spawn_blocking(move || versions.verify(&served));
            // A long one ends while the index is sent: whoever has fetched a damaged one does so again.
            if version.index().is_quick_to_verify() && !verifying.await.unwrap_or(true) {
                return None;
            }
        }
        Some(IndexSource { file: version.open_index()?, len: version.index().len() })
    }
}

impl Reads {
    /// Answers from what `fetcher` brings.
    pub fn new(
        fetcher: Arc<Fetcher>,
        versions: Arc<Versions>,
        members: Arc<Members>,
        background: Arc<Background>,
    ) -> Self {
        Self { fetcher, versions, members, background, ahead: Mutex::default() }
    }

    async fn answer(&self, request: ReadRequest, answers: &AnswerSink) -> Result<(), ReadError> {
        let target = self.target(&request)?;
        if request.verify {
            self.verify(&target, request.chunks.clone()).await;
        }
        let priority = match request.priority {
            millrace_transport::Priority::Foreground => Priority::Foreground,
            millrace_transport::Priority::Prefetch => Priority::WarmUp,
        };
        let mut reading = Reading {
            target,
            next: request.chunks.start,
            wanted: request.chunks,
            arrived: BTreeMap::new(),
            deadline: request.deadline,
            priority,
            patience: Patience::default(),
            answers,
            behind: None,
        };
        self.fetch_ahead(&reading.target, &reading.wanted);
        while reading.next < reading.wanted.end {
            if self.send_arrived(&mut reading, 1).await? || self.send_stored(&mut reading).await? {
                continue;
            }
            let started = Instant::now();
            let waited = self.wait(&mut reading).await?;
            self.fetcher.metrics.read_wait.observe(started.elapsed().as_secs_f64());
            if let Waited::Failed(error) = waited {
                self.after_failure(&mut reading, &error).await?;
            }
        }
        if let Some(hint) = reading.behind {
            self.background.hint(hint);
        }
        Ok(())
    }

    /// Waits until the read is to be tried again; its error where it is not.
    async fn after_failure(
        &self,
        reading: &mut Reading<'_>,
        error: &Arc<FetchError>,
    ) -> Result<(), ReadError> {
        let object = &reading.target.object;
        let block = object.span.block_of(reading.next).index;
        let class = self.members.class(object.placement(block));
        match reading.patience.next(error, class) {
            Next::Again(pause) if Instant::now() + 2 * pause < reading.deadline => {
                tracing::debug!(file = object.file.0, error = %error, "fetch failed, tried again");
                tokio::time::sleep(pause).await;
                Ok(())
            }
            Next::Again(_) | Next::Fail => Err(error.to_read_error()),
            Next::Hold(hold) => {
                self.fetcher.record_failure(&reading.target, hold, error);
                Err(error.to_read_error())
            }
        }
    }

    fn target(&self, request: &ReadRequest) -> Result<Target, ReadError> {
        let ReadRequest { version: id, file, content, chunks, .. } = request;
        let version = self.versions.get(id).ok_or_else(|| {
            ReadError::new(ErrorCode::UnknownVersion, format!("this worker has no index of version {id}"))
        })?;
        let object = version
            .object(FileIndex(*file))
            .ok_or_else(|| ReadError::new(ErrorCode::NotFound, format!("version {id} has no file {file}")))?;
        if object.span.file.content != *content {
            let message =
                format!("file {file} of version {id} is in {}, not in {content}", object.span.file.content);
            return Err(ReadError::new(ErrorCode::BadRequest, message));
        }
        if chunks.end > object.span.chunks().end {
            let message = format!("file {file} of version {id} has {} chunks", object.span.chunks().end);
            return Err(ReadError::new(ErrorCode::NotFound, message));
        }
        Ok(Target { version, object })
    }

    /// Sends the next chunks from the store; false where it does not have the next one.
    async fn send_stored(&self, reading: &mut Reading<'_>) -> Result<bool, ReadError> {
        let span = &reading.target.object.span;
        let store = &self.fetcher.store;
        let read = || store.read(span, reading.next..reading.wanted.end);
        let Some(hit) = look_into(store, &span.file, read) else { return Ok(false) };
        let chunks = hit.crcs.len() as u32;
        self.fetcher.metrics.sent(From::Hit, chunks.into(), hit.len);
        let first_chunk = reading.next;
        let answer = Answer::FileRange {
            file: hit.file,
            offset: hit.offset,
            len: hit.len,
            first_chunk,
            crcs: hit.crcs,
        };
        reading.send(answer, chunks).await?;
        Ok(true)
    }

    /// Sends the next chunks that have arrived, where there are at least `least`; false where there are not.
    async fn send_arrived(&self, reading: &mut Reading<'_>, least: usize) -> Result<bool, ReadError> {
        let mut chunks: Vec<(Bytes, u32)> = Vec::new();
        let mut at = reading.next;
        while let Some((chunk, _)) = reading.arrived.get(&at) {
            let Some(bytes) = chunk.bytes() else { break };
            chunks.push((bytes, chunk.crc));
            at += 1;
            if chunks.len() == usize::from(millrace_api::wire::MAX_FRAME_CHUNKS) {
                break;
            }
        }
        if chunks.is_empty() {
            // Forgotten: the store has it.
            reading.arrived.remove(&reading.next);
            return Ok(false);
        }
        if chunks.len() < least && at < reading.wanted.end {
            return Ok(false);
        }
        for chunk in reading.next..at {
            if let Some((held, from)) = reading.arrived.remove(&chunk) {
                drop(held);
                let bytes = chunks[(chunk - reading.next) as usize].0.len();
                self.fetcher.metrics.sent(from, 1, bytes as u64);
            }
        }
        let count = chunks.len() as u32;
        reading.send(Answer::Bytes { first_chunk: reading.next, chunks }, count).await?;
        Ok(true)
    }

    /// Joins or starts the flights that bring the next chunks, and sends them as they arrive.
    async fn wait(&self, reading: &mut Reading<'_>) -> Result<Waited, ReadError> {
        let chunks = reading.next..reading.wanted.end.min(reading.next + MAX_WAIT_CHUNKS);
        let slots = reading.target.slots(&chunks);
        let refusal = {
            let failures = self.fetcher.failures.lock();
            failures
                .refusal(&reading.target.object.id, std::time::Instant::now())
                .map(|f| Arc::clone(&f.error))
        };
        if let Some(error) = refusal {
            return Err(error.to_read_error());
        }
        let (mailbox, mut mail) = mpsc::channel(2 * slots.len());
        let (joined, flight) = {
            // Under one lock: what somebody else claims in between would not be told to this mailbox.
            let mut map = self.fetcher.map.lock();
            let joined = map.join(reading.target.content(), slots.clone(), &mailbox);
            let flight = map.flight(slots.start, reading.priority == Priority::Foreground);
            for run in &joined.absent {
                map.claim(reading.target.content(), run.clone(), &flight, Some(&mailbox));
            }
            (joined, flight)
        };
        let mut own = self.hurry(reading, &joined);
        for run in joined.absent {
            own.extend(self.send_for(reading, run, &flight));
        }
        drop(mailbox);
        let piece = slots.len().min(PIECE_CHUNKS);
        let mut linger = false;
        let mut yields_until =
            (reading.priority != Priority::Foreground).then(|| Instant::now() + AHEAD_YIELDS);
        loop {
            let next = if let (false, Some(until)) = (linger, yields_until) {
                match timeout_at(until, mail.recv()).await {
                    Ok(mailed) => mailed,
                    Err(_) => {
                        yields_until = None;
                        self.fetcher.map.lock().urge(reading.target.content(), slots.clone());
                        continue;
                    }
                }
            } else if linger {
                match timeout(LINGER, mail.recv()).await {
                    Ok(mailed) => mailed,
                    Err(_) => {
                        self.send_arrived(reading, 1).await?;
                        linger = false;
                        continue;
                    }
                }
            } else {
                mail.recv().await
            };
            let Some(mut mailed) = next else { return Ok(Waited::LookAgain) };
            loop {
                let (slot, arrival) = mailed;
                let chunk = slot - reading.target.object.span.first_slot;
                match arrival {
                    Arrival::Chunk(held) if chunk >= reading.next => {
                        let from =
                            if own.iter().any(|run| run.contains(&slot)) { From::Miss } else { From::Join };
                        reading.arrived.insert(chunk, (held, from));
                    }
                    Arrival::Chunk(_) | Arrival::Stored => {}
                    Arrival::Failed(error) => return Ok(Waited::Failed(error)),
                }
                match mail.try_recv() {
                    Ok(more) => mailed = more,
                    Err(_) => break,
                }
            }
            while self.send_arrived(reading, piece).await? {}
            if reading.next >= chunks.end {
                return Ok(Waited::Sent);
            }
            linger = reading.arrived.contains_key(&reading.next);
            if !linger && !self.is_expected(reading) {
                return Ok(Waited::LookAgain);
            }
        }
    }

    /// Whether the next chunk is still on its way.
    fn is_expected(&self, reading: &Reading<'_>) -> bool {
        let slot = reading.target.object.span.first_slot + reading.next;
        self.fetcher.map.lock().is_pending(reading.target.content(), slot)
    }

    /// Compares stored chunks with their checksums, since a reader got one that did not match; bad ones are dropped.
    async fn verify(&self, target: &Target, chunks: Range<u32>) {
        let (store, span) = (self.fetcher.store.clone(), target.object.span);
        let checked = tokio::task::spawn_blocking(move || {
            let mut buffer = vec![0; millrace_api::block::CHUNK_BYTES as usize];
            for chunk in chunks {
                // A chunk that does not match is dropped by the store itself.
                store.read_into(&span, chunk..chunk + 1, &mut buffer);
            }
        });
        if let Err(error) = checked.await {
            tracing::error!(error = %error, "verification of stored chunks ended early");
        }
    }
}

impl Reading<'_> {
    async fn send(&mut self, answer: Answer, chunks: u32) -> Result<(), ReadError> {
        self.answers
            .send(answer)
            .await
            .map_err(|unwanted| ReadError::new(ErrorCode::Cancelled, unwanted.to_string()))?;
        self.next += chunks;
        self.patience.progressed();
        Ok(())
    }
}
