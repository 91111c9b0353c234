//! How are chunks brought that no reader waits for: the rest of a block, the neighbours in a pack, a warm-up?

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::block_map::Arrival;
use super::disk_wait::look_into;
use super::error::FetchError;
use super::fetcher::{Fetcher, Landing, Target, Terms};
use super::plan::MAX_REQUEST_CHUNKS;
use super::run_writer::Kept;

/// How often the store is looked at after all chunks have come.
const LOOKS: usize = 20;

/// Between two looks; a write of a run takes a millisecond, on a slow disk a hundred.
const PAUSE: Duration = Duration::from_millis(50);

impl Fetcher {
    /// Sends for what is missing of `chunks` and not on its way, at most 16 MiB a request; returns the landings.
    pub fn fill(
        self: &Arc<Self>,
        target: &Target,
        chunks: Range<u32>,
        terms: Terms,
    ) -> Vec<oneshot::Receiver<Landing>> {
        let slots = target.slots(&chunks);
        let content = target.content();
        let (flight, claimed) = {
            let mut map = self.map.lock();
            let flight = map.flight(slots.start, false);
            let claimed = map.claim(content, slots, &flight, None);
            (flight, claimed)
        };
        let mut landings = Vec::new();
        for run in self.absent_from_store(target, claimed, &flight) {
            let mut start = run.start;
            while start < run.end {
                let part = start..run.end.min(start + MAX_REQUEST_CHUNKS);
                start = part.end;
                let own = {
                    let mut map = self.map.lock();
                    let own = map.flight(part.start, false);
                    map.take_over(content, part.clone(), &own);
                    own
                };
                landings.push(self.launch(target.clone(), part, own, terms));
            }
        }
        landings
    }

    /// Brings `chunks` into the store, whoever fetches them, and waits until they are there.
    ///
    /// # Errors
    /// The first failure of a flight that was to bring one of them.
    pub async fn ensure(
        self: &Arc<Self>,
        target: &Target,
        chunks: Range<u32>,
        terms: Terms,
    ) -> Result<Kept, Arc<FetchError>> {
        for _ in 0..LOOKS {
            if self.bring(target, chunks.clone(), terms).await? == Kept::NotAll {
                return Ok(Kept::NotAll);
            }
            let (file, slots) = (&target.object.span.file, target.slots(&chunks));
            if look_into(&self.store, file, || self.store.present(file, slots)).is_full() {
                return Ok(Kept::All);
            }
            // On another's flight: arrived and not written yet, or begun between two looks of ours.
            tokio::time::sleep(PAUSE).await;
        }
        Ok(Kept::NotAll)
    }

    async fn bring(
        self: &Arc<Self>,
        target: &Target,
        chunks: Range<u32>,
        terms: Terms,
    ) -> Result<Kept, Arc<FetchError>> {
        let slots = target.slots(&chunks);
        let (mailbox, mut mail) = mpsc::channel((slots.end - slots.start).max(1) as usize);
        let joined = self.map.lock().join(target.content(), slots, &mailbox);
        drop(mailbox);
        let mut kept = Kept::All;
        let mut landings = Vec::new();
        for run in joined.absent {
            landings.extend(self.fill(target, target.chunks(&run), terms));
        }
        for landing in landings {
            match landing.await {
                Ok(landed) => {
                    if landed? == Kept::NotAll {
                        kept = Kept::NotAll;
                    }
                }
                // The flight's task is gone: its panic ends the process.
                Err(_) => return Err(Arc::new(FetchError::stopping())),
            }
        }
        while let Some((_, arrival)) = mail.recv().await {
            match arrival {
                Arrival::Chunk(_) | Arrival::Stored => {}
                Arrival::Failed(error) => return Err(error),
            }
        }
        Ok(kept)
    }
}
