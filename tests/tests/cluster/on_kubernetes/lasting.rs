//! Does what is cached outlive workers' pods where their volumes do?

use std::time::Duration;

use millrace_tests::kubernetes::bucket::{Bucket, Contents};
use millrace_tests::kubernetes::cluster::Cluster;
use millrace_tests::kubernetes::namespace::{Namespace, READY, RUN};
use millrace_tests::kubernetes::objects::{DATASET, POD, condition};
use millrace_tests::kubernetes::readers::{AT_DATA, SUM_ALL, check_sums};
use serde_json::json;

const CONTENTS: Contents = Contents { objects: 6, bytes: 2_000_000 };

const NODE: &str = "node2";

/// A folder of a node as a volume, which goes with this value.
struct LocalVolume<'a> {
    cluster: &'a Cluster,
    name: String,
    folder: String,
}

impl<'a> LocalVolume<'a> {
    /// One of a storage class that has the namespace's name.
    fn new(space: &Namespace<'a>) -> Self {
        let name = space.name.clone();
        let folder = format!("/var/lib/millrace-{name}");
        space.cluster.in_node(NODE, &["mkdir", "-p", &folder]);
        space.apply(&format!(
            "{{apiVersion: v1, kind: PersistentVolume, metadata: {{name: {name}}}, spec: {{capacity: {{storage: 2Gi}}, accessModes: \
             [ReadWriteOnce], storageClassName: {name}, persistentVolumeReclaimPolicy: Retain, local: {{path: {folder}}}, nodeAffinity: \
             {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [{NODE}]}}]}}]}}}}}}}}"
        ));
        Self { cluster: space.cluster, name, folder }
    }
}

impl Drop for LocalVolume<'_> {
    fn drop(&mut self) {
        self.cluster.objects.delete("", "v1/PersistentVolume", &self.name);
        self.cluster.in_node(NODE, &["rm", "-rf", &self.folder]);
    }
}

#[test]
fn blocks_outlive_a_deleted_worker_and_a_roll_that_nobody_has_to_allow() {
    let Some(cluster) =
        Cluster::shared("blocks_outlive_a_deleted_worker_and_a_roll_that_nobody_has_to_allow")
    else {
        return;
    };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    let volume = LocalVolume::new(&space);
    let class = &volume.name;
    space.ready_dataset(
        "data",
        &bucket,
        &format!(
            "workers: {{cache: {{tiers: [{{medium: Disk, quota: 1Gi, volume: {{volumeClaimTemplate: \
             {{storageClassName: {class}}}}}}}]}}}}\nmount: {{nodeCache: {{quota: 0}}}}"
        ),
    );
    space.wait_for_condition("data", "Warm", "True");
    let life = || space.get(POD, "millrace-data-0").unwrap()["metadata"]["uid"].clone();
    let wait_for_another = |than: &serde_json::Value| {
        space.wait(POD, "millrace-data-0", "another worker is ready", Duration::from_secs(90), |pod| {
            (pod["metadata"]["uid"] != *than && condition(pod, "Ready")?.0 == "True").then_some(())
        });
    };
    bucket.reset_counters();
    let first = life();
    space.delete(POD, "millrace-data-0");
    wait_for_another(&first);
    // A change of the template: it rolls by itself, since nothing is lost.
    let second = life();
    let labels = json!({"spec": {"workers": {"template": {"labels": {"team": "vision"}}}}});
    space.merge(DATASET, "data", &labels);
    wait_for_another(&second);
    assert_eq!(space.get(POD, "millrace-data-0").unwrap()["metadata"]["labels"]["team"], "vision");
    space.pod("reader", AT_DATA, None, SUM_ALL);
    check_sums(&space.output("reader", RUN), &CONTENTS);
    let asked = bucket.counters();
    assert_eq!(asked.requests.get("GetObject"), None, "what the volume holds was read again: {asked:?}");
    // One that has ended holds the claim on.
    space.delete_and_wait(POD, "reader", RUN);
    space.delete_and_wait(DATASET, "data", READY + READY);
    drop(volume);
}
