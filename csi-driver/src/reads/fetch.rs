//! How do claimed chunks come from the workers, to those who wait and into the node store?

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use millrace_api::block::Span;
use millrace_api::index::FileIndex;
use millrace_api::wire::MAX_READ_CHUNKS;
use millrace_store::{Class, Written};
use millrace_transport::Priority;
use millrace_transport::client::{Chunk, ReadError, Want};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::reader::Reader;

/// How much of a fetch is collected before it is written to the node store, bytes: large writes, little memory.
const STORE_BYTES: usize = 1 << 20;

/// Claimed chunks of one object, all in one block.
#[derive(Debug, Clone)]
pub struct Run {
    /// The file.
    pub file: FileIndex,
    /// Where it lies in its store file.
    pub span: Span,
    /// The chunks of the file.
    pub chunks: Range<u32>,
}

/// Cuts claimed chunks so that each part lies in one block and fits one request.
pub fn split_by_block(file: FileIndex, span: Span, chunks: Range<u32>) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut start = chunks.start;
    while start < chunks.end {
        let block = span.block_of(start).index;
        let end = span.chunks_in_block(block).end.min(start + MAX_READ_CHUNKS).min(chunks.end);
        // A span of another index would give an empty block; never loop on it.
        let end = end.max(start + 1);
        runs.push(Run { file, span, chunks: start..end });
        start = end;
    }
    runs
}

/// Fetches one run, publishing chunks as they come and storing them; `permit` is held until they are out of memory.
pub async fn fetch(
    reader: Arc<Reader>,
    run: Run,
    deadline: Instant,
    priority: Priority,
    permit: Option<OwnedSemaphorePermit>,
) {
    let mut left = Unfetched::new(&reader, &run);
    let Some(placement) = reader.placement_key(&run) else {
        return;
    };
    let want = Want { file: run.file.0, span: run.span, placement, chunks: run.chunks.clone() };
    let mut stream = reader.client.read(reader.version, want, deadline, priority);
    let mut collected = Collected::default();
    while let Some(answer) = stream.next().await {
        match answer {
            Ok(Chunk { index, bytes, crc }) => {
                reader.table.publish(run.file.0, index, bytes.clone());
                reader.counters.fetched_bytes.inc_by(bytes.len() as u64);
                left.arrived();
                if !collected.push(index, bytes, crc) || collected.bytes >= STORE_BYTES {
                    let full = std::mem::take(&mut collected);
                    store(&reader, &run, full.without_last_if_apart(&mut collected)).await;
                }
            }
            Err(error) => {
                reader.report(&run, &error);
                left.fail(error);
            }
        }
    }
    store(&reader, &run, collected).await;
    drop(permit);
}

/// Consecutive chunks on their way into the node store.
#[derive(Debug, Default)]
struct Collected {
    first: u32,
    chunks: Vec<Bytes>,
    crcs: Vec<u32>,
    bytes: usize,
    /// A chunk that does not follow the others.
    apart: Option<(u32, Bytes, u32)>,
}

impl Collected {
    /// Adds a chunk; `false` where it does not follow the others and they must be stored first.
    fn push(&mut self, index: u32, bytes: Bytes, crc: u32) -> bool {
        if self.chunks.is_empty() {
            self.first = index;
        } else if index != self.first + self.chunks.len() as u32 {
            self.apart = Some((index, bytes, crc));
            return false;
        }
        self.bytes += bytes.len();
        self.chunks.push(bytes);
        self.crcs.push(crc);
        true
    }

    /// Moves the chunk that does not follow to `next`.
    fn without_last_if_apart(mut self, next: &mut Collected) -> Self {
        if let Some((index, bytes, crc)) = self.apart.take() {
            next.push(index, bytes, crc);
        }
        self
    }
}

/// Writes chunks to the node store and lets go of them; what cannot be stored is kept in memory for a while.
async fn store(reader: &Arc<Reader>, run: &Run, collected: Collected) {
    let Collected { first, chunks, crcs, bytes: _, apart: _ } = collected;
    if chunks.is_empty() {
        return;
    }
    let range = first..first + chunks.len() as u32;
    let Some(node_store) = reader.store.clone() else {
        return reader.table.keep(run.file.0, range);
    };
    let _settled = Settled(reader);
    let span = run.span;
    let this = Arc::clone(reader);
    let write = move || {
        let written = node_store.write_run(&span, first, &chunks, &crcs, Class::Owned);
        if written == Written::Kept {
            this.stored(&span);
        }
        written
    };
    match tokio::task::spawn_blocking(write).await {
        Ok(Written::Kept) => reader.table.release(run.file.0, range),
        // Counted by the store. A panicked write is a miss too; the panic itself was logged.
        Ok(Written::NotKept(_)) | Err(_) => reader.table.keep(run.file.0, range),
    }
}

/// Tells those who wait for an object as a whole that some of it was stored, or will not be.
pub(super) struct Settled<'a>(pub &'a Reader);

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        self.0.settled.notify_waiters();
    }
}

/// Ends the wait for whatever did not come, also when the fetch is cancelled.
pub(super) struct Unfetched<'a> {
    reader: &'a Reader,
    run: &'a Run,
    missing: usize,
    error: Option<ReadError>,
}

impl<'a> Unfetched<'a> {
    /// All of a claimed run is still to come.
    pub fn new(reader: &'a Reader, run: &'a Run) -> Self {
        Self { reader, run, missing: run.chunks.len(), error: None }
    }

    /// One chunk has come.
    pub fn arrived(&mut self) {
        self.missing = self.missing.saturating_sub(1);
    }

    /// The rest will not come.
    pub fn fail(&mut self, error: ReadError) {
        self.error = Some(error);
    }
}

impl Drop for Unfetched<'_> {
    fn drop(&mut self) {
        if self.missing == 0 {
            return;
        }
        let error = self.error.take().unwrap_or_else(|| ReadError::DeadlinePassed {
            version: self.reader.version,
            file: self.run.file.0,
            trouble: "the fetch was given up".to_owned(),
        });
        self.reader.table.fail(self.run.file.0, self.run.chunks.clone(), &error);
        self.reader.settled.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_api::block::BlockSize;
    use millrace_api::ids::ContentId;

    #[test]
    fn claimed_chunks_are_cut_at_blocks() {
        let span = Span::of_large(ContentId([1; 16]), 5 << 20, BlockSize::new(1 << 20).unwrap());
        let runs = split_by_block(FileIndex(3), span, 10..40);
        let ranges: Vec<_> = runs.into_iter().map(|run| run.chunks).collect();
        assert_eq!(ranges, [10..16, 16..32, 32..40]);
    }

    #[test]
    fn chunks_out_of_order_are_stored_apart() {
        let mut collected = Collected::default();
        assert!(collected.push(4, Bytes::from_static(b"a"), 1));
        assert!(collected.push(5, Bytes::from_static(b"b"), 2));
        assert!(!collected.push(9, Bytes::from_static(b"c"), 3));
        let mut next = Collected::default();
        let full = collected.without_last_if_apart(&mut next);
        assert_eq!((full.first, full.chunks.len()), (4, 2));
        assert_eq!((next.first, next.chunks.len(), next.bytes), (9, 1, 1));
    }
}
