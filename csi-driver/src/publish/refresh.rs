//! How does a change of a Dataset reach the mount processes that run?
//!
//! The driver asks the workers of each mounted Dataset now and then. What a node keeps follows at once. Owners, permissions and
//! mode do not: the kernel has cached them, and programs that run have seen them; they are for pods that start later.

use std::sync::Arc;
use std::time::Duration;

use millrace_daemon::causes::with_causes;
use tokio::time::Instant;

use super::error::PublishError;
use super::request::Dataset;
use super::{Publisher, settings};
use crate::node_mounts::slot::{MountState, Slot};

/// How long they have. The next round comes soon enough.
const DEADLINE: Duration = Duration::from_secs(10);

impl Publisher {
    /// Asks for all mounted Datasets, again and again; ends with the driver.
    pub async fn refresh_for_ever(self) {
        let token = self.inner.config.tasks.token();
        loop {
            // Spread, so that the nodes of a cluster do not ask all at once.
            let wait = self.inner.config.refresh.mul_f64(rand::random_range(0.8..1.2));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = token.cancelled() => return,
            }
            for slot in self.inner.mounts.one_of_each() {
                tokio::select! {
                    () = self.refresh(&slot) => {}
                    () = token.cancelled() => return,
                }
            }
        }
    }

    /// Asks for one. Where nobody answers everything stays as it is: its readers notice by themselves.
    async fn refresh(&self, slot: &Arc<Slot>) {
        if !matches!(*slot.state.borrow(), MountState::Ready(_)) {
            return;
        }
        let plan = &slot.plan;
        match self.wanted_bytes(slot).await {
            Ok(wanted_bytes) => self.inner.mounts.set_cache_quota(&plan.key.uid, wanted_bytes).await,
            Err(trouble) => tracing::debug!(dataset = plan.dataset, trouble, "settings not asked anew"),
        }
    }

    async fn wanted_bytes(&self, slot: &Arc<Slot>) -> Result<u64, String> {
        let (own, file) = (Arc::clone(slot), self.inner.config.folders.key_file(&slot.plan.key));
        let key = tokio::task::spawn_blocking(move || own.key(&file)).await;
        let key = key.map_err(|error| error.to_string())?.map_err(|error| with_causes(&error))?;
        let (namespace, name) = slot.plan.dataset.split_once('/').unwrap_or(("", &slot.plan.dataset));
        let dataset = Dataset {
            uid: slot.plan.key.uid.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            workers: slot.plan.workers.clone(),
        };
        let settings =
            settings::ask(&dataset, &key, &self.inner.config.node, Instant::now() + DEADLINE).await;
        settings
            .map(|settings| settings.node_cache_quota_bytes)
            .map_err(|error: PublishError| with_causes(&error))
    }
}
