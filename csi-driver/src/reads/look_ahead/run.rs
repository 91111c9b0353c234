//! How is fetched what the plan says, within bounds of memory and without being in a reader's way?

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use millrace_api::block::{CHUNK_BYTES, LARGE_OBJECT_BYTES, chunks_of_range};
use millrace_api::index::{FileIndex, IndexView};
use millrace_store::{Class, NotKept, Presence, Written};
use millrace_transport::Priority;
use millrace_transport::client::{Chunk, Want};
use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::plan::{Bits, Planner, QUIET, Seen, What, Why};
use crate::reads::fetch::{Run, Settled, Unfetched, split_by_block};
use crate::reads::reader::Reader;

/// Chunks of one batch, 2 MiB: a reader that wants the last of them waits for no more than that.
const BATCH_CHUNKS: usize = 32;

/// Chunks under way and not yet stored, 24 MiB. A batch of small files is there after 10 ms from S3 and as long again in the
/// worker, the wire and the node store, where processors are short several times that: so many fill 400 MB/s at 60 ms.
const UNDER_WAY_CHUNKS: usize = 384;

/// What looking ahead brought, and what of it was read; clones share them.
#[derive(Debug, Clone)]
pub struct AheadCounters {
    fetched: IntCounterVec,
    used: IntCounter,
}

/// The plan of one mount and what it needs to be carried out.
#[derive(Debug)]
pub struct LookAhead {
    state: Mutex<State>,
    wake: Notify,
    started: Instant,
    under_way: Arc<Semaphore>,
    counters: AheadCounters,
}

#[derive(Debug)]
struct State {
    planner: Planner,
    /// Small files that were fetched ahead and not read since.
    unread: Bits,
}

/// A reader that waits; it has waited enough when this is dropped.
#[derive(Debug)]
pub struct Stall<'a>(&'a LookAhead);

/// Chunks that are missing, all of one block of one file.
type Batch = Vec<Run>;

impl AheadCounters {
    /// Registers the counters.
    ///
    /// # Errors
    /// When one of the names is taken.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let fetched = Opts::new(
            "csi_driver_look_ahead_bytes_total",
            "Bytes fetched before anybody asked: of packs that were touched, of files next in listing order, or idly.",
        );
        let fetched = IntCounterVec::new(fetched, &["reason"])?;
        let used = IntCounter::new(
            "csi_driver_look_ahead_used_bytes_total",
            "Bytes of small files fetched before anybody asked and read since; the rest was in vain, so far.",
        )?;
        registry.register(Box::new(fetched.clone()))?;
        registry.register(Box::new(used.clone()))?;
        for reason in [Why::Touched, Why::Next, Why::Idle] {
            fetched.with_label_values(&[reason.name()]);
        }
        Ok(Self { fetched, used })
    }
}

impl Why {
    fn name(self) -> &'static str {
        match self {
            Self::Touched => "touched",
            Self::Next => "next",
            Self::Idle => "idle",
        }
    }
}

impl LookAhead {
    /// Looks ahead in a version that fits the node store, or not.
    pub fn new(index: IndexView<'_>, fits: bool, counters: AheadCounters) -> Self {
        let state = State { planner: Planner::new(index, fits), unread: Bits::new(index.totals().files) };
        Self {
            state: Mutex::new(state),
            wake: Notify::new(),
            started: Instant::now(),
            under_way: Arc::new(Semaphore::new(UNDER_WAY_CHUNKS)),
            counters,
        }
    }

    /// Sees a read of a file of this size.
    pub fn saw(&self, index: IndexView<'_>, size: u64, seen: Seen) {
        let state = &mut *self.state.lock();
        if seen.is_start && state.unread.remove(seen.file.0) {
            self.counters.used.inc_by(size);
        }
        state.planner.read(index, seen);
        if size >= LARGE_OBJECT_BYTES {
            // Read-ahead hides the stalls of its reader, but it uses what idle fetches would take from it.
            state.planner.disturb(self.started.elapsed());
        }
        if state.planner.has_work() {
            self.wake.notify_one();
        }
    }

    /// Says that a reader waits from now on.
    pub fn stall(&self) -> Stall<'_> {
        self.state.lock().planner.stall_begins(self.started.elapsed());
        Stall(self)
    }

    fn take(&self, index: IndexView<'_>) -> Option<(What, Why)> {
        self.state.lock().planner.take(index, self.started.elapsed())
    }

    fn is_idle(&self) -> bool {
        self.state.lock().planner.is_idle(self.started.elapsed())
    }
}

