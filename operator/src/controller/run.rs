//! What makes a Dataset be reconciled? A change of it, of anything that we made for it, of what its workers say, or of time.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::Api;
use kube::runtime::controller::{Action, Config};
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{Controller, WatchStreamExt as _, watcher};
use kube::{Client, Resource, ResourceExt as _};
use millrace_api::dataset::spec::Dataset;
use millrace_api::keys::Key;
use millrace_api::names;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::apply::Writer;
use super::cleanup;
use super::context::{Context, Stores};
use super::error::ReconcileError;
use super::reconcile::reconcile;
use crate::build::WorkerImage;
use crate::consumers::missing_keys::MissingKeys;
use crate::consumers::{self, Consumers};
use crate::lease::Held;
use crate::metrics::Metrics;
use crate::workers::fleet::Fleets;
use crate::workers::triggers::Triggers;

/// Datasets that are reconciled at once.
const CONCURRENCY: u16 = 16;

/// Changes that come within this are one: the StatefulSet, its pods and a worker change together.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// Missing Secrets that may wait; kubelet tells of each again.
const MAX_MISSING_KEYS: usize = 256;

/// What the controller is run with.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Name of this operator, for events.
    pub instance: String,
    /// How workers' pods are made.
    pub image: WorkerImage,
    /// The key that all others are derived from.
    pub master: Key,
    /// Whether we may write.
    pub held: Held,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

type Touched<K> = std::pin::Pin<Box<dyn Stream<Item = Result<K, watcher::Error>> + Send>>;

/// Reconciles until `stop`, and ends all connections to workers.
pub async fn run(client: Client, setup: Setup, stop: CancellationToken) {
    let triggers = Triggers::default();
    let fleets = Fleets::new(triggers.clone(), stop.child_token());
    let held = setup.held.clone();
    let managed = watcher::Config::default().labels(names::MANAGED_SELECTOR);
    let workers =
        format!("{},{}={}", names::MANAGED_SELECTOR, names::COMPONENT_LABEL, names::WORKER_COMPONENT);
    let (datasets, dataset_changes) = watched::<Dataset>(&client, watcher::Config::default());
    let (stateful_sets, stateful_set_changes) = watched(&client, managed.clone());
    let (services, service_changes) = watched(&client, managed.clone());
    let (budgets, budget_changes) = watched(&client, managed.clone());
    let (claims, claim_changes) = watched(&client, managed.clone());
    let (volumes, volume_changes) = watched(&client, managed);
    let (pods, pod_changes) = watched(&client, watcher::Config::default().labels(&workers));
    let stores = Stores { stateful_sets, services, budgets, claims, volumes, pods };
    let reporter =
        Reporter { controller: "millrace-operator".into(), instance: Some(setup.instance.clone()) };
    let (filled, is_filled) = watch::channel(false);
    let context = Arc::new(Context {
        stores,
        filled: is_filled,
        writer: Writer::new(client.clone(), setup.held),
        fleets: fleets.clone(),
        image: setup.image,
        master: setup.master,
        recorder: Recorder::new(client.clone(), reporter),
        metrics: Arc::clone(&setup.metrics),
        memories: parking_lot::Mutex::default(),
    });
    sweep(&context).await;
    let (missing_keys, missed) = mpsc::channel(MAX_MISSING_KEYS);
    let consumers = Consumers { client, recorder: context.recorder.clone(), lease: held, missing_keys };
    let beside = async {
        tokio::join!(
            fill(&context.stores, filled),
            consumers::run(consumers, stop.clone()),
            make_keys_again(missed, &datasets, &context, &triggers, stop.clone())
        );
    };
    let all = datasets.clone();
    let controller = Controller::for_stream(dataset_changes, datasets.clone())
        .with_config(Config::default().concurrency(CONCURRENCY).debounce(DEBOUNCE))
        .watches_stream(stateful_set_changes, owner_of)
        .watches_stream(service_changes, owner_of)
        .watches_stream(budget_changes, owner_of)
        .watches_stream(claim_changes, owner_of)
        .watches_stream(volume_changes, owner_of_volume)
        .watches_stream(pod_changes, owner_of)
        .reconcile_on(triggers.stream())
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(counted, |_, error, _| error.action(), Arc::clone(&context));
    let reconciled = async {
        let mut results = std::pin::pin!(controller);
        while let Some(result) = results.next().await {
            context.metrics.workers.set(i64::try_from(context.fleets.connected()).unwrap_or(i64::MAX));
            context.metrics.datasets.set(i64::try_from(all.len()).unwrap_or(i64::MAX));
            let Err(error) = result else { continue };
            if let kube::runtime::controller::Error::ObjectNotFound(_) = error {
                let uids = all.state().iter().filter_map(|dataset| dataset.uid()).collect();
                context.retain(&uids);
                // Where its finalizer was taken away by hand, something is left.
                if !context.stores.uids().is_subset(&uids) {
                    sweep(&context).await;
                }
            }
            log(&error);
        }
    };
    tokio::join!(reconciled, beside);
    fleets.ended().await;
}

