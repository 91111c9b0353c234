//! How does a test keep to itself in a cluster, and leave nothing there?

use std::time::{Duration, Instant};

use serde_json::Value;

use super::bucket::Bucket;
use super::cluster::Cluster;
use super::objects::{DATASET, Kind, POD, condition};
use super::{diagnosis, readers};

/// For the namespace to go with all that is in it.
const END: Duration = Duration::from_secs(120);

/// For a Dataset to become ready on a busy machine.
pub const READY: Duration = Duration::from_secs(60);

/// For a pod to start, read and end.
pub const RUN: Duration = Duration::from_secs(120);

/// For a replica of the webhook that has ended to be noticed, which takes the cluster as long as the death of a node.
const UNREACHABLE: Duration = Duration::from_secs(60);

/// A namespace with the strictest Pod Security; deleted with this value, which fails the test where something stays.
pub struct Namespace<'a> {
    /// Its name.
    pub name: String,
    /// Its cluster.
    pub cluster: &'a Cluster,
}

impl<'a> Namespace<'a> {
    /// A new one.
    pub fn new(cluster: &'a Cluster) -> Self {
        let name = format!("t-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        let yaml = format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: \
             {{pod-security.kubernetes.io/enforce: restricted, millrace-tests: \"true\"}}}}}}"
        );
        cluster.objects.apply("", &yaml);
        let new = Self { name, cluster };
        // Pods are refused until the namespace has its service account; after the API server was away, the controller
        // that makes it looks again only after up to a minute.
        new.wait("v1/ServiceAccount", "default", "it is there", Duration::from_secs(150), |_| Some(()));
        new
    }

    /// Applies YAML here.
    pub fn apply(&self, yaml: &str) {
        self.cluster.objects.apply(&self.name, yaml);
    }

    /// Applies YAML here; what the API server says where it refuses.
    pub fn try_apply(&self, yaml: &str) -> Result<(), String> {
        self.cluster.objects.try_apply(&self.name, yaml)
    }

    /// What the API server, or the webhook, says when it refuses YAML.
    pub fn refusal(&self, yaml: &str) -> String {
        self.try_apply(yaml).expect_err("the API server should refuse this")
    }

    /// Merges a change into an object.
    pub fn merge(&self, kind: Kind<'_>, name: &str, change: &Value) {
        self.cluster.objects.merge(&self.name, kind, name, change);
    }

    /// An object, if it is there.
    pub fn get(&self, kind: Kind<'_>, name: &str) -> Option<Value> {
        self.cluster.objects.get(&self.name, kind, name)
    }

    /// Objects of a kind that carry the labels.
    pub fn list(&self, kind: Kind<'_>, labels: &str) -> Vec<Value> {
        self.cluster.objects.list(&self.name, kind, labels)
    }

    /// Deletes an object.
    pub fn delete(&self, kind: Kind<'_>, name: &str) {
        self.cluster.objects.delete(&self.name, kind, name);
    }

    /// Deletes an object and waits until it is gone.
    pub fn delete_and_wait(&self, kind: Kind<'_>, name: &str, within: Duration) {
        self.delete(kind, name);
        self.cluster.objects.wait_until_gone(&self.name, kind, name, within);
    }

    /// Waits for an object; what `look` found.
    pub fn wait<T>(
        &self,
        kind: Kind<'_>,
        name: &str,
        what: &str,
        within: Duration,
        look: impl FnMut(&Value) -> Option<T>,
    ) -> T {
        self.cluster.objects.wait((&self.name, kind, name), what, within, look)
    }

    /// Waits until a condition of a Dataset has a status; its reason and its message.
    pub fn wait_for_condition(&self, dataset: &str, name: &str, status: &str) -> (String, String) {
        let what = format!("{name}={status}");
        self.wait(DATASET, dataset, &what, READY, |object| {
            let generation = object["metadata"]["generation"].as_i64();
            let is_current = object["status"]["observedGeneration"].as_i64() == generation;
            let (found, reason, message) = condition(object, name)?;
            (is_current && found == status).then(|| (reason.to_owned(), message.to_owned()))
        })
    }

    /// Applies a Dataset of a bucket; `more` are further fields of its spec, as lines of YAML without indentation.
    pub fn dataset(&self, name: &str, bucket: &Bucket, more: &str) {
        let more: String = more.lines().map(|line| format!("  {line}\n")).collect();
        let source = bucket.source();
        self.apply(&format!(
            "apiVersion: millrace.dev/v1alpha1\nkind: Dataset\nmetadata: {{name: \"{name}\"}}\nspec:\n  sources: [{source}]\n{more}"
        ));
    }

