//! Which chunks are in memory or on their way, and who waits for them?
//!
//! Single flight for the mount process: the first reader that needs an absent chunk *claims* it and must fetch it;
//! others wait for the same fetch. A chunk that has arrived stays in memory until it is in the node store, or, where it
//! cannot be stored, until newer chunks need the room.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use millrace_transport::client::ReadError;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Identifies a chunk of the mounted version: the file's number in the index, and the chunk of the file.
type ChunkKey = (u32, u32);

/// The chunks of one mount that are in memory or being fetched.
#[derive(Debug)]
pub struct ChunkTable {
    state: Mutex<State>,
    /// Most bytes of arrived chunks to keep that could not be stored.
    keep_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    chunks: HashMap<ChunkKey, Slot>,
    /// Kept chunks, oldest first; may name chunks that are gone.
    kept: VecDeque<ChunkKey>,
    kept_bytes: usize,
}

#[derive(Debug)]
enum Slot {
    Pending(Vec<Arc<Wait>>),
    Arrived { bytes: Bytes, is_kept: bool },
}

/// What a reader gets when it asks for a range of chunks.
#[derive(Debug)]
pub struct Claim {
    /// The reader's own wait; done at once if nothing had to be waited for.
    pub wait: Arc<Wait>,
    /// Runs of chunks that nobody fetches yet: the caller must fetch each and publish or fail it.
    pub to_fetch: Vec<Range<u32>>,
    /// Whether another reader's fetch is waited for as well.
    pub has_joined: bool,
}

/// One reader's wait for a range of chunks; collects them as they arrive.
#[derive(Debug)]
pub struct Wait {
    first: u32,
    progress: Mutex<Progress>,
    arrived: Notify,
}

#[derive(Debug)]
struct Progress {
    chunks: Vec<Option<Bytes>>,
    missing: usize,
    error: Option<ReadError>,
}

impl ChunkTable {
    /// Makes an empty table that keeps at most `keep_bytes` of chunks that could not be stored.
    pub fn new(keep_bytes: usize) -> Self {
        Self { state: Mutex::default(), keep_bytes }
    }

    /// Asks for the chunks of `range` that are not stored, for a reader that will wait for them.
    pub fn claim(&self, file: u32, range: Range<u32>, is_stored: impl Fn(u32) -> bool) -> Claim {
        let mut wait = Progress { chunks: vec![None; range.len()], missing: 0, error: None };
        let mut to_fetch: Vec<Range<u32>> = Vec::new();
        let (mut pending, mut has_joined) = (Vec::new(), false);
        let mut state = self.state.lock();
        for (i, chunk) in range.clone().enumerate() {
            match state.chunks.get(&(file, chunk)) {
                Some(Slot::Arrived { bytes, .. }) => wait.chunks[i] = Some(bytes.clone()),
                Some(Slot::Pending(_)) => {
                    has_joined = true;
                    pending.push(chunk);
                }
                None if is_stored(chunk) => {}
                None => {
                    pending.push(chunk);
                    extend_runs(&mut to_fetch, chunk);
                    state.chunks.insert((file, chunk), Slot::Pending(Vec::new()));
                }
            }
        }
        wait.missing = pending.len();
        let wait = Arc::new(Wait { first: range.start, progress: Mutex::new(wait), arrived: Notify::new() });
        for chunk in pending {
            if let Some(Slot::Pending(waits)) = state.chunks.get_mut(&(file, chunk)) {
                waits.push(wait.clone());
            }
        }
        Claim { wait, to_fetch, has_joined }
    }

