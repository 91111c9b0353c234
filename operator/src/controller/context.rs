//! What does a reconcile have at hand?

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::runtime::events::Recorder;
use kube::runtime::reflector::Store;
use kube::{Resource, ResourceExt as _};
use millrace_api::dataset::status::DatasetStatus;
use millrace_api::keys::Key;
use millrace_api::names;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::apply::Writer;
use super::backoff::Backoff;
use super::objects::Refused;
use super::trouble::Refusal;
use crate::build::{Kind, WorkerImage};
use crate::metrics::Metrics;
use crate::workers::fleet::Fleets;

/// What watches have brought. Objects that carry our label, and no others.
#[derive(Clone)]
pub struct Stores {
    /// StatefulSets.
    pub stateful_sets: Store<StatefulSet>,
    /// Services.
    pub services: Store<Service>,
    /// PodDisruptionBudgets.
    pub budgets: Store<PodDisruptionBudget>,
    /// PersistentVolumeClaims.
    pub claims: Store<PersistentVolumeClaim>,
    /// PersistentVolumes.
    pub volumes: Store<PersistentVolume>,
    /// Workers' pods.
    pub pods: Store<Pod>,
}

impl Stores {
    /// UIDs of the Datasets that objects belong to.
    pub fn uids(&self) -> HashSet<String> {
        let Self { stateful_sets, services, budgets, claims, volumes, pods: _ } = self;
        let mut uids = HashSet::new();
        collect(stateful_sets, &mut uids);
        collect(services, &mut uids);
        collect(budgets, &mut uids);
        collect(claims, &mut uids);
        collect(volumes, &mut uids);
        uids
    }
}

fn collect<K>(store: &Store<K>, uids: &mut HashSet<String>)
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let of = |object: &Arc<K>| object.labels().get(names::DATASET_UID_LABEL).cloned();
    uids.extend(store.state().iter().filter_map(of));
}

/// What a reconcile has at hand.
pub struct Context {
    /// What watches have brought.
    pub stores: Stores,
    /// Whether they have all that there was when they began.
    pub filled: watch::Receiver<bool>,
    /// Writes, with the lease.
    pub writer: Writer,
    /// The workers.
    pub fleets: Fleets,
    /// How workers' pods are made.
    pub image: WorkerImage,
    /// The key that all others are derived from.
    pub master: Key,
    /// Events.
    pub recorder: Recorder,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What is remembered of each Dataset, by UID; lost with the lease.
    pub memories: Mutex<HashMap<String, Memory>>,
}

/// What is remembered of a Dataset between reconciles. Without it more is written than need be, and nothing goes wrong.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// Whether its Secrets were made, or found, by this operator.
    pub has_secrets: bool,
    /// The status as it was written last: what the watch has brought may be older.
    pub told: Option<DatasetStatus>,
    /// When the status was written last.
    pub status_written: Option<Instant>,
    /// Workers' pods, by UID, for which the Secrets were made again.
    pub helped_pods: HashSet<String>,
    /// Since when it waits for its worker pods to be made.
    pub waiting_since: Option<Instant>,
    /// Objects that could not be made.
    pub refused: BTreeMap<Kind, Refused>,
    /// How often it was asked why pods are not made, and what was said last.
    pub asked: Backoff,
    /// See `asked`.
    pub refusal: Option<Refusal>,
    /// How often the StatefulSet's controller was made to try again.
    pub nudged: Backoff,
    /// The same of the volumes' controller.
    pub claim_nudged: Backoff,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("image", &self.image)
            .field("fleets", &self.fleets)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// What is remembered of a Dataset.
    pub fn memory(&self, uid: &str) -> Memory {
        self.memories.lock().get(uid).cloned().unwrap_or_default()
    }

    /// Remembers something of a Dataset.
    pub fn remember(&self, uid: &str, change: impl FnOnce(&mut Memory)) {
        change(self.memories.lock().entry(uid.to_owned()).or_default());
    }

    /// Forgets all Datasets but these.
    pub fn retain(&self, uids: &HashSet<String>) {
        self.memories.lock().retain(|uid, _| uids.contains(uid));
        self.fleets.retain(uids);
    }

    /// Forgets a Dataset that is gone.
    pub fn forget(&self, uid: &str) {
        self.memories.lock().remove(uid);
        self.fleets.forget(uid);
    }
}
