//! How is an object completed in the node store, for somebody who waits for all of it?

use std::sync::Arc;

use millrace_transport::Priority;
use tokio::time::Instant;

use super::fetch::split_by_block;
use super::reader::{Located, Reader};

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
        for chunks in self.claim_absent(file, &span, all.clone()) {
            for run in split_by_block(file, span, chunks) {
                self.start(run, Priority::Foreground, None);
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