    /// Claims the absent chunks of `range` for a fetch that nobody waits for, at most `limit` of them.
    pub fn claim_ahead(
        &self,
        file: u32,
        range: Range<u32>,
        limit: usize,
        is_stored: impl Fn(u32) -> bool,
    ) -> Vec<Range<u32>> {
        let mut runs = Vec::new();
        let mut state = self.state.lock();
        let absent = range.filter(|&chunk| !state.chunks.contains_key(&(file, chunk)) && !is_stored(chunk));
        for chunk in absent.take(limit).collect::<Vec<_>>() {
            extend_runs(&mut runs, chunk);
            state.chunks.insert((file, chunk), Slot::Pending(Vec::new()));
        }
        runs
    }

    /// Hands a chunk that has arrived to all who wait for it, and keeps it until [`release`](Self::release) or
    /// [`keep`](Self::keep).
    pub fn publish(&self, file: u32, chunk: u32, bytes: Bytes) {
        let arrived = Slot::Arrived { bytes: bytes.clone(), is_kept: false };
        let before = self.state.lock().chunks.insert((file, chunk), arrived);
        if let Some(Slot::Pending(waits)) = before {
            waits.iter().for_each(|wait| wait.put(chunk, bytes.clone()));
        }
    }

    /// Ends the wait for claimed chunks that could not be fetched; chunks that have arrived are left alone.
    pub fn fail(&self, file: u32, range: Range<u32>, error: &ReadError) {
        let mut state = self.state.lock();
        for chunk in range {
            if let Some(Slot::Pending(_)) = state.chunks.get(&(file, chunk))
                && let Some(Slot::Pending(waits)) = state.chunks.remove(&(file, chunk))
            {
                waits.iter().for_each(|wait| wait.fail(error));
            }
        }
    }

    /// Whether some of these chunks are on their way into the node store.
    pub fn is_busy(&self, file: u32, mut range: Range<u32>) -> bool {
        let state = self.state.lock();
        range.any(|chunk| match state.chunks.get(&(file, chunk)) {
            Some(Slot::Pending(_) | Slot::Arrived { is_kept: false, .. }) => true,
            Some(Slot::Arrived { is_kept: true, .. }) | None => false,
        })
    }

    /// Forgets arrived chunks that are in the node store now.
    pub fn release(&self, file: u32, range: Range<u32>) {
        let mut state = self.state.lock();
        for chunk in range {
            if let Some(Slot::Arrived { is_kept: false, .. }) = state.chunks.get(&(file, chunk)) {
                state.chunks.remove(&(file, chunk));
            }
        }
    }

    /// Keeps arrived chunks that could not be stored, and forgets the oldest kept ones over the bound.
    pub fn keep(&self, file: u32, range: Range<u32>) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        for chunk in range {
            if let Some(Slot::Arrived { bytes, is_kept }) = state.chunks.get_mut(&(file, chunk))
                && !*is_kept
            {
                *is_kept = true;
                state.kept_bytes += bytes.len();
                state.kept.push_back((file, chunk));
            }
        }
        while state.kept_bytes > self.keep_bytes
            && let Some(key) = state.kept.pop_front()
        {
            if let Some(Slot::Arrived { bytes, is_kept: true }) = state.chunks.get(&key) {
                state.kept_bytes -= bytes.len();
                state.chunks.remove(&key);
            }
        }
    }
}

impl Wait {
    /// Waits until every pending chunk has arrived or one has failed.
    ///
    /// # Errors
    /// The error of the first chunk that could not be fetched.
    ///
    /// # Cancel safety
    /// Safe: nothing is lost, what arrives later is kept.
    pub async fn done(&self) -> Result<(), ReadError> {
        loop {
            let arrived = self.arrived.notified();
            {
                let progress = self.progress.lock();
                if let Some(error) = &progress.error {
                    return Err(error.clone());
                }
                if progress.missing == 0 {
                    return Ok(());
                }
            }
            arrived.await;
        }
    }

    /// The chunks in order; `None` for those that were in the store when the wait began.
    pub fn take(&self) -> Vec<Option<Bytes>> {
        std::mem::take(&mut self.progress.lock().chunks)
    }

