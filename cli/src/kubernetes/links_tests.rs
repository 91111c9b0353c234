//! Is the link that is named the one where something can be done?

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use super::super::status_text::tests::{dataset, holds as holds_so};
use super::*;

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn ready() -> Dataset {
    dataset(json!({
        "conditions": [
            holds_so("Accepted", "True", "Valid", ""),
            holds_so("Indexed", "True", "Listed", "3 objects of bucket imagenet"),
            holds_so("Ready", "True", "Serving", ""),
            holds_so("Degraded", "False", "Healthy", ""),
        ],
        "workers": {"desired": 2, "replicas": 2, "ready": 2, "selector": "a=b", "epoch": 1},
    }))
}

fn claim(labels: Value) -> PersistentVolumeClaim {
    from(json!({"metadata": {"name": "imagenet", "labels": labels}, "status": {"phase": "Bound"}}))
}

fn of_dataset(dataset: Found<Dataset>) -> DatasetEvidence {
    DatasetEvidence {
        name: "imagenet".into(),
        dataset,
        claim: Found::There(claim(json!({"app.kubernetes.io/managed-by": "millrace"}))),
        volume: Found::There(from(
            json!({"metadata": {"name": "millrace-u-1"}, "status": {"phase": "Bound"}}),
        )),
        workers: Found::There(vec![]),
    }
}

fn pod() -> PodEvidence {
    let pod = from(json!({
        "metadata": {"name": "train", "annotations": {"millrace.dev/dataset": "imagenet=/data"}},
        "spec": {
            "nodeName": "node-1", "containers": [],
            "volumes": [{"name": "millrace-imagenet", "persistentVolumeClaim": {"claimName": "imagenet"}}],
        },
        "status": {"phase": "Running"},
    }));
    let node = from(json!({
        "metadata": {"name": "node-1"}, "spec": {"drivers": [{"name": "csi.millrace.dev", "nodeID": "node-1"}]},
    }));
    PodEvidence { pod, events: vec![], node: Found::There(node) }
}

fn evidence(pod: Option<PodEvidence>, dataset: DatasetEvidence) -> Evidence {
    Evidence { namespace: "vision".into(), pod, datasets: vec![dataset] }
}

/// The broken link and the cure, of a pod `train` and a dataset.
fn broken(evidence: &Evidence) -> (&'static str, String, String) {
    let links = links(evidence);
    let link = first_broken(&links).unwrap_or_else(|| panic!("{links:#?}"));
    (link.link, link.says.clone(), link.cure.clone().unwrap())
}

fn with_condition(kind: &str, status: &str, reason: &str, message: &str) -> Dataset {
    let mut dataset = ready();
    let conditions = &mut dataset.status.as_mut().unwrap().conditions;
    conditions.retain(|condition| condition.type_ != kind);
    conditions.push(from(holds_so(kind, status, reason, message)));
    dataset
}

#[test]
fn where_all_holds_nothing_is_broken_and_every_link_is_told() {
    let links = links(&evidence(Some(pod()), of_dataset(Found::There(ready()))));
    assert!(links.iter().all(|link| link.state == State::Ok), "{links:#?}");
    let names: Vec<&str> = links.iter().map(|link| link.link).collect();
    let all =
        ["annotation", "webhook", "claim", "volume", "node", "containers", "dataset", "workers", "origin"];
    assert_eq!(names, all);
}

#[test]
fn a_missing_dataset_is_named_and_not_its_claim() {
    let mut missing = of_dataset(Found::Nothing);
    (missing.claim, missing.volume) = (Found::Nothing, Found::Nothing);
    let mut waiting = pod();
    waiting.pod.spec.as_mut().unwrap().node_name = None;
    let (link, says, cure) = broken(&evidence(Some(waiting), missing));
    assert_eq!(
        (link, says.as_str()),
        ("dataset", "there is no dataset \"imagenet\" in namespace \"vision\"")
    );
    assert!(cure.contains("kubectl apply"), "{cure}");
}