impl Drop for Stall<'_> {
    fn drop(&mut self) {
        let Self(look_ahead) = self;
        look_ahead.state.lock().planner.stall_ends(look_ahead.started.elapsed());
    }
}

/// Fetches ahead until told to stop.
pub async fn run(reader: Arc<Reader>, token: CancellationToken) {
    let Some(look_ahead) = &reader.look_ahead else { return };
    while !token.is_cancelled() {
        if let Some((what, why)) = look_ahead.take(reader.index.view()) {
            tokio::select! {
                () = carry_out(&reader, look_ahead, what, why) => {}
                () = token.cancelled() => {}
            }
            continue;
        }
        // There is nothing to wake for when it has merely been quiet for long enough.
        let is_waiting = look_ahead.state.lock().planner.waits_for_quiet(reader.index.view());
        tokio::select! {
            () = look_ahead.wake.notified() => {}
            () = tokio::time::sleep(QUIET), if is_waiting => {}
            () = token.cancelled() => {}
        }
    }
}

/// Fetches in batches; gives back what a stall interrupts.
async fn carry_out(reader: &Arc<Reader>, look_ahead: &LookAhead, what: What, why: Why) {
    for batch in batches(missing(reader, what)) {
        let count = batch.iter().map(|run| run.chunks.len()).sum::<usize>().min(UNDER_WAY_CHUNKS);
        let Ok(permit) = look_ahead.under_way.clone().acquire_many_owned(count as u32).await else { return };
        if why == Why::Idle && !look_ahead.is_idle() {
            look_ahead.state.lock().planner.give_back(what);
            return;
        }
        reader.spawn(fetch_batch(reader.clone(), batch, why, permit));
    }
}

/// The chunks that are not there, in the order in which they are wanted.
fn missing(reader: &Reader, what: What) -> Vec<Run> {
    let index = reader.index.view();
    match what {
        What::Pack(pack, first) => {
            let members: Vec<FileIndex> = index.pack_members(pack).collect();
            let start = members.iter().position(|file| *file == first).unwrap_or(0);
            let rotated = members.iter().skip(start).chain(members.iter().take(start));
            let presence = index.pack(pack).zip(reader.store.as_ref());
            let presence = presence.map(|(pack, store)| store.present(&pack.file, 0..pack.file.slots));
            rotated.flat_map(|file| runs(index, *file, 0..u64::MAX, presence.as_ref())).collect()
        }
        What::Part(file, from, to) => {
            let presence = index
                .span(file)
                .and_then(|span| reader.presence(&span, &chunks_of_range(span.size, from, to - from)));
            runs(index, file, from..to, presence.as_ref())
        }
    }
}

/// The missing chunks of a part of a file; none of an object that has to be restored first.
fn runs(index: IndexView<'_>, file: FileIndex, part: Range<u64>, presence: Option<&Presence>) -> Vec<Run> {
    let (Some(span), Some(about)) = (index.span(file), index.file(file)) else { return Vec::new() };
    if about.archived {
        return Vec::new();
    }
    let is_missing = |chunk: &u32| presence.is_none_or(|there| !there.contains(span.first_slot + chunk));
    let mut missing: Vec<Range<u32>> = Vec::new();
    for chunk in chunks_of_range(span.size, part.start, part.end - part.start).filter(is_missing) {
        match missing.last_mut() {
            Some(run) if run.end == chunk && run.len() < BATCH_CHUNKS => run.end += 1,
            _ => missing.push(chunk..chunk + 1),
        }
    }
    missing.into_iter().flat_map(|chunks| split_by_block(file, span, chunks)).collect()
}

fn batches(runs: Vec<Run>) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    let mut chunks = BATCH_CHUNKS;
    for run in runs {
        chunks += run.chunks.len();
        if chunks > BATCH_CHUNKS {
            chunks = run.chunks.len();
            batches.push(Vec::new());
        }
        if let Some(batch) = batches.last_mut() {
            batch.push(run);
        }
    }
    batches
}

