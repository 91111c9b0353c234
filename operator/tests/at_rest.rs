//! Does the operator write nothing where nothing has changed? The whole controller, against an API server and a worker that are
//! not there but for their protocols; the test is Kubernetes' controllers.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod fake_api;
mod fake_worker;

use std::sync::Arc;
use std::time::Duration;

use fake_api::FakeApi;
use fake_worker::FakeWorker;
use millrace_api::keys::Key;
use millrace_control::proto::{Degraded, ObjectFailure};
use millrace_operator::build::WorkerImage;
use millrace_operator::controller::run::{Setup, run};
use millrace_operator::lease::Held;
use millrace_operator::metrics::Metrics;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const DATASET: &str = "/apis/millrace.dev/v1alpha1/namespaces/vision/datasets/imagenet";
const SET: &str = "/apis/apps/v1/namespaces/vision/statefulsets/millrace-imagenet";
const VOLUME: &str = "/api/v1/persistentvolumes/millrace-6e9f";
const CLAIM: &str = "/api/v1/namespaces/vision/persistentvolumeclaims/imagenet";
const CLAIMS: &str = "POST /api/v1/namespaces/vision/persistentvolumeclaims";
const SERVICES: &str = "POST /api/v1/namespaces/vision/services";
const SECRETS: &str = "POST /api/v1/namespaces/vision/secrets";
const STATUS: &str = "PATCH /apis/millrace.dev/v1alpha1/namespaces/vision/datasets/imagenet/status";

/// For a write that should not be: those that come late come within this of what causes them.
const QUIET: Duration = Duration::from_millis(1500);

struct Bed {
    api: FakeApi,
    worker: FakeWorker,
    operator: Operator,
}

struct Operator {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    metrics: Arc<Metrics>,
}

fn master() -> Key {
    Key::new([7; 32])
}

impl Operator {
    fn start(api: &FakeApi) -> Self {
        let metrics = Arc::new(Metrics::register(&prometheus::Registry::new()).unwrap());
        let setup = Setup {
            instance: "operator-0".into(),
            image: WorkerImage { image: "worker:1".into(), pull_policy: "IfNotPresent".into() },
            master: master(),
            held: Held::always(),
            metrics: Arc::clone(&metrics),
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(api.client.clone(), setup, stop.clone()));
        Self { stop, task, metrics }
    }
}

impl Bed {
    /// A Dataset that is new.
    async fn start() -> Self {
        let api = FakeApi::start().await;
        let worker = FakeWorker::start("millrace-imagenet-0", Key::control_key(&master(), "6e9f")).await;
        api.put(
            DATASET,
            json!({
                "apiVersion": "millrace.dev/v1alpha1", "kind": "Dataset",
                "metadata": {"name": "imagenet", "namespace": "vision", "uid": "6e9f", "generation": 1},
                "spec": {"sources": [{"path": "/", "s3": {"bucket": "bbb", "region": "r"}}]},
            }),
        );
        let operator = Operator::start(&api);
        Self { api, worker, operator }
    }

    /// The same, served, bound and warm.
    async fn converged() -> Self {
        let bed = Self::start().await;
        bed.make_pod().await;
        bed.bind().await;
        bed.until_condition("Ready", "True", "Serving").await;
        bed.until_condition("Warm", "True", "Warmed").await;
        bed
    }

    /// What the StatefulSet's controller, the scheduler and the kubelet do.
    async fn make_pod(&self) {
        let set = self.api.until("the StatefulSet", |api| api.get(SET)).await;
        let mut pod = set["spec"]["template"].clone();
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!("millrace-imagenet-0");
        pod["metadata"]["namespace"] = json!("vision");
        pod["metadata"]["labels"]["controller-revision-hash"] = json!("r1");
        for port in pod["spec"]["containers"][0]["ports"].as_array_mut().unwrap() {
            if port["name"] == "control" {
                port["containerPort"] = json!(self.worker.port);
            }
        }
        pod["status"] = json!({"phase": "Running", "podIP": "127.0.0.1"});
        self.api.put("/api/v1/namespaces/vision/pods/millrace-imagenet-0", pod);
        self.change(SET, |set| set["status"] = json!({"replicas": 1, "updateRevision": "r1"}));
    }

