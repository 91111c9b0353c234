//! What must change about a pod so that it sees the datasets it asks for? Pure.
//!
//! Each Dataset gives the pod one volume: the claim of the Dataset's name, read-only. Each mount of the annotation gives every
//! chosen container, init containers too, one volume mount. A preferred affinity leads the scheduler to nodes with workers of
//! the Dataset, and the label [`CONSUMER_LABEL`] lets the operator find the pods that wait.
//!
//! What is there already is left as it is, so that a pod that comes by twice (reinvocation, or a copy of a running pod) is not
//! changed again. The patch only ever adds: fields of a newer API server, which our types do not know, are not lost.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation};
use k8s_openapi::api::core::v1::{
    Affinity, Container, PersistentVolumeClaimVolumeSource, Pod, PodAffinity, PodAffinityTerm, PodSpec,
    Volume, VolumeMount, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use millrace_api::names::{
    COMPONENT_LABEL, CONSUMER_LABEL, DATASET_LABEL, POD_CONTAINERS_ANNOTATION, POD_DATASET_ANNOTATION,
    WORKER_COMPONENT, claim, dataset_label, pod_volume,
};
use millrace_api::pod_annotation::{AnnotationError, Containers, DatasetMount, PodDatasets};
use serde::Serialize;
use serde_json::Value;

/// Weight of the affinity to workers, of 1 to 100. The scheduler adds the weights of all preferred terms and scales the sums of
/// all nodes to one range, so that 1 has its full effect in a pod without terms of its own and never outvotes the user's.
const AFFINITY_WEIGHT: i32 = 1;

const HOSTNAME: &str = "kubernetes.io/hostname";

/// Annotation of the copy of a static pod in the API server. kubelet refuses a copy that differs from its file.
const MIRROR_POD_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Why a pod is refused. The messages are for its author.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The annotation is not in its form.
    #[error("annotation {annotation}: {problem}")]
    Annotation {
        /// Which.
        annotation: &'static str,
        /// What is wrong.
        problem: AnnotationError,
    },
    /// The pod has no such container.
    #[error(
        "annotation {POD_CONTAINERS_ANNOTATION}: the pod has no container {name:?}; it has {containers:?}"
    )]
    NoSuchContainer {
        /// As in the annotation.
        name: String,
        /// Those that it has.
        containers: Vec<String>,
    },
    /// The volume of the Dataset has a name that the pod uses for something else.
    #[error(
        "annotation {POD_DATASET_ANNOTATION}: the pod has a volume {volume:?} that is not the claim {claim:?}: Millrace uses that \
         name for dataset {claim:?}; rename the pod's volume"
    )]
    VolumeTaken {
        /// Its name.
        volume: String,
        /// The claim it ought to be.
        claim: String,
    },
    /// A container mounts something else where the dataset is to be.
    #[error(
        "annotation {POD_DATASET_ANNOTATION}: container {container:?} mounts volume {volume:?} at {path:?} already: choose another \
         path for {dataset:?}, or take that mount away"
    )]
    PathTaken {
        /// The container.
        container: String,
        /// What it mounts.
        volume: String,
        /// Where.
        path: String,
        /// What was to be mounted there.
        dataset: String,
    },
    /// The pod wants Windows.
    #[error(
        "annotation {POD_DATASET_ANNOTATION}: the pod asks for Windows nodes; datasets can be mounted on Linux nodes only"
    )]
    Windows,
}

/// What is to be done to a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mutation {
    /// Empty when the pod is as it must be.
    pub patch: Patch,
    /// For whoever creates the pod.
    pub warnings: Vec<String>,
}

