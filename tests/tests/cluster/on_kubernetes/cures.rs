//! Is each trouble of a Dataset named by its condition and by `kubectl millrace why`, and over once it is cured?

use std::time::Duration;

use millrace_tests::kubernetes::bucket::{Bucket, Contents, KEY_ID, S3, SECRET_KEY};
use millrace_tests::kubernetes::cluster::Cluster;
use millrace_tests::kubernetes::namespace::{Namespace, READY, RUN};
use millrace_tests::kubernetes::objects::{DATASET, EVENT, POD, STATEFUL_SET, condition};
use millrace_tests::kubernetes::plugin::Plugin;
use millrace_tests::kubernetes::readers::{AT_DATA, SUM_ALL, check_sums};
use serde_json::{Value, json};

const FEW: Contents = Contents { objects: 3, bytes: 100_000 };

/// For what Kubernetes itself tries again in its own time: a Secret's contents, pods that were refused.
const TRIED_AGAIN: Duration = Duration::from_secs(180);

/// Waits until a condition of a Dataset has a status and a reason, with a text in its message.
fn wait_for(space: &Namespace<'_>, dataset: &str, kind: &str, [status, reason, text]: [&str; 3]) {
    space.wait(DATASET, dataset, &format!("{kind}={status} {reason} {text}"), READY, |object| {
        let (found, why, message) = condition(object, kind)?;
        (found == status && why == reason && message.contains(text)).then_some(())
    });
}

fn wait_until_ready(space: &Namespace<'_>, dataset: &str) {
    space.wait(DATASET, dataset, "ready again", TRIED_AGAIN, |object| {
        (condition(object, "Ready")?.0 == "True").then_some(())
    });
}

/// A pod reads all of a Dataset.
fn check_reads(space: &Namespace<'_>, pod: &str, dataset: &str) {
    space.pod(pod, &format!("{dataset}=/data"), None, SUM_ALL);
    check_sums(&space.output(pod, RUN), &FEW);
}

#[test]
fn a_users_own_service_of_the_name_is_left_alone_and_named() {
    let Some(cluster) = Cluster::shared("a_users_own_service_of_the_name_is_left_alone_and_named") else {
        return;
    };
    let (space, plugin) = (Namespace::new(&cluster), Plugin::new(&cluster));
    let bucket = Bucket::start(&space, FEW);
    space.apply(
        "{apiVersion: v1, kind: Service, metadata: {name: millrace-data}, spec: {selector: {app: mine}, ports: [{port: 80}]}}",
    );
    let mine = space.get("v1/Service", "millrace-data").unwrap();
    space.dataset("data", &bucket, "");
    wait_for(&space, "data", "Ready", ["False", "NameConflict", "millrace-data"]);
    plugin.wait_for_broken(&space, "dataset/data", "workers", "NameConflict");
    let still = space.get("v1/Service", "millrace-data").unwrap();
    assert_eq!((&still["metadata"]["uid"], &still["spec"]), (&mine["metadata"]["uid"], &mine["spec"]));
    space.delete("v1/Service", "millrace-data");
    wait_until_ready(&space, "data");
    // However often it was tried again.
    let told = space.list(EVENT, "");
    let told: Vec<&Value> = told.iter().filter(|event| event["reason"] == "NameConflict").collect();
    assert!(told.len() == 1 && told[0]["count"].as_i64().is_none_or(|count| count == 1), "{told:#?}");
    check_reads(&space, "reader", "data");
}

#[test]
fn a_secret_that_comes_late_is_taken_up_without_a_restart() {
    let Some(cluster) = Cluster::shared("a_secret_that_comes_late_is_taken_up_without_a_restart") else {
        return;
    };
    let (space, plugin) = (Namespace::new(&cluster), Plugin::new(&cluster));
    let bucket = Bucket::start(&space, FEW);
    let source = bucket.source().replace(&format!("secretRef: {{name: {S3}}}"), "secretRef: {name: late}");
    space.apply(&format!(
        "{{apiVersion: millrace.dev/v1alpha1, kind: Dataset, metadata: {{name: data}}, spec: {{sources: [{source}]}}}}"
    ));
    wait_for(&space, "data", "Indexed", ["False", "ListingFailed", "late"]);
    plugin.wait_for_broken(&space, "dataset/data", "origin", "late");
    let life = || {
        let pod = space.get(POD, "millrace-data-0").unwrap();
        (pod["metadata"]["uid"].clone(), pod["status"]["containerStatuses"][0]["restartCount"].clone())
    };
    let before = life();
    space.apply(&format!(
        "{{apiVersion: v1, kind: Secret, metadata: {{name: late}}, stringData: {{AWS_ACCESS_KEY_ID: {KEY_ID}, \
         AWS_SECRET_ACCESS_KEY: {SECRET_KEY}}}}}"
    ));
    wait_until_ready(&space, "data");
    assert_eq!(life(), before, "the worker was restarted for it");
    check_reads(&space, "reader", "data");
}

