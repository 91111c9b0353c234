//! How is one read of the data port answered?

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millrace_api::ids::{ContentId, VersionId};
use millrace_api::index::{FileIndex, PackIndex};
use millrace_api::mount::MountSettings;
use millrace_api::placement::Membership;
use millrace_api::wire::ErrorCode;
use millrace_store::Class;
use millrace_transport::server::{Answer, AnswerSink, Blocks, IndexSource, ReadError, ReadRequest};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::ahead::{Ahead, MAX_BLOCKS_AHEAD};
use super::background::{Background, Hint};
use super::block_map::{Arrival, Chunk, Flight, Joined};
use super::disk_wait::wait_for_disk;
use super::error::{FetchError, code_label};
use super::fetcher::{Fetcher, Target, Terms};
use super::patience::{Next, Patience};
use super::plan;
use crate::members::Members;
use crate::metrics::From;
use crate::origin::window::Priority;
use crate::versions::Versions;

/// Chunks of one read that are waited for at once: what a reader may hold of arrived chunks, 16 MiB.
const MAX_WAIT_CHUNKS: u32 = 256;

/// A read of many chunks is answered in pieces of at least this many, to save frames.
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
        // Moving the others away takes longer than a look into a sidecar that is open.
        let hit = if store.has_open(&span.file) { read() } else { wait_for_disk(read) };
        let Some(hit) = hit else { return Ok(false) };
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
        let piece = if slots.len() >= 2 * PIECE_CHUNKS { PIECE_CHUNKS } else { 1 };
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

    /// Sends for `run` (slots), which `flight` has claimed, and for what belongs to it; returns what this read's own
    /// flights bring.
    fn send_for(&self, reading: &mut Reading<'_>, run: Range<u32>, flight: &Arc<Flight>) -> Vec<Range<u32>> {
        let (target, fetcher) = (reading.target.clone(), &self.fetcher);
        let (span, content) = (&target.object.span, target.content());
        let block = span.file.block_of(run.start).index;
        let class = self.members.class(target.object.placement(block));
        // A full store keeps nothing, and of others' blocks only what is wanted is our business.
        let extends = class == Class::Owned && fetcher.admits();
        let planned = if !extends {
            run.clone()
        } else if target.object.is_packed() {
            target.slots(&span.chunks())
        } else {
            let of_block = span.file.slots_of(block);
            plan::foreground(run.clone(), of_block)
        };
        let is_urgent = reading.priority == Priority::Foreground;
        let mut claimed = vec![run.clone()];
        {
            let mut map = fetcher.map.lock();
            for around in [planned.start..run.start.max(planned.start), run.end..planned.end.max(run.end)] {
                claimed.extend(map.claim(content, around, flight, None));
            }
        }
        claimed.sort_by_key(|run| run.start);
        let terms = Terms { priority: reading.priority, class, deadline: reading.deadline };
        let mut own = Vec::new();
        for absent in join_runs(fetcher.absent_from_store(&target, claimed, flight)) {
            // Chunks that are not kept must come in order: a reader holds them until it has sent those before.
            let in_flight =
                if extends { fetcher.metrics.flights.get().max(0) as usize } else { plan::BUSY_FLIGHTS };
            for part in plan::split(absent, in_flight) {
                let flight = {
                    let mut map = fetcher.map.lock();
                    let flight = map.flight(part.start, is_urgent);
                    map.take_over(content, part.clone(), &flight);
                    flight
                };
                own.push(part.clone());
                drop(fetcher.launch(target.clone(), part, flight, terms));
            }
        }
        if extends && !own.is_empty() {
            reading.behind = behind(&target, block, &planned);
        }
        own
    }

    /// Sees to it that wanted slots on other flights do not come late; returns what own flights bring sooner.
    fn hurry(&self, reading: &Reading<'_>, joined: &Joined) -> Vec<Range<u32>> {
        if reading.priority != Priority::Foreground {
            return Vec::new();
        }
        let timing = &self.fetcher.timing;
        let mut late: Vec<Range<u32>> = Vec::new();
        for (slot, flight) in &joined.pending {
            if !flight.has_begun() {
                flight.urge();
            } else if is_late(flight, *slot, timing) {
                super::block_map::push_slot(&mut late, *slot);
            }
        }
        let block = |run: &Range<u32>| reading.target.object.span.file.block_of(run.start).index;
        for run in &late {
            let class = self.members.class(reading.target.object.placement(block(run)));
            let flight = {
                let mut map = self.fetcher.map.lock();
                let flight = map.flight(run.start, true);
                map.take_over(reading.target.content(), run.clone(), &flight);
                flight
            };
            self.fetcher.metrics.overtaken_chunks.inc_by(run.len() as u64);
            let terms = Terms { priority: Priority::Foreground, class, deadline: reading.deadline };
            drop(self.fetcher.launch(reading.target.clone(), run.clone(), flight, terms));
        }
        late
    }

    /// Fetches ahead of sequential reads: the next blocks of a large object, or the next packs of the version.
    fn fetch_ahead(&self, target: &Target, wanted: &Range<u32>) {
        let (version, file) = (&target.version, target.object.file);
        // Blocks of other owners lie between two that are ours.
        let gap = 2 + 2 * self.members.current().workers.len() as u32;
        if let Some(pack) = version.view().pack_of(file) {
            let packs = version.view().totals().packs;
            let ahead = self.ahead.lock().touched(ContentId(version.id.0), pack.0, packs, gap);
            for pack in ahead.map(PackIndex) {
                if version.view().pack(pack).is_some_and(|pack| self.members.owns(pack.placement)) {
                    self.background.hint(Hint::Pack { version: version.id, pack });
                }
            }
            return;
        }
        let span = &target.object.span;
        let is_streaming = wanted.end - wanted.start >= plan::STREAMING_CHUNKS;
        if span.file.blocks() < 2 || !is_streaming {
            return;
        }
        let block = span.block_of(wanted.start).index;
        let gap = gap.max(MAX_BLOCKS_AHEAD);
        for block in self.ahead.lock().touched(target.content(), block, span.file.blocks(), gap) {
            if self.members.owns(target.object.placement(block)) {
                self.background.hint(Hint::Block { version: version.id, file, block });
            }
        }
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

/// What should follow a miss: the rest of its block, or its neighbours in the pack.
fn behind(target: &Target, block: u32, planned: &Range<u32>) -> Option<Hint> {
    let (version, file) = (target.version.id, target.object.file);
    if target.object.is_packed() {
        return target.version.view().pack_of(file).map(|pack| Hint::Pack { version, pack });
    }
    (*planned != target.object.span.file.slots_of(block)).then_some(Hint::Block { version, file, block })
}

fn is_late(flight: &Flight, slot: u32, timing: &super::timing::Timing) -> bool {
    let ahead = slot.saturating_sub(flight.next_slot());
    plan::deserves_own_request(ahead, timing.usual_chunk(), timing.usual_first_byte())
}

/// Joins runs that follow each other.
fn join_runs(runs: Vec<Range<u32>>) -> Vec<Range<u32>> {
    let mut joined: Vec<Range<u32>> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => joined.push(run),
        }
    }
    joined
}
