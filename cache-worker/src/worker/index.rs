//! How does this worker come by sound indexes of the versions in use?

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use millrace_api::ids::VersionId;
use millrace_daemon::causes::with_causes;
use millrace_transport::client::{Client, ClientConfig, Timing};
use tokio::time::Instant;

use super::Worker;
use crate::versions::Version;

/// How long one try to get an index from the peers takes; there is always another.
const INDEX_DEADLINE: Duration = Duration::from_secs(60);

/// Between two tries.
const INDEX_PAUSE: Duration = Duration::from_secs(1);

impl Worker {
    /// Serves a version from the index folder; false where it is not there, or not sound.
    pub(super) fn open_index(self: &Arc<Self>, id: VersionId) -> bool {
        let is_after_death = self.mark.is_after_death();
        match crate::indexes::open(&self.index_dir, id, is_after_death) {
            Ok(Some(index)) => {
                let is_proven = is_after_death || index.is_quick_to_verify();
                self.serve(Version::new(id, index));
                if !is_proven {
                    self.verify_behind(id);
                }
                true
            }
            Ok(None) => false,
            Err(error) => {
                tracing::warn!(version = %id, error = %error, "index is fetched again");
                crate::indexes::remove(&self.index_dir, id);
                false
            }
        }
    }

    /// Reads an index that is served already: what has rotted on the disk must not be served for longer than that takes.
    fn verify_behind(self: &Arc<Self>, id: VersionId) {
        let (versions, version) = (Arc::clone(&self.versions), self.versions.get(&id));
        self.tasks.spawn("verify-index", async move {
            let Some(version) = version else { return };
            // What is lost is known to those who wait for that; cut off where the worker stops.
            let _ = tokio::task::spawn_blocking(move || versions.verify(&version)).await;
        });
    }

    /// Gets again what was lost while it was served.
    pub(super) fn fetch_lost_indexes(self: &Arc<Self>) {
        let (worker, stop) = (Arc::clone(self), self.tasks.token());
        self.tasks.spawn("lost-indexes", async move {
            loop {
                tokio::select! {
                    () = worker.versions.lost() => {}
                    () = stop.cancelled() => return,
                }
                for id in worker.in_use() {
                    worker.fetch_index(id);
                }
            }
        });
    }

    /// Gets the index of a version in use from a peer, however long that takes.
    pub(super) fn fetch_index(self: &Arc<Self>, id: VersionId) {
        if self.versions.get(&id).is_some() || self.fetching.lock().insert(id, String::new()).is_some() {
            return;
        }
        let worker = Arc::clone(self);
        let stop = self.tasks.token();
        self.tasks.spawn("fetch-index", async move {
            tokio::select! {
                () = worker.fetch_index_until_there(id) => {}
                () = stop.cancelled() => {}
            }
        });
    }

    async fn fetch_index_until_there(self: &Arc<Self>, id: VersionId) {
        while self.in_use().contains(&id) && self.versions.get(&id).is_none() {
            if let Err(trouble) = self.try_fetch_index(id).await {
                let before = self.fetching.lock().insert(id, trouble.clone());
                let is_news = before.is_none_or(|before| before != trouble);
                if is_news {
                    tracing::info!(version = %id, trouble, "index not fetched yet");
                }
                tokio::time::sleep(INDEX_PAUSE).await;
            }
        }
        self.fetching.lock().remove(&id);
    }

    async fn try_fetch_index(self: &Arc<Self>, id: VersionId) -> Result<(), String> {
        let mut changes = self.members.watch();
        let membership = self.members.others();
        if membership.workers.is_empty() {
            return Err("no other worker is known".to_owned());
        }
        let name = self.members.name().to_owned();
        let client = Client::new(ClientConfig {
            key: self.data_key.clone(),
            name,
            membership,
            connections_per_worker: 1,
            timing: Timing::default(),
        });
        let folder =
            tempfile::tempdir_in(&self.index_dir).map_err(|error| format!("make a folder: {error}"))?;
        let path = folder.path().join("index");
        let mut fetching = pin!(client.fetch_index(id, &path, Instant::now() + INDEX_DEADLINE));
        let fetched = loop {
            tokio::select! {
                fetched = &mut fetching => break fetched,
                // After a start the peers have other addresses than those that were remembered.
                Ok(()) = changes.changed() => client.set_membership(self.members.others()),
            }
        };
        fetched.map_err(|error| with_causes(&error))?;
        let index =
            crate::indexes::install(&self.index_dir, &path, id).await.map_err(|error| with_causes(&error))?;
        self.serve(Version::new(id, index));
        Ok(())
    }
}
