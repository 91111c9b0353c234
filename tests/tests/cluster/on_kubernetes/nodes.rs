//! Do pods read, come and go while nodes are drained, hang, or lose their driver?

use std::time::Duration;

use millrace_tests::kubernetes::bucket::{Bucket, Contents};
use millrace_tests::kubernetes::cluster::{Cluster, SYSTEM};
use millrace_tests::kubernetes::namespace::{Namespace, READY};
use millrace_tests::kubernetes::objects::{DATASET, POD, condition};
use millrace_tests::kubernetes::readers::EndlessReader;

const CONTENTS: Contents = Contents { objects: 24, bytes: 4 << 20 };

/// For a round of reads on a machine that does other things as well.
const ROUND: Duration = Duration::from_secs(90);

/// Three workers, of which nodes keep nothing.
const UNCACHED: &str = "workers: {replicas: 3, cache: {tiers: [{medium: Disk, quota: 1Gi}]}}\nwarmUp: {when: Never}\n\
                        mount: {nodeCache: {quota: 0}}";

fn node_of(space: &Namespace<'_>, pod: &str) -> String {
    space.get(POD, pod).unwrap()["spec"]["nodeName"].as_str().unwrap().to_owned()
}

/// A node with a worker and without the S3 server, and the node of the S3 server.
fn victim(space: &Namespace<'_>) -> (String, String) {
    let s3 = node_of(space, "s3");
    let workers = (0..3).map(|number| node_of(space, &format!("millrace-data-{number}")));
    let victim = workers.into_iter().find(|node| *node != s3);
    (victim.expect("workers are spread over three nodes"), s3)
}

fn wait_for_three_workers(space: &Namespace<'_>) {
    space.wait(DATASET, "data", "three workers serve", Duration::from_secs(120), |object| {
        (condition(object, "Ready")?.0 == "True" && object["status"]["workers"]["ready"] == 3).then_some(())
    });
}

#[test]
fn a_drained_node_loses_its_pods_and_no_reader_elsewhere_notices() {
    let Some(cluster) = Cluster::alone("a_drained_node_loses_its_pods_and_no_reader_elsewhere_notices")
    else {
        return;
    };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    space.ready_dataset("data", &bucket, UNCACHED);
    wait_for_three_workers(&space);
    let (victim, s3) = victim(&space);
    let stays = EndlessReader::start(&space, "stays", Some(&s3), &CONTENTS);
    EndlessReader::start(&space, "goes", Some(&victim), &CONTENTS);
    let drain = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s"];
    let drained = cluster.kubectl().args(["drain", &victim]).args(drain).output().unwrap();
    let uncordoned = cluster.kubectl().args(["uncordon", &victim]).output().unwrap();
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    assert!(uncordoned.status.success());
    assert!(space.get(POD, "goes").is_none(), "the pod hangs on the drained node");
    stays.wait_for_rounds(2, ROUND);
    wait_for_three_workers(&space);
    EndlessReader::start(&space, "returns", Some(&victim), &CONTENTS);
}

#[test]
fn readers_go_round_a_node_that_hangs() {
    let Some(cluster) = Cluster::alone("readers_go_round_a_node_that_hangs") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    space.ready_dataset("data", &bucket, UNCACHED);
    wait_for_three_workers(&space);
    let (victim, s3) = victim(&space);
    let reader = EndlessReader::start(&space, "reader", Some(&s3), &CONTENTS);
    let node = cluster.freeze_node(&victim);
    reader.wait_for_rounds(2, ROUND);
    node.end();
    wait_for_three_workers(&space);
    reader.wait_for_rounds(1, ROUND);
}

#[test]
fn a_new_driver_serves_new_pods_and_lets_old_ones_end() {
    let Some(cluster) = Cluster::alone("a_new_driver_serves_new_pods_and_lets_old_ones_end") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    space.ready_dataset("data", &bucket, UNCACHED);
    // It loses its mount with the driver's pod: that is a known limit.
    drop(EndlessReader::start(&space, "old", Some("node2"), &CONTENTS));
    let drivers = cluster.objects.list(SYSTEM, POD, "app.kubernetes.io/component=csi-driver");
    let driver =
        drivers.iter().find(|pod| pod["spec"]["nodeName"] == "node2").expect("a driver on each node");
    let name = driver["metadata"]["name"].as_str().unwrap();
    cluster.objects.delete(SYSTEM, POD, name);
    cluster.objects.wait_until_gone(SYSTEM, POD, name, Duration::from_secs(90));
    let reader = EndlessReader::start(&space, "new", Some("node2"), &CONTENTS);
    space.delete_and_wait(POD, "old", READY);
    reader.wait_for_rounds(1, ROUND);
    space.delete_and_wait(POD, "new", READY);
    let mounts = cluster.in_node("node2", &["cat", "/proc/self/mountinfo"]);
    let left: Vec<&str> =
        mounts.lines().filter(|line| line.contains("/volumes/kubernetes.io~csi/")).collect();
    assert!(left.is_empty(), "mounts of pods that are gone: {left:#?}");
}