/// Fetches what of a batch nobody has or fetches, with one request for each worker concerned, and stores it.
async fn fetch_batch(reader: Arc<Reader>, batch: Batch, why: Why, permit: OwnedSemaphorePermit) {
    let claim = |run: Run| {
        let claimed = reader.claim_absent(run.file, &run.span, run.chunks.clone());
        claimed.into_iter().map(move |chunks| Run { chunks, ..run.clone() }).collect::<Vec<_>>()
    };
    let runs: Vec<Run> = batch.into_iter().flat_map(claim).collect();
    let mut unfetched: Vec<Unfetched<'_>> = runs.iter().map(|run| Unfetched::new(&reader, run)).collect();
    let want = |run: &Run| {
        let placement = reader.placement_key(run)?;
        Some(Want { file: run.file.0, span: run.span, placement, chunks: run.chunks.clone() })
    };
    let Some(wants) = runs.iter().map(want).collect::<Option<Vec<Want>>>() else { return };
    if wants.is_empty() {
        return;
    }
    let deadline = Instant::now() + reader.deadline;
    let mut stream = reader.client.read_batch(reader.version, wants, deadline, Priority::Prefetch);
    let mut arrived: Vec<Vec<Chunk>> = vec![Vec::new(); runs.len()];
    while let Some((number, answer)) = stream.next().await {
        let (Some(run), Some(unfetched), Some(arrived)) =
            (runs.get(number), unfetched.get_mut(number), arrived.get_mut(number))
        else {
            continue;
        };
        match answer {
            Ok(chunk) => {
                reader.table.publish(run.file.0, chunk.index, chunk.bytes.clone());
                reader.counters.fetched_bytes.inc_by(chunk.bytes.len() as u64);
                if let Some(look_ahead) = &reader.look_ahead {
                    look_ahead
                        .counters
                        .fetched
                        .with_label_values(&[why.name()])
                        .inc_by(chunk.bytes.len() as u64);
                }
                unfetched.arrived();
                arrived.push(chunk);
            }
            Err(error) => {
                reader.report(run, &error);
                unfetched.fail(error);
            }
        }
    }
    drop(unfetched);
    keep(&reader, runs, arrived).await;
    drop(permit);
}

/// Writes what has arrived to the node store and lets go of it.
async fn keep(reader: &Arc<Reader>, runs: Vec<Run>, arrived: Vec<Vec<Chunk>>) {
    let Some(store) = reader.store.clone() else { return };
    let pieces: Vec<(Run, Piece)> = runs
        .into_iter()
        .zip(arrived)
        .flat_map(|(run, chunks)| split(chunks).map(move |p| (run.clone(), p)))
        .collect();
    let ranges: Vec<(Run, Range<u32>)> = pieces
        .iter()
        .map(|(run, piece)| (run.clone(), piece.first..piece.first + piece.crcs.len() as u32))
        .collect();
    let this = Arc::clone(reader);
    let write = move || -> Vec<Written> {
        let write = |(run, piece): (Run, Piece)| {
            let Piece { first, bytes, crcs } = piece;
            let written = store.write_run(&run.span, first, &bytes, &crcs, Class::Owned);
            if written == Written::Kept {
                this.stored(&run.span);
            }
            written
        };
        pieces.into_iter().map(write).collect()
    };
    let _settled = Settled(reader);
    // A panicked write was logged, and kept nothing.
    let kept = tokio::task::spawn_blocking(write).await.unwrap_or_default();
    let Some(look_ahead) = &reader.look_ahead else { return };
    for (at, (run, range)) in ranges.into_iter().enumerate() {
        let is_whole = range == run.span.chunks();
        match kept.get(at) {
            Some(Written::Kept) => {
                reader.table.release(run.file.0, range);
                if is_whole && run.span.size < LARGE_OBJECT_BYTES {
                    look_ahead.state.lock().unread.insert(run.file.0);
                }
            }
            // Another process held the pack for a moment.
            Some(Written::NotKept(NotKept::Busy)) | None => reader.table.keep(run.file.0, range),
            Some(Written::NotKept(_)) => {
                reader.table.keep(run.file.0, range);
                look_ahead.state.lock().planner.stop_filling();
            }
        }
    }
}

/// Consecutive chunks.
struct Piece {
    first: u32,
    bytes: Vec<Bytes>,
    crcs: Vec<u32>,
}

/// Sorts chunks, and cuts them where one is missing.
fn split(mut chunks: Vec<Chunk>) -> impl Iterator<Item = Piece> {
    chunks.sort_unstable_by_key(|chunk| chunk.index);
    let mut pieces: Vec<Piece> = Vec::new();
    for Chunk { index, bytes, crc } in chunks {
        match pieces.last_mut() {
            Some(piece) if piece.first + piece.crcs.len() as u32 == index => {
                piece.bytes.push(bytes);
                piece.crcs.push(crc);
            }
            _ => pieces.push(Piece { first: index, bytes: vec![bytes], crcs: vec![crc] }),
        }
    }
    pieces.into_iter()
}

const _: () = assert!(BATCH_CHUNKS <= UNDER_WAY_CHUNKS && CHUNK_BYTES == 64 << 10);
