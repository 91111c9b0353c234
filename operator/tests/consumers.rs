//! Are waiting pods told for what they wait, once?

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod fake_api;

use std::time::Duration;

use fake_api::FakeApi;
use kube::runtime::events::{Recorder, Reporter};
use millrace_operator::consumers::missing_keys::MissingKeys;
use millrace_operator::consumers::{Consumers, run};
use millrace_operator::lease::Held;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const POD: &str = "/api/v1/namespaces/vision/pods/train";
const DATASET: &str = "/apis/millrace.dev/v1alpha1/namespaces/vision/datasets/imagenet";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/vision/events/";

fn start(api: &FakeApi, lease: Held) -> mpsc::Receiver<MissingKeys> {
    let (missing_keys, missing) = mpsc::channel(8);
    let reporter = Reporter { controller: "millrace-operator".into(), instance: Some("operator-0".into()) };
    let recorder = Recorder::new(api.client.clone(), reporter);
    let consumers = Consumers { client: api.client.clone(), recorder, lease, missing_keys };
    tokio::spawn(run(consumers, CancellationToken::new()));
    missing
}

fn pod(phase: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "train", "namespace": "vision", "uid": "pod-1", "labels": {"millrace.dev/consumer": "true"},
            "annotations": {"millrace.dev/dataset": "imagenet=/data"},
        },
        "status": {"phase": phase},
    })
}

fn dataset(ready: &str, reason: &str, message: &str) -> Value {
    json!({
        "apiVersion": "millrace.dev/v1alpha1", "kind": "Dataset",
        "metadata": {"name": "imagenet", "namespace": "vision", "uid": "dataset-1"},
        "spec": {"sources": [{"path": "/", "s3": {"bucket": "bbb", "region": "r"}}]},
        "status": {"conditions": [{
            "type": "Ready", "status": ready, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    })
}

fn notes(api: &FakeApi) -> Vec<String> {
    let mut events = api.all(EVENTS);
    events
        .sort_by_key(|event| event["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap());
    events.iter().map(|event| event["note"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_pod_is_told_once_for_what_it_waits_and_again_when_that_changes() {
    let api = FakeApi::start().await;
    let _missing = start(&api, Held::always());
    api.put(POD, pod("Pending"));
    let first = api.until("the first event", |api| notes(api).first().cloned()).await;
    assert!(first.contains("\"imagenet\": there is none in namespace \"vision\""), "{first}");
    let event = &api.all(EVENTS)[0];
    assert_eq!(
        (&event["reason"], &event["regarding"]["uid"]),
        (&json!("WaitingForDataset"), &json!("pod-1"))
    );

    api.put(DATASET, dataset("False", "WaitingForWorkers", "0 of 2 workers serve"));
    let second = api.until("the second event", |api| notes(api).get(1).cloned()).await;
    assert!(second.contains("WaitingForWorkers: 0 of 2 workers serve"), "{second}");
    // Counts as they go by are not told; the next change is, and nothing comes between.
    api.put(DATASET, dataset("False", "WaitingForWorkers", "1 of 2 workers serve"));
    api.put(DATASET, dataset("False", "QuotaExceeded", "no more pods"));
    let third = api.until("the third event", |api| notes(api).get(2).cloned()).await;
    assert!(third.contains("QuotaExceeded: no more pods"), "{third}");
}

#[tokio::test]
async fn nobody_is_told_where_all_is_ready_or_without_the_lease() {
    let api = FakeApi::start().await;
    api.put(DATASET, dataset("True", "Serving", ""));
    api.put(POD, pod("Pending"));
    let _missing = start(&api, Held::always());
    let other = FakeApi::start().await;
    other.put(POD, pod("Pending"));
    let _others_missing = start(&other, Held::default());
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!((notes(&api), notes(&other)), (vec![], vec![]));
}

#[tokio::test]
async fn a_dataset_whose_key_is_gone_is_told_to_the_control_loop() {
    let api = FakeApi::start().await;
    api.put(DATASET, dataset("True", "Serving", ""));
    let mut missing = start(&api, Held::always());
    let failure = |at: usize, message: &str| {
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": format!("e{at}"), "namespace": "vision"},
            "involvedObject": {"kind": "Pod", "namespace": "vision", "name": "train"},
            "reason": "FailedMount", "message": message,
        });
        api.put(&format!("/api/v1/namespaces/vision/events/e{at}"), event);
    };
    // Datasets may come later than events: kubelet says it again and again.
    let told = async {
        for at in 0.. {
            failure(
                at,
                "MountVolume.SetUp failed for volume \"v\" : secrets \"millrace-imagenet-data\" not found",
            );
            if let Ok(told) = tokio::time::timeout(Duration::from_millis(200), missing.recv()).await {
                return told.unwrap();
            }
        }
        unreachable!()
    };
    let told = tokio::time::timeout(Duration::from_secs(20), told).await.unwrap();
    assert_eq!(told, MissingKeys { namespace: "vision".into(), dataset: "imagenet".into() });
}
