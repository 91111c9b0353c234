//! What can the user see of a pod and its datasets?

use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use millrace_api::dataset::spec::Dataset;
use millrace_api::names;
use millrace_api::pod_annotation::PodDatasets;
use serde::de::DeserializeOwned;

use super::connect::told;

/// Events of one object that are looked at: the API server merges repetitions.
const MAX_EVENTS: u32 = 200;

/// Workers that are looked at.
const MAX_WORKERS: u32 = 500;

/// Something that was looked for.
#[derive(Debug, Clone)]
pub enum Found<T> {
    /// It is there.
    There(T),
    /// It is not.
    Nothing,
    /// The user may not see it, or there was no answer.
    Unknown(String),
}

/// All about a pod, or about a Dataset without one.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// Where all of it is.
    pub namespace: String,
    /// The pod.
    pub pod: Option<PodEvidence>,
    /// The Datasets that the pod names, or the one asked for.
    pub datasets: Vec<DatasetEvidence>,
}

/// All about a pod.
#[derive(Debug, Clone)]
pub struct PodEvidence {
    /// It.
    pub pod: Pod,
    /// What happened to it, newest last.
    pub events: Vec<Event>,
    /// The drivers of its node.
    pub node: Found<CSINode>,
}

/// All about a Dataset.
#[derive(Debug, Clone)]
pub struct DatasetEvidence {
    /// Its name.
    pub name: String,
    /// It.
    pub dataset: Found<Dataset>,
    /// The claim of its name.
    pub claim: Found<PersistentVolumeClaim>,
    /// The volume of its UID.
    pub volume: Found<PersistentVolume>,
    /// Its workers' pods.
    pub workers: Found<Vec<Pod>>,
}

/// Gathers what there is about a pod.
pub async fn of_pod(client: &Client, namespace: &str, pod: Pod) -> Evidence {
    let names = datasets_of(&pod);
    let uid = pod.uid().unwrap_or_default();
    let selector = ListParams::default().fields(&format!("involvedObject.uid={uid}")).limit(MAX_EVENTS);
    // Without the right to see events the rest still tells much.
    let mut events = Api::<Event>::namespaced(client.clone(), namespace)
        .list(&selector)
        .await
        .map_or_else(|_| Vec::new(), |list| list.items);
    events.sort_by_key(last_seen);
    let node = match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
        Some(node) => found(Api::all(client.clone()).get_opt(node).await, "get CSI drivers of the node"),
        None => Found::Nothing,
    };
    let mut datasets = Vec::new();
    for name in names {
        datasets.push(of_dataset(client, namespace, &name).await);
    }
    Evidence { namespace: namespace.to_owned(), pod: Some(PodEvidence { pod, events, node }), datasets }
}

/// Gathers what there is about a Dataset.
pub async fn of_dataset(client: &Client, namespace: &str, name: &str) -> DatasetEvidence {
    let dataset: Found<Dataset> = get(client, namespace, name, "get the dataset").await;
    let claim = get(client, namespace, names::claim(name), "get the claim").await;
    let uid = match &dataset {
        Found::There(dataset) => dataset.uid(),
        Found::Nothing | Found::Unknown(_) => None,
    };
    let (volume, workers) = match uid {
        None => (Found::Nothing, Found::Nothing),
        Some(uid) => {
            let volume = Api::all(client.clone()).get_opt(&names::volume(&uid)).await;
            let selector = ListParams::default().labels(&names::workers_selector(&uid)).limit(MAX_WORKERS);
            let workers = Api::<Pod>::namespaced(client.clone(), namespace).list(&selector).await;
            let workers = workers.map(|list| Some(list.items));
            (found(volume, "get the volume"), found(workers, "list the workers' pods"))
        }
    };
    DatasetEvidence { name: name.to_owned(), dataset, claim, volume, workers }
}

/// When an event was seen last, as a number that orders.
pub fn last_seen(event: &Event) -> i64 {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let times = [
        event.last_timestamp.as_ref().map(|time| time.0),
        event.event_time.as_ref().map(|time| time.0),
        series.map(|time| time.0),
    ];
    times.into_iter().flatten().map(|time| time.as_millisecond()).max().unwrap_or(0)
}

/// Datasets that a pod names in its annotation; without one, the claims that it mounts.
fn datasets_of(pod: &Pod) -> Vec<String> {
    if let Some(annotation) = pod.annotations().get(names::POD_DATASET_ANNOTATION) {
        let parsed = PodDatasets::parse(annotation);
        return parsed.map_or_else(
            |_| Vec::new(),
            |parsed| parsed.datasets().into_iter().map(str::to_owned).collect(),
        );
    }
    super::claims::claims_of(pod).map(str::to_owned).collect()
}

async fn get<T>(client: &Client, namespace: &str, name: &str, what: &str) -> Found<T>
where
    T: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    found(Api::<T>::namespaced(client.clone(), namespace).get_opt(name).await, what)
}

fn found<T>(answer: Result<Option<T>, kube::Error>, what: &str) -> Found<T> {
    match answer {
        Ok(Some(there)) => Found::There(there),
        Ok(None) => Found::Nothing,
        Err(error) => Found::Unknown(format!("{:#}", told(error, what))),
    }
}
