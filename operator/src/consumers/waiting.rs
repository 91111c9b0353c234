//! For what does a pod wait? Pure.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::{Resource, ResourceExt};
use millrace_api::dataset::conditions::{ACCEPTED, INDEXED, READY};
use millrace_api::dataset::spec::Dataset;
use millrace_api::names::POD_DATASET_ANNOTATION;
use millrace_api::pod_annotation::PodDatasets;

/// Longest note of an event, bytes: the API server refuses longer ones.
const MAX_NOTE_BYTES: usize = 1000;

/// Namespace and name.
pub type Name = (String, String);

/// All Datasets, by name.
pub type Datasets = HashMap<Name, DatasetState>;

/// What is to be known of a pod that is pending.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerPod {
    /// The pod.
    pub reference: ObjectReference,
    /// Names of Datasets in the pod's namespace.
    pub datasets: Vec<String>,
}

/// What is to be known of a Dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatasetState {
    /// It can be mounted.
    Ready,
    /// It cannot yet.
    Waiting {
        /// Reason of the condition that says so.
        reason: String,
        /// Its message.
        message: String,
    },
}

/// What a pod waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The Dataset.
    pub dataset: String,
    /// Why it is waited for.
    pub reason: String,
    /// There is none of that name.
    pub is_missing: bool,
    /// For the pod's author.
    pub message: String,
}

impl ConsumerPod {
    /// A pod, if it is pending and not being deleted.
    pub fn of(pod: &Pod) -> Option<Self> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if pod.metadata.deletion_timestamp.is_some() || phase.is_some_and(|phase| phase != "Pending") {
            return None;
        }
        // What the webhook let pass is right; what came by it some other way has no volumes of ours.
        let annotation = pod.annotations().get(POD_DATASET_ANNOTATION)?;
        let parsed = PodDatasets::parse(annotation).ok()?;
        let datasets = parsed.datasets().into_iter().map(str::to_owned).collect();
        Some(Self { reference: pod.object_ref(&()), datasets })
    }
}

impl DatasetState {
    /// The first of the conditions that mounting needs and that does not hold.
    pub fn of(dataset: &Dataset) -> Self {
        let waiting = |reason: &str, message: &str| Self::Waiting {
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        if dataset.metadata.deletion_timestamp.is_some() {
            return waiting("Terminating", "it is being deleted; create it again");
        }
        let conditions = dataset.status.iter().flat_map(|status| &status.conditions);
        let find = |kind: &str| conditions.clone().find(|condition| condition.type_ == kind);
        if find(READY).is_some_and(|ready| ready.status == "True") {
            return Self::Ready;
        }
        let broken = [ACCEPTED, INDEXED, READY]
            .into_iter()
            .filter_map(find)
            .find(|condition| condition.status != "True");
        match broken {
            Some(condition) => waiting(&condition.reason, &condition.message),
            None => waiting("NotObserved", "the operator has not looked at it yet"),
        }
    }
}

impl Wait {
    /// What makes two waits the same: not the message, which may count workers as they come.
    pub fn key(&self) -> (&str, &str) {
        (&self.dataset, &self.reason)
    }
}

/// Namespace and name of a Dataset.
pub fn name_of(dataset: &Dataset) -> Name {
    (dataset.namespace().unwrap_or_default(), dataset.name_any())
}

/// The first Dataset that a pod waits for, in the order of its annotation.
pub fn waits_for(pod: &ConsumerPod, datasets: &Datasets) -> Option<Wait> {
    let namespace = pod.reference.namespace.clone().unwrap_or_default();
    pod.datasets.iter().find_map(|dataset| {
        let wait = |reason: &str, is_missing, message: String| {
            Some(Wait { dataset: dataset.clone(), reason: reason.to_owned(), is_missing, message: bounded(message) })
        };
        match datasets.get(&(namespace.clone(), dataset.clone())) {
            Some(DatasetState::Ready) => None,
            Some(DatasetState::Waiting { reason, message }) => wait(
                reason,
                false,
                format!("waits for dataset {dataset:?} to be ready, and starts by itself then: {reason}: {message}"),
            ),
            None => wait(
                "Missing",
                true,
                format!(
                    "waits for dataset {dataset:?}: there is none in namespace {namespace:?}; create it and the pod starts by itself, \
                     or correct the annotation {POD_DATASET_ANNOTATION}"
                ),
            ),
        }
    })
}

fn bounded(mut message: String) -> String {
    if message.len() > MAX_NOTE_BYTES {
        let end = (0..=MAX_NOTE_BYTES).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
        message.truncate(end);
    }
    message
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(annotation: &str, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "p", "namespace": "vision", "uid": "u",
                "annotations": {"millrace.dev/dataset": annotation},
            },
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn dataset(conditions: Value) -> Dataset {
        serde_json::from_value(json!({
            "apiVersion": "millrace.dev/v1alpha1", "kind": "Dataset",
            "metadata": {"name": "imagenet", "namespace": "vision"},
            "spec": {"sources": [{"path": "/", "s3": {"bucket": "bbb", "region": "r"}}]},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    fn condition(kind: &str, status: &str, reason: &str) -> Value {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "as it is",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    }

    fn wait(pod: &Pod, dataset: Option<Dataset>) -> Option<Wait> {
        let datasets =
            dataset.iter().map(|dataset| (name_of(dataset), DatasetState::of(dataset))).collect::<Datasets>();
        waits_for(&ConsumerPod::of(pod).unwrap(), &datasets)
    }

    #[test]
    fn a_missing_dataset_is_named_with_its_namespace() {
        let wait = wait(&pod("imagenet/train=/data", "Pending"), None).unwrap();
        assert!(wait.is_missing);
        assert!(
            wait.message.starts_with("waits for dataset \"imagenet\": there is none in namespace \"vision\""),
            "{}",
            wait.message
        );
    }

    #[test]
    fn the_first_condition_that_does_not_hold_is_told() {
        let pod = pod("imagenet=/data", "Pending");
        let reason = |conditions: Value| wait(&pod, Some(dataset(conditions))).map(|wait| wait.reason);
        let listing = condition("Indexed", "False", "ListingFailed");
        let workers = condition("Ready", "False", "WaitingForIndex");
        assert_eq!(reason(json!([])).as_deref(), Some("NotObserved"));
        assert_eq!(reason(json!([workers, listing])).as_deref(), Some("ListingFailed"));
        let listed = condition("Indexed", "True", "Listed");
        assert_eq!(reason(json!([workers, listed])).as_deref(), Some("WaitingForIndex"));
        assert_eq!(reason(json!([condition("Ready", "True", "Serving"), listing])), None);
    }

    #[test]
    fn a_pod_that_started_or_goes_waits_for_nothing() {
        assert_eq!(ConsumerPod::of(&pod("a=/data", "Running")), None);
        let mut going = pod("a=/data", "Pending");
        going.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        assert_eq!(ConsumerPod::of(&going), None);
        assert_eq!(ConsumerPod::of(&pod("wrong", "Pending")), None);
    }

    #[test]
    fn a_message_that_only_counts_is_not_told_again() {
        let wait = |message: &str| Wait {
            dataset: "d".into(),
            reason: "WaitingForWorkers".into(),
            is_missing: false,
            message: message.into(),
        };
        assert_eq!(wait("0 of 3").key(), wait("1 of 3").key());
        assert_eq!(bounded("ü".repeat(600)).len(), 1000);
    }
}