    fn put(&self, chunk: u32, bytes: Bytes) {
        let mut progress = self.progress.lock();
        if let Some(slot) = progress.chunks.get_mut((chunk - self.first) as usize)
            && slot.is_none()
        {
            *slot = Some(bytes);
            progress.missing -= 1;
        }
        if progress.missing == 0 {
            self.arrived.notify_waiters();
        }
    }

    fn fail(&self, error: &ReadError) {
        self.progress.lock().error.get_or_insert_with(|| error.clone());
        self.arrived.notify_waiters();
    }
}

/// Adds a chunk, larger than all before, to a list of runs.
fn extend_runs(runs: &mut Vec<Range<u32>>, chunk: u32) {
    match runs.last_mut() {
        Some(run) if run.end == chunk => run.end += 1,
        _ => runs.push(chunk..chunk + 1),
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "one range of chunks is meant")]
mod tests {
    use super::*;
    use millrace_api::ids::VersionId;

    fn bytes(chunk: u32) -> Bytes {
        Bytes::from(vec![chunk as u8; 10])
    }

    fn error() -> ReadError {
        ReadError::DeadlinePassed { version: VersionId([0; 16]), file: 1, trouble: "test".to_owned() }
    }

    fn is_done(wait: &Wait) -> bool {
        use std::future::Future;
        use std::task::{Context, Poll, Waker};
        let done = std::pin::pin!(wait.done());
        matches!(done.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
    }

    #[test]
    fn a_chunk_is_fetched_once_for_all_who_wait() {
        let table = ChunkTable::new(0);
        let first = table.claim(1, 0..4, |_| false);
        assert_eq!(first.to_fetch, [0..4]);
        let second = table.claim(1, 2..6, |chunk| chunk == 5);
        assert_eq!(second.to_fetch, [4..5], "2 and 3 are on their way, 5 is stored");
        assert!(second.has_joined && !first.has_joined);
        (0..4).for_each(|chunk| table.publish(1, chunk, bytes(chunk)));
        assert!(is_done(&first.wait) && !is_done(&second.wait));
        table.publish(1, 4, bytes(4));
        assert!(is_done(&second.wait));
        assert_eq!(second.wait.take(), [Some(bytes(2)), Some(bytes(3)), Some(bytes(4)), None]);
    }

    #[test]
    fn a_failure_reaches_everybody_and_the_next_reader_tries_again() {
        let table = ChunkTable::new(0);
        let first = table.claim(1, 0..2, |_| false);
        let second = table.claim(1, 1..2, |_| false);
        table.publish(1, 0, bytes(0));
        table.fail(1, 0..2, &error());
        for claim in [&first, &second] {
            assert!(is_done(&claim.wait));
            assert!(claim.wait.progress.lock().error.is_some());
        }
        assert_eq!(table.claim(1, 0..2, |_| false).to_fetch, [1..2], "what has arrived stays");
    }

    #[test]
    fn stored_chunks_leave_memory_and_unstored_ones_stay_up_to_the_bound() {
        let table = ChunkTable::new(25);
        table.claim(1, 0..5, |_| false);
        (0..5).for_each(|chunk| table.publish(1, chunk, bytes(chunk)));
        table.release(1, 0..1);
        (1..5).for_each(|chunk| table.keep(1, chunk..chunk + 1));
        let claim = table.claim(1, 0..5, |_| false);
        assert_eq!(claim.to_fetch, [0..3], "the two newest of 10 bytes each fit in 25");
    }

    #[test]
    fn looking_ahead_claims_absent_chunks_up_to_its_limit() {
        let table = ChunkTable::new(0);
        table.claim(1, 1..2, |_| false);
        assert_eq!(table.claim_ahead(1, 0..10, 3, |chunk| chunk == 2), [0..1, 3..5]);
        assert_eq!(table.claim_ahead(1, 0..10, 3, |chunk| chunk == 2), [5..8]);
    }
}
