//! How does a test put objects into a cluster, look at them and wait for them?

use std::time::{Duration, Instant};

use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde::Deserialize;
use serde_json::Value;
use tokio::runtime::Runtime;

/// How often to look whether something has happened.
const POLL: Duration = Duration::from_millis(100);

/// Longest list that a test asks for.
const MAX_LISTED: u32 = 1000;

/// A kind of object: `v1/Pod`, `apps/v1/StatefulSet`.
pub type Kind<'a> = &'a str;

/// Kind Dataset.
pub const DATASET: Kind<'static> = "millrace.dev/v1alpha1/Dataset";
/// Kind Pod.
pub const POD: Kind<'static> = "v1/Pod";
/// Kind Event.
pub const EVENT: Kind<'static> = "v1/Event";
/// Kind StatefulSet.
pub const STATEFUL_SET: Kind<'static> = "apps/v1/StatefulSet";
/// Kind Job.
pub const JOB: Kind<'static> = "batch/v1/Job";

/// The objects of a cluster. Calls block, and fail the test where the API server refuses, unless their names say otherwise.
pub struct Objects {
    client: Client,
    runtime: Runtime,
}

impl Objects {
    /// Those that a client sees.
    pub fn new(client: Client, runtime: Runtime) -> Self {
        Self { client, runtime }
    }

