//! Which objects must exist for a Dataset? Pure: the same Dataset and configuration give the same objects.

pub mod budget;
pub mod secrets;
pub mod service;
pub mod stateful_set;
pub mod volume;
pub mod worker_volumes;

use millrace_api::dataset::spec::Dataset;
use millrace_api::names;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// Annotation of what we create: a hash of what we asked for, so that a field that is no longer asked for is seen to be left over.
pub const APPLIED_ANNOTATION: &str = "millrace.dev/applied";

/// Whom objects are made for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Name of the Dataset.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
}

/// A kind of object that we apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The network name of the workers.
    Service,
    /// The workers.
    StatefulSet,
    /// How many workers a drain may take at once.
    PodDisruptionBudget,
    /// What nodes mount.
    PersistentVolume,
    /// What pods mount.
    PersistentVolumeClaim,
}

/// An object that must exist.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its namespace; `None` for a volume.
    pub namespace: Option<String>,
    /// All of it that we ask for.
    pub object: Value,
}

/// How the pods of workers are made, whatever the Dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerImage {
    /// The image.
    pub image: String,
    /// `Always`, `IfNotPresent` or `Never`.
    pub pull_policy: String,
}

impl Kind {
    /// Its name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Service => "Service",
            Kind::StatefulSet => "StatefulSet",
            Kind::PodDisruptionBudget => "PodDisruptionBudget",
            Kind::PersistentVolume => "PersistentVolume",
            Kind::PersistentVolumeClaim => "PersistentVolumeClaim",
        }
    }

    /// Group and version of its API.
    pub fn api_version(self) -> &'static str {
        match self {
            Kind::Service | Kind::PersistentVolume | Kind::PersistentVolumeClaim => "v1",
            Kind::StatefulSet => "apps/v1",
            Kind::PodDisruptionBudget => "policy/v1",
        }
    }
}

impl Owner {
    /// The owner that a Dataset from the API server is; `None` where it has no name, namespace or UID, as none from there has.
    pub fn of(dataset: &Dataset) -> Option<Self> {
        let metadata = &dataset.metadata;
        Some(Self {
            name: metadata.name.clone()?,
            namespace: metadata.namespace.clone()?,
            uid: metadata.uid.clone()?,
        })
    }

    /// The labels of everything that is made for it.
    pub fn labels(&self) -> Map<String, Value> {
        let mut labels = Map::new();
        labels.insert(names::MANAGED_BY_LABEL.into(), names::MANAGER.into());
        labels.insert(names::DATASET_LABEL.into(), names::dataset_label(&self.name).into());
        labels.insert(names::DATASET_UID_LABEL.into(), self.uid.clone().into());
        labels
    }

    /// The labels that select its workers.
    pub fn worker_selector(&self) -> Map<String, Value> {
        let mut labels = Map::new();
        labels.insert(names::COMPONENT_LABEL.into(), names::WORKER_COMPONENT.into());
        labels.insert(names::DATASET_UID_LABEL.into(), self.uid.clone().into());
        labels
    }
}

/// An object with head, labels and the hash of all that is asked for.
fn wanted(owner: &Owner, kind: Kind, name: String, body: Value) -> Wanted {
    let namespace = (kind != Kind::PersistentVolume).then(|| owner.namespace.clone());
    let mut object = Map::new();
    object.insert("apiVersion".into(), kind.api_version().into());
    object.insert("kind".into(), kind.as_str().into());
    let mut metadata = json!({"name": name, "labels": owner.labels()});
    if let Some(namespace) = &namespace {
        metadata["namespace"] = namespace.clone().into();
    }
    if let Value::Object(body) = body {
        object.extend(body);
    }
    object.insert("metadata".into(), metadata);
    let hash = hash_of(&Value::Object(object.clone()));
    if let Some(metadata) = object.get_mut("metadata") {
        metadata["annotations"] = json!({ APPLIED_ANNOTATION: hash });
    }
    Wanted { kind, name, namespace, object: Value::Object(object) }
}

/// A short hash of a value; keys of maps are in order whatever the order that they were put in.
pub fn hash_of(value: &Value) -> String {
    let digest = Sha256::digest(value.to_string().as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn owner() -> Owner {
        Owner { name: "imagenet".into(), namespace: "vision".into(), uid: "6e9f".into() }
    }

    pub fn dataset(spec: Value) -> Dataset {
        let mut spec = spec;
        if spec.get("sources").is_none() {
            spec["sources"] = json!([{"path": "/", "s3": {"bucket": "abc", "region": "r"}}]);
        }
        serde_json::from_value(json!({
            "apiVersion": "millrace.dev/v1alpha1", "kind": "Dataset",
            "metadata": {"name": "imagenet", "namespace": "vision", "uid": "6e9f", "generation": 3},
            "spec": spec,
        }))
        .unwrap()
    }

    /// All objects of a Dataset that uses every field. A change of it restarts workers: it is seen here first. To write it anew, run
    /// with MILLRACE_WRITE_GOLDEN=1.
    #[test]
    fn the_objects_of_a_full_dataset_are_pinned() {
        let spec = json!({
            "sources": [{"path": "/", "s3": {
                "bucket": "abc", "region": "r", "credentials": {"secretRef": {"name": "keys"}},
            }}],
            "workers": {
                "replicas": 2, "serviceAccountName": "reader",
                "cache": {"eviction": "LRU", "tiers": [
                    {"medium": "Memory", "quota": "1Gi"},
                    {"medium": "Disk", "quota": "20Gi", "volume": {"volumeClaimTemplate": {"storageClassName": "fast"}}},
                ]},
                "template": {
                    "resources": {"requests": {"cpu": 2}}, "nodeSelector": {"disk": "nvme"},
                    "tolerations": [{"key": "gpu", "operator": "Exists"}], "affinity": {"nodeAffinity": {}},
                    "priorityClassName": "high", "imagePullSecrets": [{"name": "pull"}],
                    "labels": {"team": "vision"}, "annotations": {"a": "b"},
                },
            },
        });
        let image = WorkerImage { image: "worker:1".into(), pull_policy: "IfNotPresent".into() };
        let identity = stateful_set::WebIdentity {
            role_arn: "arn:role".into(),
            audience: "sts".into(),
            sts_endpoint: None,
        };
        let (owner, spec) = (owner(), dataset(spec).spec);
        let workers = stateful_set::stateful_set(&owner, &spec, &image, Some(&identity), Some("1"), None);
        let all = [
            service::service(&owner),
            workers,
            budget::budget(&owner),
            volume::volume(&owner),
            volume::claim(&owner),
        ];
        let objects: Vec<&Value> = all.iter().map(|wanted| &wanted.object).collect();
        let printed = format!("{}\n", serde_json::to_string_pretty(&objects).unwrap());
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/build/golden.json");
        if std::env::var_os("MILLRACE_WRITE_GOLDEN").is_some() {
            std::fs::write(path, &printed).unwrap();
        }
        assert!(printed == std::fs::read_to_string(path).unwrap_or_default(), "not as in {path}:\n{printed}");
    }

    #[test]
    fn the_hash_changes_with_what_is_asked_for_and_with_nothing_else() {
        let of = |body| wanted(&owner(), Kind::Service, "x".into(), body).object;
        let hash = |object: &Value| object["metadata"]["annotations"][APPLIED_ANNOTATION].clone();
        let (a, b) = (of(json!({"spec": {"a": 1, "b": 2}})), of(json!({"spec": {"b": 2, "a": 1}})));
        assert_eq!(hash(&a), hash(&b));
        assert_ne!(hash(&a), hash(&of(json!({"spec": {"a": 1}}))));
    }
}
