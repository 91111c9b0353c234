//! Which connections are there, and what was decided for them? The operator's memory of the workers; lost with the lease.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube::runtime::reflector::ObjectRef;
use millrace_api::dataset::spec::Dataset;
use millrace_api::keys::Key;
use millrace_api::placement::Membership;
use millrace_control::proto;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::connection::Connection;
use super::listing::{self, Listing, Subject};
use super::orders::{Orders, Warm};
use super::seen::Seen;
use super::steer::WorkerPod;
use super::triggers::Triggers;
use crate::build::Owner;

/// The workers of all Datasets. Clones share them.
#[derive(Clone)]
pub struct Fleets {
    shared: Arc<Shared>,
}

struct Shared {
    by_uid: Mutex<HashMap<String, Fleet>>,
    triggers: Triggers,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl std::fmt::Debug for Fleets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleets").field("datasets", &self.shared.by_uid.lock().len()).finish()
    }
}

struct Fleet {
    key: Key,
    orders: watch::Sender<Arc<Orders>>,
    links: BTreeMap<String, Link>,
    listing: Listing,
    /// Ends the listing that runs.
    listing_stop: Option<DropGuard>,
    without_index: Option<Instant>,
    completed: Option<String>,
}

struct Link {
    /// Its control port.
    address: String,
    seen: Arc<Mutex<Seen>>,
    /// Ends the connection.
    _stop: DropGuard,
}

/// What is remembered of the workers of a Dataset.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Each worker, by name.
    pub seen: BTreeMap<String, Seen>,
    /// What they were told last.
    pub orders: Arc<Orders>,
    /// How far the listing is.
    pub listing: Listing,
    /// Since when no worker has the index of the version.
    pub without_index: Option<Instant>,
    /// Id of the last warm-up on request that is through.
    pub completed: Option<String>,
}

impl Fleets {
    /// No workers yet. `triggers` is told whose state has changed; all ends with `stop`.
    pub fn new(triggers: Triggers, stop: CancellationToken) -> Self {
        let shared = Shared { by_uid: Mutex::default(), triggers, tasks: TaskTracker::new(), stop };
        Self { shared: Arc::new(shared) }
    }

    /// Talks with these workers of a Dataset, and with no others, and gives what is known of them. `version` is the one in use.
    pub fn sync(&self, owner: &Owner, master: &Key, pods: &[WorkerPod], version: Option<&str>) -> Known {
        let mut fleets = self.shared.by_uid.lock();
        let fleet = fleets.entry(owner.uid.clone()).or_insert_with(|| Fleet::new(owner, master));
        fleet.links.retain(|name, link| {
            let seen = link.seen.lock();
            pods.iter().any(|pod| pod.name == *name && pod.uid == seen.pod_uid && pod.ip == seen.ip)
        });
        for pod in pods {
            if !fleet.links.contains_key(&pod.name) {
                let link = self.connect(owner, fleet, pod);
                fleet.links.insert(pod.name.clone(), link);
            }
        }
        let seen: BTreeMap<String, Seen> =
            fleet.links.iter().map(|(name, link)| (name.clone(), link.seen.lock().clone())).collect();
        let is_without = version.is_some_and(|version| {
            seen.values().any(|seen| seen.status.is_some())
                && !seen.values().any(|seen| seen.has_index(version))
        });
        fleet.without_index = is_without.then(|| fleet.without_index.unwrap_or_else(Instant::now));
        Known {
            seen,
            orders: Arc::clone(&fleet.orders.borrow()),
            listing: fleet.listing.clone(),
            without_index: fleet.without_index,
            completed: fleet.completed.clone(),
        }
    }

    fn connect(&self, owner: &Owner, fleet: &Fleet, pod: &WorkerPod) -> Link {
        let stop = self.shared.stop.child_token();
        let seen = Arc::new(Mutex::new(Seen::new(&pod.name, &pod.uid, &pod.ip)));
        let address = pod.control_address();
        let connection = Connection {
            address: address.clone(),
            seen: Arc::clone(&seen),
            key: fleet.key.clone(),
            orders: fleet.orders.subscribe(),
            notify: self.notifier(owner),
        };
        self.shared.tasks.spawn(connection.keep(stop.clone()));
        Link { address, seen, _stop: stop.drop_guard() }
    }

    fn notifier(&self, owner: &Owner) -> Arc<dyn Fn() + Send + Sync> {
        let triggers = self.shared.triggers.clone();
        let object = ObjectRef::<Dataset>::new(&owner.name).within(&owner.namespace);
        Arc::new(move || triggers.trigger(object.clone()))
    }

