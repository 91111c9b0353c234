//! How do the chunks of a flight get into the store while the flight goes on?

use std::sync::Arc;

use bytes::Bytes;
use millrace_store::{Class, Written};
use tokio::task::JoinSet;

use super::block_map::Chunk;
use super::fetcher::{Fetcher, Target};

/// Chunks that one write to the store takes: 1 MiB, where the cost of the call no longer shows.
pub(super) const RUN_CHUNKS: usize = 16;

/// What became of a flight whose chunks all arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The store has all of them.
    All,
    /// The store did not keep some.
    NotAll,
}

/// Gathers consecutive chunks of one flight and writes them in runs, on blocking threads.
pub(super) struct RunWriter {
    fetcher: Arc<Fetcher>,
    target: Target,
    class: Class,
    first_slot: u32,
    run: Vec<Arc<Chunk>>,
    /// Bounded by the fetcher's writers: each write waits for a place before it is spawned.
    writes: JoinSet<Kept>,
}

impl RunWriter {
    /// Nothing gathered yet.
    pub fn new(fetcher: Arc<Fetcher>, target: Target, class: Class) -> Self {
        Self { fetcher, target, class, first_slot: 0, run: Vec::new(), writes: JoinSet::new() }
    }

    /// Takes the next chunk; waits where too many writes are under way.
    pub async fn push(&mut self, slot: u32, chunk: Arc<Chunk>) {
        let file = &self.target.object.span.file;
        let follows = slot == self.first_slot + self.run.len() as u32;
        let continues = follows && file.block_of(slot) == file.block_of(self.first_slot);
        if !continues {
            self.flush().await;
        }
        if self.run.is_empty() {
            self.first_slot = slot;
        }
        self.run.push(chunk);
        // With memory short, waiting for a long run would wait for itself.
        if self.run.len() >= RUN_CHUNKS || self.fetcher.is_short_of_memory() {
            self.flush().await;
        }
    }

    /// Writes what is left and waits for all writes.
    pub async fn finish(mut self) -> Kept {
        self.flush().await;
        let mut kept = Kept::All;
        while let Some(written) = self.writes.join_next().await {
            // A panic in the store has been logged by the hook; its chunks count as not kept.
            if !matches!(written, Ok(Kept::All)) {
                kept = Kept::NotAll;
            }
        }
        kept
    }

    /// Sends what is gathered to be written.
    pub async fn flush(&mut self) {
        let run = std::mem::take(&mut self.run);
        if run.is_empty() {
            return;
        }
        // Never closed; bounds the blocking threads of all flights.
        let permit = self.fetcher.writers().acquire_owned().await;
        let (fetcher, target) = (Arc::clone(&self.fetcher), self.target.clone());
        let (class, first_slot) = (self.class, self.first_slot);
        self.writes.spawn_blocking(move || {
            let kept = write(&fetcher, &target, class, first_slot, &run);
            drop(permit);
            kept
        });
    }
}

fn write(fetcher: &Fetcher, target: &Target, class: Class, first_slot: u32, run: &[Arc<Chunk>]) -> Kept {
    let span = &target.object.span;
    let bytes: Vec<Bytes> = run.iter().filter_map(|chunk| chunk.bytes()).collect();
    assert_eq!(bytes.len(), run.len(), "only the writer makes chunks forget their bytes");
    let crcs: Vec<u32> = run.iter().map(|chunk| chunk.crc).collect();
    let written = fetcher.store.write_run(span, first_slot - span.first_slot, &bytes, &crcs, class);
    let kept = match written {
        Written::Kept => {
            // Those who are slow to take them find them in the store.
            run.iter().for_each(|chunk| chunk.forget());
            Kept::All
        }
        Written::NotKept(_) => {
            fetcher.note_not_kept();
            Kept::NotAll
        }
    };
    fetcher.map.lock().settle(target.content(), first_slot..first_slot + run.len() as u32);
    kept
}