#[test]
fn a_bucket_that_refuses_is_named_and_all_else_waits() {
    let mut refused =
        with_condition("Indexed", "False", "ListingFailed", "bucket imagenet: 403 AccessDenied");
    let conditions = &mut refused.status.as_mut().unwrap().conditions;
    conditions.retain(|condition| condition.type_ != "Ready");
    conditions.push(from(holds_so("Ready", "False", "WaitingForIndex", "not listed")));
    let mut dataset = of_dataset(Found::There(refused));
    (dataset.claim, dataset.volume) = (Found::Nothing, Found::Nothing);
    let mut waiting = pod();
    waiting.pod.spec.as_mut().unwrap().node_name = None;
    let (link, says, _) = broken(&evidence(Some(waiting), dataset));
    assert_eq!((link, says.as_str()), ("origin", "ListingFailed: bucket imagenet: 403 AccessDenied"));
}

#[test]
fn workers_that_cannot_be_placed_are_named_with_the_schedulers_words() {
    let unplaced = with_condition("Ready", "False", "Unschedulable", "0 of 2 workers serve");
    let mut dataset = of_dataset(Found::There(unplaced));
    dataset.workers = Found::There(vec![from(json!({
        "metadata": {"name": "millrace-imagenet-0"},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]},
    }))]);
    let (link, says, cure) = broken(&evidence(None, dataset));
    assert_eq!(link, "workers");
    assert!(says.contains("millrace-imagenet-0: 0/3 nodes are available"), "{says}");
    assert!(cure.contains("nodeSelector"), "{cure}");
}

#[test]
fn a_pod_that_the_webhook_did_not_see_is_told_so() {
    let mut bare = pod();
    bare.pod.spec.as_mut().unwrap().volumes = None;
    let (link, says, cure) = broken(&evidence(Some(bare), of_dataset(Found::There(ready()))));
    assert!(
        link == "webhook" && says.contains("\"imagenet\"") && cure.contains("create the pod anew"),
        "{says}"
    );
}

#[test]
fn a_pod_without_annotation_and_claim_of_a_dataset_is_told_how() {
    let mut bare = pod();
    bare.pod.metadata.annotations = None;
    let nothing = Evidence { namespace: "vision".into(), pod: Some(bare.clone()), datasets: vec![] };
    let (link, _, cure) = broken(&nothing);
    assert!(link == "annotation" && cure.contains("\"imagenet=/data\""), "{cure}");
    let by_claim = links(&evidence(Some(bare), of_dataset(Found::There(ready()))));
    assert_eq!(first_broken(&by_claim), None);
}

#[test]
fn a_mount_that_fails_is_told_in_kubelets_words_and_a_node_without_driver_is_named() {
    let mut pending = pod();
    pending.pod.status.as_mut().unwrap().phase = Some("Pending".into());
    pending.events = vec![from(json!({
        "metadata": {}, "involvedObject": {}, "reason": "FailedMount", "message": "no worker answers",
    }))];
    let (link, says, _) = broken(&evidence(Some(pending.clone()), of_dataset(Found::There(ready()))));
    assert_eq!((link, says.as_str()), ("node", "on node \"node-1\": no worker answers"));
    pending.node = Found::There(from(json!({"metadata": {}, "spec": {"drivers": []}})));
    let (_, says, _) = broken(&evidence(Some(pending), of_dataset(Found::There(ready()))));
    assert!(says.contains("does not run on node \"node-1\""), "{says}");
}

#[test]
fn a_folder_that_the_dataset_has_not_is_told_as_such() {
    let mut pending = pod();
    pending.pod.status = from(json!({
        "phase": "Pending",
        "containerStatuses": [{
            "name": "main", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {
                "reason": "CreateContainerConfigError",
                "message": "failed to create subPath directory for volumeMount \"millrace-imagenet\"",
            }},
        }],
    }));
    let evidence = evidence(Some(pending), of_dataset(Found::There(ready())));
    let (link, _, cure) = broken(&evidence);
    assert!(link == "containers" && cure.contains("no such folder"), "{cure}");
    assert!(links(&evidence).iter().any(|link| link.link == "node" && link.state == State::Ok));
}