    /// What the volumes' controller does.
    async fn bind(&self) {
        self.offer_volume().await;
        self.api.until("the claim", |api| api.get(CLAIM)).await;
        self.change(CLAIM, |claim| claim["status"] = json!({"phase": "Bound"}));
        self.change(VOLUME, |volume| volume["status"] = json!({"phase": "Bound"}));
    }

    async fn offer_volume(&self) {
        self.api.until("the volume", |api| api.get(VOLUME)).await;
        self.change(VOLUME, |volume| volume["status"] = json!({"phase": "Available"}));
    }

    fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.api.get(path).unwrap();
        change(&mut object);
        self.api.put(path, object);
    }

    fn annotate(&self, key: &str, value: &str) {
        self.change(DATASET, |dataset| dataset["metadata"]["annotations"][key] = json!(value));
    }

    async fn until_condition(&self, kind: &str, status: &str, reason: &str) -> String {
        let look = |api: &FakeApi| {
            let dataset = api.get(DATASET)?;
            let mut conditions = dataset["status"]["conditions"].as_array()?.iter();
            let found = conditions.find(|condition| {
                condition["type"] == kind && condition["status"] == status && condition["reason"] == reason
            })?;
            Some(found["message"].as_str()?.to_owned())
        };
        self.api.until(&format!("{kind}={status} ({reason})"), look).await
    }

    /// Waits until nothing is written any more.
    async fn settled(&self) {
        // Numbers alone are written every 10 s.
        let are_final = |api: &FakeApi| {
            let status = &api.get(DATASET)?["status"];
            let warm_up = &status["warmUp"];
            let is_through = warm_up.is_null() || warm_up["bytesDone"] == warm_up["bytesTotal"];
            (status["cached"]["percent"] == 100 && is_through).then_some(())
        };
        self.api.until("the last numbers", are_final).await;
        let mut before = self.api.writes().len();
        loop {
            tokio::time::sleep(QUIET).await;
            let now = self.api.writes().len();
            if now == before {
                return;
            }
            before = now;
        }
    }

    /// Has the Dataset be reconciled with what was there before, and gives what was written.
    async fn again(&self) -> Vec<String> {
        self.settled().await;
        let before = self.api.writes();
        // A label that nobody looks at makes a change that is none. Of two reconciles the second began after the first change.
        for round in 0..2 {
            let ended = self.operator.metrics.duration.get_sample_count();
            self.change(DATASET, |dataset| {
                dataset["metadata"]["labels"] = json!({"round": format!("{round}-{ended}")});
            });
            let metrics = &self.operator.metrics;
            let more = |_: &FakeApi| (metrics.duration.get_sample_count() > ended).then_some(());
            self.api.until("a reconcile", more).await;
        }
        tokio::time::sleep(QUIET).await;
        self.api.writes().split_off(before.len())
    }

    /// Ends the operator, starts another, and gives what that one writes.
    async fn restarted(&mut self) -> Vec<String> {
        self.settled().await;
        self.operator.stop.cancel();
        tokio::time::timeout(Duration::from_secs(5), &mut self.operator.task).await.unwrap().unwrap();
        let before = self.api.writes().len();
        self.operator = Operator::start(&self.api);
        let metrics = Arc::clone(&self.operator.metrics);
        let is_connected = |_: &FakeApi| (metrics.workers.get() == 1).then_some(());
        self.api.until("the worker", is_connected).await;
        self.settled().await;
        self.api.writes().split_off(before)
    }

    /// Nothing is written by a second look, nor by a second operator.
    async fn finds_nothing_to_write(mut self) {
        assert_eq!(self.again().await, Vec::<String>::new());
        // Which Secrets there are it cannot know: it asks for both once, and is told that they are there. What the workers know
        // of each other it cannot know either: it tells them, in another epoch, which the status says.
        assert_eq!(self.restarted().await, [SECRETS, SECRETS, STATUS]);
        assert_eq!(self.again().await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_dataset_that_has_converged_is_left_alone() {
    let bed = Bed::converged().await;
    bed.finds_nothing_to_write().await;
}

#[tokio::test]
async fn a_warm_up_on_request_is_carried_out_once() {
    let bed = Bed::converged().await;
    bed.annotate("millrace.dev/warm", r#"{"id": "1", "paths": ["/train"]}"#);
    let is_through =
        |api: &FakeApi| (api.get(DATASET)?["status"]["warmUp"]["completedId"] == "1").then_some(());
    bed.api.until("the end of the warm-up", is_through).await;
    bed.finds_nothing_to_write().await;
}

#[tokio::test]
async fn a_refresh_is_carried_out_once() {
    let bed = Bed::converged().await;
    bed.annotate("millrace.dev/refresh", "monday");
    let is_through =
        |api: &FakeApi| (api.get(DATASET)?["status"]["version"]["refresh"] == "monday").then_some(());
    bed.api.until("the listing", is_through).await;
    bed.until_condition("Warm", "True", "Warmed").await;
    let version = bed.api.get(DATASET).unwrap()["status"]["version"]["id"].clone();
    assert_eq!(version, format!("{:032x}", 2), "listed once at first, and once again");
    bed.finds_nothing_to_write().await;
}

#[tokio::test]
async fn a_dataset_that_is_degraded_says_so_once() {
    let bed = Bed::converged().await;
    let lost =
        |path: &str| ObjectFailure { path: path.into(), reason: "NoSuchKey".into(), ..Default::default() };
    let degraded = Some(Degraded { objects: 2, last: vec![lost("/a"), lost("/b")] });
    bed.worker.state.send_modify(|state| state.degraded = degraded);
    bed.api
        .until("that it is degraded", |api| {
            let dataset = api.get(DATASET)?;
            let mut conditions = dataset["status"]["conditions"].as_array()?.iter();
            conditions.find(|condition| condition["type"] == "Degraded" && condition["status"] == "True")?;
            Some(())
        })
        .await;
    bed.finds_nothing_to_write().await;
}

#[tokio::test]
async fn an_object_of_somebody_else_is_only_looked_at_until_it_is_gone() {
    let bed = Bed::start().await;
    let foreign = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "imagenet", "namespace": "vision"},
        "spec": {"storageClassName": "mine"},
    });
    bed.api.put(CLAIM, foreign);
    bed.offer_volume().await;
    bed.make_pod().await;
    let message = bed.until_condition("Ready", "False", "NameConflict").await;
    assert!(message.contains("PersistentVolumeClaim imagenet is not ours"), "{message}");
    bed.until_condition("Warm", "True", "Warmed").await;
    assert_eq!(bed.again().await, Vec::<String>::new());
    assert_eq!(bed.api.asked(CLAIMS), 1, "it is run against once");
    assert_eq!(bed.api.get(CLAIM).unwrap()["spec"]["storageClassName"], "mine");
    bed.api.delete(CLAIM);
    bed.bind().await;
    bed.until_condition("Ready", "True", "Serving").await;
    bed.finds_nothing_to_write().await;
}

#[tokio::test]
async fn what_the_api_server_refuses_is_tried_less_often_and_at_once_when_the_user_says_so() {
    let bed = Bed::start().await;
    bed.api.refuse(SERVICES, Some("exceeded quota: tight"));
    bed.bind().await;
    bed.make_pod().await;
    let message = bed.until_condition("Ready", "False", "Refused").await;
    assert!(message.contains("exceeded quota: tight"), "{message}");
    bed.until_condition("Warm", "True", "Warmed").await;
    let tried = bed.api.asked(SERVICES);
    bed.again().await;
    assert!(bed.api.asked(SERVICES) <= tried + 1, "a look is no reason to try again");
    bed.api.refuse(SERVICES, None);
    bed.annotate("example.com/try", "now");
    bed.until_condition("Ready", "True", "Serving").await;
    bed.finds_nothing_to_write().await;
}
