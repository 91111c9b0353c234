//! How is an object completed in the node store, for somebody who waits for all of it?

use std::sync::Arc;

use tokio::time::Instant;

use super::fetch::{Run, split_by_block};
use super::reader::{Located, Reader, slots};
use millrace_transport::Priority;

impl Reader {
    /// Fetches what is absent, and waits until all of it is in the node store, it is clear that it will not be, or the
    /// deadline has passed. True in the first case.
    ///
    /// # Cancel safety
    /// Safe: what is under way goes on.
    pub async fn finish(self: &Arc<Self>, located: Located, deadline: Instant) -> bool {
        let Some(store) = self.store.clone() else { return false };
        let Located { file, span } = located;
        let all = span.chunks();
        let presence = store.present(&span.file, slots(&span, all.clone()));
        let is_stored = |chunk| presence.contains(span.first_slot + chunk);
        for chunks in self.table.claim_ahead(file.0, all.clone(), all.len(), is_stored) {
            for Run { chunks, .. } in split_by_block(file, span, chunks) {
                self.start(Run { file, span, chunks }, Priority::Foreground, None);
            }
        }
        loop {
            let settled = self.settled.notified();
            let is_busy = self.table.is_busy(file.0, all.clone());
            // In this order: what was busy may have been stored since.
            if store.complete(&span.file) {
                return true;
            }
            if !is_busy || tokio::time::timeout_at(deadline, settled).await.is_err() {
                return false;
            }
        }
    }
}