    /// Applies the documents of a YAML text; those that name no namespace go into `namespace`.
    pub fn apply(&self, namespace: &str, yaml: &str) {
        self.try_apply(namespace, yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    }

    /// Applies the documents of a YAML text; what the API server says where it refuses.
    pub fn try_apply(&self, namespace: &str, yaml: &str) -> Result<(), String> {
        for document in serde_yaml::Deserializer::from_str(yaml) {
            let value = Value::deserialize(document).map_err(|error| error.to_string())?;
            if value.is_null() {
                continue;
            }
            let object: DynamicObject = serde_json::from_value(value).map_err(|error| error.to_string())?;
            let types = object.types.clone().ok_or("a document without apiVersion and kind")?;
            let kind = format!("{}/{}", types.api_version, types.kind);
            let name = object.metadata.name.clone().ok_or("a document without metadata.name")?;
            let place = object.metadata.namespace.clone().unwrap_or_else(|| namespace.to_owned());
            let params = PatchParams::apply("millrace-tests").force();
            let applied =
                self.block_on(self.api(&place, &kind).patch(&name, &params, &Patch::Apply(&object)));
            applied.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Merges a change into an object.
    pub fn merge(&self, namespace: &str, kind: Kind<'_>, name: &str, change: &Value) {
        self.try_merge(namespace, kind, name, change)
            .unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
    }

    /// Merges a change into an object; what the API server says where it refuses.
    pub fn try_merge(
        &self,
        namespace: &str,
        kind: Kind<'_>,
        name: &str,
        change: &Value,
    ) -> Result<(), String> {
        let patch = Patch::Merge(change);
        let patched = self.block_on(self.api(namespace, kind).patch(name, &PatchParams::default(), &patch));
        patched.map(|_| ()).map_err(|error| error.to_string())
    }

    /// An object, if it is there.
    pub fn get(&self, namespace: &str, kind: Kind<'_>, name: &str) -> Option<Value> {
        self.try_get(namespace, kind, name).unwrap_or_else(|error| panic!("{kind} {name}: {error}"))
    }

    /// An object, if it is there; the error where the API server does not answer.
    pub fn try_get(&self, namespace: &str, kind: Kind<'_>, name: &str) -> Result<Option<Value>, String> {
        let found = self.block_on(self.api(namespace, kind).get_opt(name));
        found.map(|object| object.map(value)).map_err(|error| error.to_string())
    }

    /// All objects of a kind, of one namespace or (`""`) of all, that carry the labels.
    pub fn list(&self, namespace: &str, kind: Kind<'_>, labels: &str) -> Vec<Value> {
        self.try_list(namespace, kind, labels).unwrap_or_else(|error| panic!("{kind} {labels}: {error}"))
    }

    /// The same; the error where the API server does not answer.
    pub fn try_list(&self, namespace: &str, kind: Kind<'_>, labels: &str) -> Result<Vec<Value>, String> {
        let params = ListParams::default().labels(labels).limit(MAX_LISTED);
        let found = self.block_on(self.api(namespace, kind).list(&params));
        found.map(|list| list.items.into_iter().map(value).collect()).map_err(|error| error.to_string())
    }

    /// Deletes an object, which may be gone already; does not wait for its end.
    pub fn delete(&self, namespace: &str, kind: Kind<'_>, name: &str) {
        self.try_delete(namespace, kind, name)
            .unwrap_or_else(|error| panic!("delete {kind} {name}: {error}"));
    }

    /// The same; what the API server says where it refuses.
    pub fn try_delete(&self, namespace: &str, kind: Kind<'_>, name: &str) -> Result<(), String> {
        match self.block_on(self.api(namespace, kind).delete(name, &DeleteParams::background())) {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error.to_string()),
            Ok(_) => Ok(()),
        }
    }

    /// Waits until an object is as `look` wants it; what `look` found. Where the API server does not answer, it is asked again.
    pub fn wait<T>(
        &self,
        (namespace, kind, name): (&str, Kind<'_>, &str),
        what: &str,
        within: Duration,
        mut look: impl FnMut(&Value) -> Option<T>,
    ) -> T {
        let started = Instant::now();
        let mut last = Ok(None);
        while started.elapsed() < within {
            last = self.try_get(namespace, kind, name);
            if let Ok(Some(object)) = &last
                && let Some(found) = look(object)
            {
                return found;
            }
            std::thread::sleep(POLL);
        }
        let last = match last {
            Ok(Some(object)) => serde_json::to_string_pretty(&object["status"]).unwrap_or_default(),
            Ok(None) => "it is not there".to_owned(),
            Err(error) => error,
        };
        panic!("{kind} {name}: not within {within:?}: {what}; last: {last}");
    }

    /// Waits until an object is gone. Where the API server does not answer, it is asked again.
    pub fn wait_until_gone(&self, namespace: &str, kind: Kind<'_>, name: &str, within: Duration) {
        let started = Instant::now();
        loop {
            let last = match self.try_get(namespace, kind, name) {
                Ok(None) => return,
                Ok(Some(object)) => format!("{object:#}"),
                Err(error) => error,
            };
            assert!(started.elapsed() < within, "{kind} {name} is not gone after {within:?}: {last}");
            std::thread::sleep(POLL);
        }
    }

    /// What a container of a pod has printed; the only one where none is named.
    pub fn log(&self, namespace: &str, pod: &str, container: Option<&str>) -> Result<String, String> {
        let container = container.map(|name| format!("?container={name}")).unwrap_or_default();
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log{container}");
        self.raw(&path)
    }

    /// The answer to a GET at a path of the API server.
    pub fn raw(&self, path: &str) -> Result<String, String> {
        let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
        self.block_on(self.client.request_text(request)).map_err(|error| error.to_string())
    }

    fn api(&self, namespace: &str, kind: Kind<'_>) -> Api<DynamicObject> {
        let resource = resource(kind);
        if namespace.is_empty() || is_of_the_cluster(kind) {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        }
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }
}

fn resource(kind: Kind<'_>) -> ApiResource {
    let (api_version, kind) = kind.rsplit_once('/').expect("a kind is written apiVersion/Kind");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

fn is_of_the_cluster(kind: Kind<'_>) -> bool {
    let kinds = [
        "Namespace",
        "Node",
        "PersistentVolume",
        "ClusterRole",
        "CSIDriver",
        "CSINode",
        "CustomResourceDefinition",
    ];
    kinds.iter().any(|name| kind.rsplit('/').next() == Some(name))
}

fn value(object: DynamicObject) -> Value {
    serde_json::to_value(object).expect("an object from JSON is JSON")
}

/// A condition of an object: status, reason, message.
pub fn condition<'a>(object: &'a Value, name: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let conditions = object["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == name)?;
    Some((
        found["status"].as_str().unwrap_or_default(),
        found["reason"].as_str().unwrap_or_default(),
        found["message"].as_str().unwrap_or_default(),
    ))
}