    /// Gives the workers of a Dataset their orders.
    pub fn order(&self, owner: &Owner, orders: Orders, completed: Option<String>) {
        let mut fleets = self.shared.by_uid.lock();
        let Some(fleet) = fleets.get_mut(&owner.uid) else { return };
        fleet.orders.send_if_modified(|current| {
            let is_new = **current != orders;
            if is_new {
                *current = Arc::new(orders);
            }
            is_new
        });
        fleet.completed = completed;
    }

    /// Forgets the listing that is done: the status has its version.
    pub fn taken(&self, owner: &Owner) {
        self.with(&owner.uid, |fleet| {
            fleet.listing = Listing::Idle;
            fleet.listing_stop = None;
            fleet.without_index = None;
        });
    }

    /// Has a worker list the sources; what runs already is ended.
    pub fn list(&self, owner: &Owner, worker: &str, subject: Subject, request: proto::MakeIndexRequest) {
        let mut fleets = self.shared.by_uid.lock();
        let Some(fleet) = fleets.get_mut(&owner.uid) else { return };
        let Some(link) = fleet.links.get(worker) else { return };
        let address = link.address.clone();
        let (tries, former) = match &fleet.listing {
            Listing::Failed { subject: of, tries, failure, .. } if *of == subject => {
                (*tries, Some(failure.clone()))
            }
            Listing::Idle | Listing::Running { .. } | Listing::Made { .. } | Listing::Failed { .. } => {
                (0, None)
            }
        };
        tracing::info!(dataset = owner.name, namespace = owner.namespace, worker, "listing");
        fleet.listing =
            Listing::Running { subject: subject.clone(), worker: worker.to_owned(), objects: 0, former };
        let stop = self.shared.stop.child_token();
        fleet.listing_stop = Some(stop.clone().drop_guard());
        let (fleets, uid, key, notify) =
            (self.clone(), owner.uid.clone(), fleet.key.clone(), self.notifier(owner));
        let worker = worker.to_owned();
        self.shared.tasks.spawn(async move {
            let progress = |found: u64| {
                fleets.with(&uid, |fleet| {
                    if let Listing::Running { objects, .. } = &mut fleet.listing {
                        *objects = found;
                    }
                });
            };
            let listed = tokio::select! {
                listed = listing::list(&address, key, request, progress) => listed,
                () = stop.cancelled() => return,
            };
            let ended = match listed {
                Ok(made) => Listing::Made { subject, made },
                Err(failure) => {
                    // Once: it is tried again and again, and the status says it.
                    if tries == 0 {
                        tracing::warn!(
                            worker,
                            reason = failure.reason,
                            message = failure.message,
                            "not listed"
                        );
                    }
                    Listing::Failed { subject, failure, at: Instant::now(), tries: tries.saturating_add(1) }
                }
            };
            fleets.with(&uid, |fleet| {
                if !stop.is_cancelled() {
                    fleet.listing = ended;
                }
            });
            notify();
        });
    }

    fn with(&self, uid: &str, change: impl FnOnce(&mut Fleet)) {
        if let Some(fleet) = self.shared.by_uid.lock().get_mut(uid) {
            change(fleet);
        }
    }

    /// Forgets the workers of a Dataset that is gone.
    pub fn forget(&self, uid: &str) {
        self.shared.by_uid.lock().remove(uid);
    }

    /// Forgets the workers of all Datasets but these.
    pub fn retain(&self, uids: &std::collections::HashSet<String>) {
        self.shared.by_uid.lock().retain(|uid, _| uids.contains(uid));
    }

    /// Workers that are connected, over all Datasets.
    pub fn connected(&self) -> usize {
        let fleets = self.shared.by_uid.lock();
        let links = fleets.values().flat_map(|fleet| fleet.links.values());
        links.filter(|link| link.seen.lock().status.is_some()).count()
    }

    /// Waits for the end of all connections, after `stop`.
    pub async fn ended(&self) {
        self.shared.by_uid.lock().clear();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Fleet {
    fn new(owner: &Owner, master: &Key) -> Self {
        let orders = Orders { membership: Membership::default(), version: None, warm_up: Warm::Leave };
        Self {
            key: Key::control_key(master, &owner.uid),
            orders: watch::Sender::new(Arc::new(orders)),
            links: BTreeMap::new(),
            listing: Listing::Idle,
            listing_stop: None,
            without_index: None,
            completed: None,
        }
    }
}