/// Has the Secrets of a Dataset made again where a pod has found one missing.
async fn make_keys_again(
    mut missed: mpsc::Receiver<MissingKeys>,
    datasets: &Store<Dataset>,
    context: &Context,
    triggers: &Triggers,
    stop: CancellationToken,
) {
    loop {
        let missing = tokio::select! {
            missing = missed.recv() => missing,
            () = stop.cancelled() => return,
        };
        let Some(MissingKeys { namespace, dataset }) = missing else { return };
        let object = ObjectRef::<Dataset>::new(&dataset).within(&namespace);
        let Some(uid) = datasets.get(&object).and_then(|dataset| dataset.uid()) else { continue };
        context.remember(&uid, |memory| memory.has_secrets = false);
        triggers.trigger(object);
    }
}

/// A watch, and the store that it fills.
fn watched<K>(client: &Client, config: watcher::Config) -> (Store<K>, Touched<K>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Eq + Hash,
{
    let (store, writer) = reflector::store();
    let changes =
        watcher(Api::<K>::all(client.clone()), config).default_backoff().reflect(writer).touched_objects();
    (store, changes.boxed())
}

/// Says when all stores are filled. They wake one waiter only, so that this is the one.
async fn fill(stores: &Stores, filled: watch::Sender<bool>) {
    let Stores { stateful_sets, services, budgets, claims, volumes, pods } = stores;
    // Each fails only where the controller is gone, and with it all that waits.
    let _ = stateful_sets.wait_until_ready().await;
    let _ = services.wait_until_ready().await;
    let _ = budgets.wait_until_ready().await;
    let _ = claims.wait_until_ready().await;
    let _ = volumes.wait_until_ready().await;
    let _ = pods.wait_until_ready().await;
    filled.send_replace(true);
}

fn owner_of<K: Resource>(object: K) -> Option<ObjectRef<Dataset>> {
    let name = object.labels().get(names::DATASET_LABEL)?.clone();
    Some(ObjectRef::new(&name).within(&object.namespace()?))
}

fn owner_of_volume(volume: PersistentVolume) -> Option<ObjectRef<Dataset>> {
    let name = volume.labels().get(names::DATASET_LABEL)?.clone();
    let namespace = volume.spec?.claim_ref?.namespace?;
    Some(ObjectRef::new(&name).within(&namespace))
}

async fn sweep(context: &Context) {
    match cleanup::sweep(context).await {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "what belonged to no Dataset was removed"),
        Err(error) => tracing::warn!(error = error.text(), "not looked for what belongs to no Dataset"),
    }
}

async fn counted(dataset: Arc<Dataset>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    // Before, nothing of a Dataset would seem to be there. The sender goes only with the controller.
    let _ = context.filled.clone().wait_for(|is_filled| *is_filled).await;
    let metrics = Arc::clone(&context.metrics);
    metrics.reconciles.inc();
    let timer = metrics.duration.start_timer();
    let result = reconcile(dataset, context).await;
    timer.observe_duration();
    if let Err(error) = &result {
        metrics.failures.with_label_values(&[error.label()]).inc();
    }
    result
}

fn log(error: &kube::runtime::controller::Error<ReconcileError, watcher::Error>) {
    use kube::runtime::controller::Error;
    match error {
        Error::ReconcilerFailed(ReconcileError::Write(super::apply::Write::NotLeader), _) => {}
        Error::ReconcilerFailed(error, object) => {
            tracing::warn!(
                dataset = object.name,
                namespace = object.namespace,
                error = error.text(),
                "not reconciled"
            );
        }
        // It is gone.
        Error::ObjectNotFound(_) => {}
        // The API server has forgotten where the watch was, which is its right: it begins anew.
        Error::QueueError(watcher::Error::WatchError(status)) if status.code == 410 => {
            tracing::debug!(error = %status.message, "watch begun anew");
        }
        error => tracing::warn!(error = %error, "watch interrupted"),
    }
}