/// Says what must change about a pod. One without the annotation is left alone.
///
/// # Errors
/// Where the annotation is wrong, or clashes with the rest of the pod.
pub fn mutate(pod: &Pod) -> Result<Mutation, Refusal> {
    let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key).map(String::as_str);
    let (Some(datasets), Some(spec)) = (annotation(POD_DATASET_ANNOTATION), &pod.spec) else {
        return Ok(Mutation::default());
    };
    if annotation(MIRROR_POD_ANNOTATION).is_some() {
        let warning = format!("{POD_DATASET_ANNOTATION} has no effect on static pods");
        return Ok(Mutation { warnings: vec![warning], ..Mutation::default() });
    }
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return Err(Refusal::Windows);
    }
    let datasets = PodDatasets::parse(datasets)
        .map_err(|problem| Refusal::Annotation { annotation: POD_DATASET_ANNOTATION, problem })?;
    let containers = Containers::parse(annotation(POD_CONTAINERS_ANNOTATION))
        .map_err(|problem| Refusal::Annotation { annotation: POD_CONTAINERS_ANNOTATION, problem })?;
    check_names(spec, &containers)?;

    let mut add = Additions::default();
    add_label(&mut add, pod);
    add_volumes(&mut add, spec, &datasets)?;
    let lists =
        [("initContainers", spec.init_containers.as_deref()), ("containers", Some(&*spec.containers))];
    let mut warnings = Vec::new();
    for (list, of) in lists {
        for (at, container) in of.unwrap_or_default().iter().enumerate() {
            if containers.include(&container.name) {
                add_mounts(&mut add, (list, at), container, datasets.mounts())?;
                warnings.extend(within_datasets(container, datasets.mounts()));
            }
        }
    }
    add_affinity(&mut add, spec, &datasets);
    Ok(Mutation { patch: Patch(add.0), warnings })
}

/// What a Dataset's volume looks like in a pod.
pub fn volume_of(dataset: &str) -> Volume {
    Volume {
        name: pod_volume(dataset),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim(dataset).to_owned(),
            read_only: Some(true),
        }),
        ..Volume::default()
    }
}

/// Operations of a patch, in order.
#[derive(Default)]
struct Additions(Vec<PatchOperation>);

impl Additions {
    /// `path` is of keys and places in lists; `-` is the end of a list.
    fn add(&mut self, path: &[&str], value: impl Serialize) {
        let value = serde_json::to_value(value).unwrap_or(Value::Null);
        let path = PointerBuf::from_tokens(path.iter().copied());
        self.0.push(PatchOperation::Add(AddOperation { path, value }));
    }

    /// Appends to a list that is there, or makes it.
    fn append<T: Serialize>(&mut self, path: &[&str], is_there: bool, items: &[T]) {
        if items.is_empty() {
            return;
        }
        if !is_there {
            return self.add(path, items);
        }
        let end: Vec<&str> = path.iter().copied().chain(["-"]).collect();
        for item in items {
            self.add(&end, item);
        }
    }
}

fn check_names(spec: &PodSpec, containers: &Containers) -> Result<(), Refusal> {
    let Containers::Named(names) = containers else { return Ok(()) };
    let there: Vec<String> = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .map(|container| container.name.clone())
        .collect();
    match names.iter().find(|name| !there.contains(name)) {
        Some(name) => Err(Refusal::NoSuchContainer { name: name.clone(), containers: there }),
        None => Ok(()),
    }
}

fn add_label(add: &mut Additions, pod: &Pod) {
    match &pod.metadata.labels {
        None => add.add(&["metadata", "labels"], serde_json::json!({ CONSUMER_LABEL: "true" })),
        Some(labels) if labels.get(CONSUMER_LABEL).is_some_and(|value| value == "true") => {}
        Some(_) => add.add(&["metadata", "labels", CONSUMER_LABEL], "true"),
    }
}

fn add_volumes(add: &mut Additions, spec: &PodSpec, datasets: &PodDatasets) -> Result<(), Refusal> {
    let mut missing = Vec::new();
    for dataset in datasets.datasets() {
        let wanted = volume_of(dataset);
        let there = spec.volumes.iter().flatten().find(|volume| volume.name == wanted.name);
        match there.map(|volume| volume.persistent_volume_claim.as_ref()) {
            None => missing.push(wanted),
            // A claim of ours is served read-only, whatever the pod says.
            Some(Some(there)) if there.claim_name == claim(dataset) => {}
            Some(_) => {
                return Err(Refusal::VolumeTaken { volume: wanted.name, claim: claim(dataset).to_owned() });
            }
        }
    }
    add.append(&["spec", "volumes"], spec.volumes.is_some(), &missing);
    Ok(())
}