#[test]
fn somebody_elses_claim_is_named() {
    let mut taken = of_dataset(Found::There(ready()));
    taken.claim = Found::There(claim(json!({})));
    let (link, says, cure) = broken(&evidence(None, taken));
    assert!(link == "claim" && says.contains("somebody else's") && cure.contains("rename"), "{says}");
}

#[test]
fn a_running_pod_whose_bucket_is_away_is_told_of_the_bucket() {
    let degraded = with_condition("Degraded", "True", "OriginUnavailable", "no answer for 20 s");
    let (link, says, cure) = broken(&evidence(Some(pod()), of_dataset(Found::There(degraded))));
    assert!(link == "origin" && says.contains("no answer") && cure.contains("endpoint"), "{says}");
}

#[test]
fn workers_that_are_missing_or_cannot_write_are_not_told_as_the_bucket() {
    for reason in ["StoreFailed", "WorkersMissing"] {
        let degraded = with_condition("Degraded", "True", reason, "1 of 2 workers");
        let (link, says, cure) = broken(&evidence(Some(pod()), of_dataset(Found::There(degraded))));
        assert!(link == "workers" && says.contains("1 of 2") && cure != says, "{link}: {says}");
    }
}

#[test]
fn a_restart_that_waits_for_the_users_word_breaks_no_pod_and_says_how_to_give_it() {
    let pending = with_condition("Degraded", "True", "RollPending", "2 workers run with older settings");
    let links = links(&evidence(Some(pod()), of_dataset(Found::There(pending))));
    assert_eq!(first_broken(&links), None);
    let workers = links.iter().find(|link| link.link == "workers").unwrap();
    assert_eq!(workers.state, State::Waiting);
    assert!(workers.cure.as_ref().unwrap().contains("millrace.dev/roll="), "{workers:?}");
}

#[test]
fn a_dataset_that_is_deleted_says_whom_it_waits_for() {
    let mut deleted =
        with_condition("Terminating", "True", "WaitingForPods", "mounted by vision/train on node-1");
    deleted.metadata.deletion_timestamp = Some(from(json!("2026-01-01T00:00:00Z")));
    let conditions = &mut deleted.status.as_mut().unwrap().conditions;
    conditions.retain(|condition| condition.type_ != "Ready");
    conditions.push(from(holds_so("Ready", "False", "Deleting", "no new pod can mount it")));
    let links = links(&evidence(Some(pod()), of_dataset(Found::There(deleted))));
    let broken: Vec<&Link> = links.iter().filter(|link| link.state == State::Broken).collect();
    assert_eq!(broken.len(), 1, "{links:#?}");
    assert_eq!(broken[0].link, "dataset");
    assert!(broken[0].says.contains("mounted by vision/train"), "{broken:?}");
}

#[test]
fn what_may_not_be_seen_is_unknown_and_hides_nothing_else() {
    let mut hidden = of_dataset(Found::There(ready()));
    hidden.volume = Found::Unknown("get the volume: forbidden".into());
    let mut pod = pod();
    pod.node = Found::Unknown("forbidden".into());
    let links = links(&evidence(Some(pod), hidden));
    assert_eq!(first_broken(&links), None);
    assert!(links.iter().any(|link| link.link == "volume" && link.state == State::Unknown));
}

#[test]
fn every_reason_that_is_no_progress_has_a_cure() {
    use millrace_api::dataset::conditions::reason;
    for reason in [
        reason::INVALID,
        reason::LISTING_FAILED,
        reason::NAME_CONFLICT,
        reason::QUOTA_EXCEEDED,
        reason::LIMIT_RANGE,
        reason::POD_SECURITY,
        reason::REFUSED,
        reason::UNSCHEDULABLE,
        reason::IMAGE_PULL,
        reason::WORKER_CRASHES,
        reason::KEY_REFUSED,
        reason::ORIGIN_UNAVAILABLE,
        reason::STORE_FAILED,
        reason::OBJECTS_CHANGED,
        reason::OBJECTS_UNREADABLE,
        reason::WORKERS_MISSING,
        reason::NO_WORKERS,
    ] {
        assert!(cures::cure(reason).is_some() && !cures::is_progress(reason), "{reason}");
    }
}
