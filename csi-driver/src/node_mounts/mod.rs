//! Which mount processes run on this node? One for each dataset version in use, shared by its pods.
//!
//! A process is started with the first call that needs it, started again when it dies, and stopped some time after the
//! last pod is gone. It lives as a child of the driver and ends with it; what stays then is a dead mount, which the next
//! driver takes away ([`crate::recover`]). Where somebody else holds the descriptor of a mount, this is where a successor
//! would ask for it: before `Launch::start` in `supervise`.

pub mod plan;
pub mod process;
pub mod slot;
mod supervise;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use millrace_api::ids::VersionId;
use millrace_api::keys::Key;
use millrace_daemon::shutdown::Tasks;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::driver_metrics::DriverMetrics;
use crate::mount_metrics::MountMetrics;
use crate::node_cache::NodeCache;
use plan::{MountKey, MountPlan};
use process::{Launch, PODS_FILE};
use slot::{Lease, MountState, Slot};

/// What the mount processes of a node need.
#[derive(Debug)]
pub struct NodeMountsConfig {
    /// How they are started.
    pub launch: Launch,
    /// How long one is kept after its last pod: the next epoch's pod finds it warm.
    pub idle: Duration,
    /// What the node keeps.
    pub cache: NodeCache,
    /// What is counted.
    pub metrics: DriverMetrics,
    /// What they count themselves.
    pub mount_metrics: MountMetrics,
    /// The tasks of the process.
    pub tasks: Tasks,
}

/// The mount processes of this node. Clones share them.
#[derive(Debug, Clone)]
pub struct NodeMounts {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: NodeMountsConfig,
    /// Bounded by the targets that kubelet publishes.
    slots: Mutex<HashMap<MountKey, Arc<Slot>>>,
    /// Ticks when a mount process serves anew.
    served: Notify,
}

impl NodeMounts {
    /// No mount processes yet.
    pub fn new(config: NodeMountsConfig) -> Self {
        Self { inner: Arc::new(Inner { config, slots: Mutex::default(), served: Notify::new() }) }
    }

    /// Keeps the mount process for `plan` from being stopped; starts it where it does not run. The first plan counts: later
    /// ones of the same key share its process. Without a data key, the one is used that a former driver has left.
    pub async fn lease(&self, plan: &MountPlan, data_key: Option<&Key>) -> Lease {
        loop {
            let stopping = {
                let mut slots = self.inner.slots.lock();
                match slots.get(&plan.key) {
                    Some(slot) if !is_stopping(&slot.state.borrow()) => {
                        slot.set_key(data_key);
                        return slot.lease();
                    }
                    Some(slot) => Arc::clone(slot),
                    None => {
                        let slot = self.create(plan, data_key);
                        slots.insert(plan.key.clone(), Arc::clone(&slot));
                        return slot.lease();
                    }
                }
            };
            // Its mount point is needed; it ends within its deadlines.
            let mut states = stopping.state.subscribe();
            let _ = states.wait_for(|state| *state == MountState::Gone).await;
        }
    }

    /// The mount process of a key, if there is one.
    pub fn get(&self, key: &MountKey) -> Option<Arc<Slot>> {
        self.inner.slots.lock().get(key).cloned()
    }

    /// Waits until a mount process serves anew. Cancel safe.
    pub async fn served(&self) {
        self.inner.served.notified().await;
    }

    /// Datasets that have a mount process here.
    pub fn datasets(&self) -> Vec<String> {
        self.inner.slots.lock().keys().map(|key| key.uid.clone()).collect()
    }

    /// One mount process of each Dataset that has any here.
    pub fn one_of_each(&self) -> Vec<Arc<Slot>> {
        let slots = self.inner.slots.lock();
        let by_dataset: BTreeMap<&str, &Arc<Slot>> =
            slots.iter().map(|(key, slot)| (key.uid.as_str(), slot)).collect();
        by_dataset.into_values().cloned().collect()
    }

    /// Has the mount processes of a Dataset keep what its owner wants by now, as far as the node has room.
    pub async fn set_cache_quota(&self, uid: &str, wanted_bytes: u64) {
        let (cache, uid) = (self.inner.config.cache.clone(), uid.to_owned());
        // What panicked has told so; the quota stays as it was.
        let _ = tokio::task::spawn_blocking(move || cache.share_anew(&uid, wanted_bytes)).await;
    }

    /// Versions of a Dataset that have a mount process here.
    fn versions(&self, uid: &str) -> Vec<VersionId> {
        let slots = self.inner.slots.lock();
        slots.keys().filter(|key| key.uid == uid).map(|key| key.version).collect()
    }

    fn create(&self, plan: &MountPlan, data_key: Option<&Key>) -> Arc<Slot> {
        let Inner { config, .. } = &*self.inner;
        let pods_file = config.launch.folders.process(&plan.key).join(PODS_FILE);
        let slot = Arc::new(Slot::new(plan.clone(), pods_file));
        slot.set_key(data_key);
        let task = supervise::supervise(self.clone(), Arc::clone(&slot), config.tasks.token());
        config.tasks.spawn("mount process", task);
        slot
    }

    /// Decides that a mount process is not needed; `false` where somebody has come to need it.
    fn begin_stop(&self, slot: &Slot) -> bool {
        // Under the lock, so that nobody gets a lease of it in between.
        let _slots = self.inner.slots.lock();
        let is_unused = slot.is_unused();
        if is_unused {
            slot.state.send_replace(MountState::Stopping);
        }
        is_unused
    }

    /// Forgets a mount process whose mount is gone.
    fn forget(&self, slot: &Slot) {
        self.inner.slots.lock().remove(&slot.plan.key);
        slot.state.send_replace(MountState::Gone);
    }
}

fn is_stopping(state: &MountState) -> bool {
    matches!(state, MountState::Stopping | MountState::Gone)
}