    /// Applies a Dataset of a bucket and waits until it is ready.
    pub fn ready_dataset(&self, name: &str, bucket: &Bucket, more: &str) {
        self.dataset(name, bucket, more);
        self.wait_for_condition(name, "Ready", "True");
    }

    /// A pod with a Dataset's annotation that runs a script of a shell, once.
    pub fn pod(&self, name: &str, annotation: &str, node: Option<&str>, script: &str) {
        self.apply(&readers::pod(name, annotation, node, script));
    }

    /// Such a pod, as a controller makes it: asked for again while the API server does not reach the webhook, whose replica may
    /// have gone with its node a moment ago.
    pub fn pod_of_a_controller(&self, name: &str, annotation: &str, node: Option<&str>, script: &str) {
        let started = Instant::now();
        while let Err(error) = self.try_apply(&readers::pod(name, annotation, node, script)) {
            let is_over = started.elapsed() > UNREACHABLE;
            assert!(error.contains("failed calling webhook") && !is_over, "pod {name}: {error}");
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// Waits until a pod has ended well; what it has printed.
    pub fn output(&self, pod: &str, within: Duration) -> String {
        let phase = self.wait(POD, pod, "the pod has ended", within, |object| {
            let phase = object["status"]["phase"].as_str()?;
            ["Succeeded", "Failed"].contains(&phase).then(|| phase.to_owned())
        });
        let log = self.log(pod);
        assert_eq!(phase, "Succeeded", "pod {pod}: {log}");
        log
    }

    /// Runs a script of a shell in a container of a pod; what it has printed.
    pub fn exec(&self, pod: &str, container: Option<&str>, script: &str) -> String {
        let mut kubectl = self.cluster.kubectl();
        kubectl.args(["exec", "-n", &self.name, pod]);
        if let Some(container) = container {
            kubectl.args(["-c", container]);
        }
        let output = kubectl.args(["--", "/bin/sh", "-ec", script]).output().unwrap();
        assert!(output.status.success(), "in pod {pod}: {script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a pod has printed.
    pub fn log(&self, pod: &str) -> String {
        let log = self.cluster.objects.log(&self.name, pod, None);
        log.unwrap_or_else(|error| panic!("log of {pod}: {error}"))
    }

    /// Waits until a pod is ready; the node that it runs on.
    pub fn wait_until_running(&self, pod: &str, within: Duration) -> String {
        self.wait(POD, pod, "the pod is ready", within, |object| {
            let ready = condition(object, "Ready")?.0 == "True";
            ready.then(|| object["spec"]["nodeName"].as_str().map(str::to_owned))?
        })
    }

    /// Messages of the events about an object, each behind its reason.
    pub fn events(&self, kind: &str, name: &str) -> Vec<String> {
        let about = |event: &Value| {
            event["involvedObject"]["kind"] == kind && event["involvedObject"]["name"] == name
        };
        let text = |event: &Value| {
            format!(
                "{}: {}",
                event["reason"].as_str().unwrap_or_default(),
                event["message"].as_str().unwrap_or_default()
            )
        };
        self.list(super::objects::EVENT, "").iter().filter(|event| about(event)).map(text).collect()
    }

    /// Waits for an event about an object that contains `text`; the whole of it.
    pub fn wait_for_event(&self, kind: &str, name: &str, text: &str, within: Duration) -> String {
        let started = std::time::Instant::now();
        loop {
            let events = self.events(kind, name);
            if let Some(found) = events.iter().find(|event| event.contains(text)) {
                return found.clone();
            }
            assert!(started.elapsed() < within, "no event of {kind} {name} with {text:?}: {events:#?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            diagnosis::print(self);
            self.cluster.objects.delete("", "v1/Namespace", &self.name);
            return;
        }
        self.cluster.objects.delete("", "v1/Namespace", &self.name);
        let gone = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.cluster.objects.wait_until_gone("", "v1/Namespace", &self.name, END);
        }));
        if let Err(why) = gone {
            diagnosis::print(self);
            std::panic::resume_unwind(why);
        }
        let volumes = self.cluster.objects.list("", "v1/PersistentVolume", "");
        let left: Vec<&Value> = volumes
            .iter()
            .filter(|volume| volume["spec"]["claimRef"]["namespace"] == self.name.as_str())
            .map(|volume| &volume["metadata"]["name"])
            .collect();
        assert!(left.is_empty(), "volumes outlive their namespace: {left:?}");
    }
}