fn add_mounts(
    add: &mut Additions,
    (list, at): (&str, usize),
    container: &Container,
    mounts: &[DatasetMount],
) -> Result<(), Refusal> {
    let mut missing = Vec::new();
    for mount in mounts {
        let wanted = VolumeMount {
            name: pod_volume(&mount.dataset),
            mount_path: mount.path.clone(),
            sub_path: mount.sub_path.clone(),
            read_only: Some(true),
            // A mount that is made anew on the node below a running pod becomes visible in it.
            mount_propagation: Some("HostToContainer".to_owned()),
            recursive_read_only: None,
            sub_path_expr: None,
        };
        let there = container
            .volume_mounts
            .iter()
            .flatten()
            .find(|there| there.mount_path.trim_end_matches('/') == mount.path);
        match there {
            None => missing.push(wanted),
            Some(there) if there.name == wanted.name && is_same_part(there, mount) => {}
            Some(there) => {
                return Err(Refusal::PathTaken {
                    container: container.name.clone(),
                    volume: there.name.clone(),
                    path: mount.path.clone(),
                    dataset: mount.source(),
                });
            }
        }
    }
    let at = at.to_string();
    add.append(&["spec", list, &at, "volumeMounts"], container.volume_mounts.is_some(), &missing);
    Ok(())
}

fn is_same_part(there: &VolumeMount, mount: &DatasetMount) -> bool {
    there.sub_path_expr.is_none()
        && there.sub_path.as_deref().filter(|sub_path| !sub_path.is_empty()) == mount.sub_path.as_deref()
}

/// Mounts of the pod's own below a dataset: they work only where the dataset has a folder of that name.
fn within_datasets(container: &Container, mounts: &[DatasetMount]) -> Vec<String> {
    let mut warnings = Vec::new();
    for own in container.volume_mounts.iter().flatten() {
        for mount in mounts {
            let inner = own.mount_path.strip_prefix(&mount.path).filter(|rest| rest.starts_with('/'));
            if inner.is_some_and(|rest| rest.len() > 1) {
                warnings.push(format!(
                    "container {:?} mounts volume {:?} at {:?}, within dataset {:?}, which is read-only: it will not start unless the \
                     dataset has that folder",
                    container.name,
                    own.name,
                    own.mount_path,
                    mount.source()
                ));
            }
        }
    }
    warnings
}

fn add_affinity(add: &mut Additions, spec: &PodSpec, datasets: &PodDatasets) {
    let own = spec.affinity.as_ref().and_then(|affinity| affinity.pod_affinity.as_ref());
    let own_terms =
        own.and_then(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.as_ref());
    let missing: Vec<_> = datasets
        .datasets()
        .into_iter()
        .map(near_workers)
        .filter(|term| {
            !own_terms.into_iter().flatten().any(|own| own.pod_affinity_term == term.pod_affinity_term)
        })
        .collect();
    if missing.is_empty() {
        return;
    }
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let affinity = || PodAffinity {
        preferred_during_scheduling_ignored_during_execution: Some(missing.clone()),
        required_during_scheduling_ignored_during_execution: None,
    };
    match (&spec.affinity, own) {
        (None, _) => {
            add.add(&["spec", "affinity"], Affinity { pod_affinity: Some(affinity()), ..Affinity::default() })
        }
        (Some(_), None) => add.add(&["spec", "affinity", "podAffinity"], affinity()),
        (Some(_), Some(_)) => {
            let path = ["spec", "affinity", "podAffinity", PREFERRED];
            add.append(&path, own_terms.is_some(), &missing);
        }
    }
}

/// Prefers nodes that have a worker of the Dataset, in the pod's own namespace.
fn near_workers(dataset: &str) -> WeightedPodAffinityTerm {
    let labels = [(COMPONENT_LABEL, WORKER_COMPONENT.to_owned()), (DATASET_LABEL, dataset_label(dataset))];
    let match_labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    WeightedPodAffinityTerm {
        weight: AFFINITY_WEIGHT,
        pod_affinity_term: PodAffinityTerm {
            label_selector: Some(LabelSelector { match_labels: Some(match_labels), match_expressions: None }),
            topology_key: HOSTNAME.to_owned(),
            ..PodAffinityTerm::default()
        },
    }
}

#[cfg(test)]
#[path = "mutate_tests.rs"]
mod tests;
