//! Does what a node keeps of a Dataset go with the Dataset?

use std::time::{Duration, Instant};

use millrace_tests::kubernetes::bucket::{Bucket, Contents};
use millrace_tests::kubernetes::cluster::{Cluster, SYSTEM};
use millrace_tests::kubernetes::namespace::{Namespace, READY, RUN};
use millrace_tests::kubernetes::objects::{DATASET, POD};
use millrace_tests::kubernetes::readers::{AT_DATA, SUM_ALL, check_sums};
use serde_json::json;

const CONTENTS: Contents = Contents { objects: 8, bytes: 1 << 20 };

const NODE: &str = "node2";

/// Workers elsewhere: of what they have on the node itself it would keep no copy.
const KEPT: &str = "warmUp: {when: Never}
mount: {nodeCache: {quota: 1Gi}}
workers: {template: {nodeSelector: {kubernetes.io/hostname: node1}}}";

/// A worker on the node.
const BESIDE: &str = "warmUp: {when: Never}
mount: {nodeCache: {quota: 1Gi}}
workers: {template: {nodeSelector: {kubernetes.io/hostname: node2}}}";

/// For the mount process to end some time after its last pod, and the driver to ask which Datasets live.
const WIPE: Duration = Duration::from_secs(120);

/// Bytes that the node keeps of a Dataset; none where it has no folder.
fn kept_bytes(cluster: &Cluster, uid: &str) -> Option<u64> {
    let script =
        format!("cd /var/lib/millrace/cache 2>/dev/null && du -s {uid} 2>/dev/null | cut -f1 || true");
    cluster.in_node(NODE, &["sh", "-c", &script]).trim().parse::<u64>().ok().map(|blocks| blocks * 1024)
}

fn wait_until_wiped(cluster: &Cluster, uid: &str) {
    let started = Instant::now();
    while let Some(bytes) = kept_bytes(cluster, uid) {
        assert!(started.elapsed() < WIPE, "{NODE} still keeps {bytes} bytes of Dataset {uid}");
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Has the node read all of a Dataset; its UID.
fn read_on_the_node(space: &Namespace<'_>, name: &str, bucket: &Bucket) -> String {
    space.ready_dataset(name, bucket, KEPT);
    let pod = format!("reads-{name}");
    space.pod_of_a_controller(&pod, &AT_DATA.replace("data=", &format!("{name}=")), Some(NODE), SUM_ALL);
    check_sums(&space.output(&pod, RUN), &CONTENTS);
    space.delete_and_wait(POD, &pod, READY);
    space.get(DATASET, name).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// Takes the driver from all nodes, and gives it back with this value.
struct NoDriver<'a>(&'a Cluster);

impl<'a> NoDriver<'a> {
    fn new(cluster: &'a Cluster) -> Self {
        let taken = Self(cluster);
        taken.set(json!("nowhere"));
        let started = Instant::now();
        while !cluster.objects.list(SYSTEM, POD, "app.kubernetes.io/component=csi-driver").is_empty() {
            assert!(started.elapsed() < READY, "the driver's pods do not go");
            std::thread::sleep(Duration::from_millis(200));
        }
        taken
    }

    fn set(&self, node: serde_json::Value) {
        let change =
            json!({"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}}});
        self.0.objects.merge(SYSTEM, "apps/v1/DaemonSet", "millrace-csi-driver", &change);
    }
}

impl Drop for NoDriver<'_> {
    fn drop(&mut self) {
        self.set(serde_json::Value::Null);
        // Others need it on each node.
        let rollout = ["rollout", "status", "-n", SYSTEM, "daemonset/millrace-csi-driver", "--timeout=120s"];
        let done = self.0.kubectl().args(rollout).status().is_ok_and(|status| status.success());
        assert!(done || std::thread::panicking(), "the driver does not come back");
    }
}

#[test]
fn what_a_worker_has_on_the_node_is_read_there_without_a_copy() {
    let Some(cluster) = Cluster::shared("what_a_worker_has_on_the_node_is_read_there_without_a_copy") else {
        return;
    };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    space.ready_dataset("data", &bucket, BESIDE);
    // The first one, on another node, has the worker fetch everything.
    for (pod, node) in [("elsewhere", "node3"), ("beside", NODE)] {
        space.pod_of_a_controller(pod, AT_DATA, Some(node), &format!("sleep 1; {SUM_ALL}"));
        check_sums(&space.output(pod, RUN), &CONTENTS);
    }
    let uid = space.get(DATASET, "data").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let bytes = kept_bytes(&cluster, &uid).expect("the node has a folder for it");
    assert!(bytes < CONTENTS.total_bytes() / 4, "{bytes} bytes were copied on {NODE}");
}

#[test]
fn what_a_node_keeps_of_a_dataset_goes_with_it() {
    let Some(cluster) = Cluster::shared("what_a_node_keeps_of_a_dataset_goes_with_it") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    let (gone, stays) =
        (read_on_the_node(&space, "gone", &bucket), read_on_the_node(&space, "stays", &bucket));
    let bytes = kept_bytes(&cluster, &gone).expect("the node keeps what was read");
    assert!(bytes >= CONTENTS.total_bytes(), "{bytes}");
    space.delete_and_wait(DATASET, "gone", READY);
    wait_until_wiped(&cluster, &gone);
    assert!(kept_bytes(&cluster, &stays).is_some_and(|bytes| bytes >= CONTENTS.total_bytes()));
}

#[test]
fn a_dataset_that_went_while_the_driver_was_away_leaves_nothing_on_the_node() {
    let Some(cluster) =
        Cluster::alone("a_dataset_that_went_while_the_driver_was_away_leaves_nothing_on_the_node")
    else {
        return;
    };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    let (gone, stays) =
        (read_on_the_node(&space, "gone", &bucket), read_on_the_node(&space, "stays", &bucket));
    let away = NoDriver::new(&cluster);
    space.delete_and_wait(DATASET, "gone", READY);
    assert!(kept_bytes(&cluster, &gone).is_some(), "nobody was there to take it away");
    drop(away);
    wait_until_wiped(&cluster, &gone);
    assert!(kept_bytes(&cluster, &stays).is_some_and(|bytes| bytes >= CONTENTS.total_bytes()));
}