#[test]
fn limits_of_the_namespace_and_nodes_that_take_no_worker_are_told_apart() {
    let Some(cluster) =
        Cluster::shared("limits_of_the_namespace_and_nodes_that_take_no_worker_are_told_apart")
    else {
        return;
    };
    let (space, plugin) = (Namespace::new(&cluster), Plugin::new(&cluster));
    let bucket = Bucket::start(&space, FEW);
    space.dataset("placed", &bucket, "workers: {template: {nodeSelector: {nobody: has-this}}}");
    wait_for(&space, "placed", "Ready", ["False", "Unschedulable", ""]);
    plugin.wait_for_broken(&space, "dataset/placed", "workers", "Unschedulable");
    space.apply(
        "{apiVersion: v1, kind: LimitRange, metadata: {name: small}, spec: {limits: [{type: Container, max: {memory: 64Mi}}]}}",
    );
    space.dataset("limited", &bucket, "");
    wait_for(&space, "limited", "Ready", ["False", "LimitRange", "memory"]);
    plugin.wait_for_broken(&space, "dataset/limited", "workers", "LimitRange");
    space.delete_and_wait("v1/LimitRange", "small", READY);
    // A worker that never ran has no cache to lose: nobody has to be asked.
    let anywhere = json!({"spec": {"workers": {"template": {"nodeSelector": null}}}});
    space.merge(DATASET, "placed", &anywhere);
    wait_until_ready(&space, "placed");
    wait_until_ready(&space, "limited");
    check_reads(&space, "first", "placed");
    check_reads(&space, "second", "limited");
}

#[test]
fn a_stateful_set_edited_by_hand_is_put_right() {
    let Some(cluster) = Cluster::shared("a_stateful_set_edited_by_hand_is_put_right") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, FEW);
    space.dataset("data", &bucket, "");
    // As users wait for it.
    for kind in ["Ready", "Warm"] {
        let wait = ["wait", &format!("--for=condition={kind}"), "dataset/data", "--timeout=60s"];
        let waited = cluster.kubectl().args(["-n", &space.name]).args(wait).output().unwrap();
        assert!(waited.status.success(), "{kind}: {waited:?}");
    }
    let set = space.get(STATEFUL_SET, "millrace-data").unwrap();
    let edit = json!({"spec": {"template": {"spec": {"containers": [{"name": "worker", "image": "registry.test/nobody:1"}]}}}});
    let strategic = ["patch", "statefulset", "millrace-data", "-n", &space.name, "-p", &edit.to_string()];
    assert!(cluster.kubectl().args(strategic).status().unwrap().success());
    let template = |object: &Value| object["spec"]["template"]["spec"].clone();
    space.wait(STATEFUL_SET, "millrace-data", "the template is ours again", READY, |object| {
        (template(object) == template(&set)).then_some(())
    });
    let old = space.get(POD, "millrace-data-0").unwrap()["metadata"]["uid"].clone();
    space.delete(POD, "millrace-data-0");
    space.wait(POD, "millrace-data-0", "a worker as ours", READY, |pod| {
        (pod["metadata"]["uid"] != old && condition(pod, "Ready")?.0 == "True").then_some(())
    });
    check_reads(&space, "reader", "data");
}

#[test]
fn a_bucket_that_is_away_is_told_while_it_is_and_no_longer() {
    let Some(cluster) = Cluster::shared("a_bucket_that_is_away_is_told_while_it_is_and_no_longer") else {
        return;
    };
    let (space, plugin) = (Namespace::new(&cluster), Plugin::new(&cluster));
    let bucket = Bucket::start(&space, FEW);
    space.ready_dataset("data", &bucket, "warmUp: {when: Never}");
    bucket.begin_outage(Duration::from_secs(600));
    space.pod("reader", AT_DATA, None, SUM_ALL);
    wait_for(&space, "data", "Degraded", ["True", "OriginUnavailable", ""]);
    plugin.wait_for_broken(&space, "reader", "origin", "OriginUnavailable");
    bucket.end_outage();
    // The read has waited.
    check_sums(&space.output("reader", RUN), &FEW);
    wait_for(&space, "data", "Degraded", ["False", "Healthy", ""]);
    assert_eq!(plugin.why(&space, "reader").0, Some(0));
}

#[test]
fn links_of_a_pod_that_its_author_broke_are_named() {
    let Some(cluster) = Cluster::shared("links_of_a_pod_that_its_author_broke_are_named") else { return };
    let (space, plugin) = (Namespace::new(&cluster), Plugin::new(&cluster));
    let bucket = Bucket::start(&space, FEW);
    space.ready_dataset("data", &bucket, "");
    space.pod("plain", "", None, "sleep 600");
    plugin.wait_for_broken(&space, "plain", "annotation", "names no dataset");
    let late = json!({"metadata": {"annotations": {"millrace.dev/dataset": "data=/data"}}});
    space.merge(POD, "plain", &late);
    plugin.wait_for_broken(&space, "plain", "webhook", "after its creation");
    space.pod("nowhere", "data/no-such-folder=/data", None, "true");
    plugin.wait_for_broken(&space, "nowhere", "containers", "subPath");
    space.apply(
        "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: taken}, spec: {accessModes: [ReadWriteOnce], \
         storageClassName: mine, resources: {requests: {storage: 1Gi}}}}",
    );
    space.dataset("taken", &bucket, "");
    space.pod("waits", "taken=/data", None, "true");
    plugin.wait_for_broken(&space, "waits", "claim", "somebody else's");
    space.delete("v1/PersistentVolumeClaim", "taken");
    wait_until_ready(&space, "taken");
    space.output("waits", RUN);
    assert_eq!(plugin.why(&space, "waits").0, Some(0));
}
