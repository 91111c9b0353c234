//! Do readers go on without an error while what they depend on goes away and comes back?
//!
//! All read past the kernel's cache, from nodes that keep nothing, bytes that no worker was told to load ahead.

use std::time::Duration;

use millrace_tests::kubernetes::bucket::{Bucket, Contents};
use millrace_tests::kubernetes::cluster::{Cluster, SYSTEM};
use millrace_tests::kubernetes::namespace::{Namespace, READY};
use millrace_tests::kubernetes::objects::{DATASET, POD, STATEFUL_SET, condition};
use millrace_tests::kubernetes::readers::EndlessReader;
use serde_json::json;

const CONTENTS: Contents = Contents { objects: 24, bytes: 4 << 20 };

/// For a round of reads on a machine that does other things as well.
const ROUND: Duration = Duration::from_secs(90);

/// The spec of a Dataset with so many workers, of which nodes keep nothing.
fn uncached(workers: u32) -> String {
    format!(
        "workers: {{replicas: {workers}, cache: {{tiers: [{{medium: Disk, quota: 1Gi}}]}}}}\nwarmUp: {{when: Never}}\n\
         mount: {{nodeCache: {{quota: 0}}}}"
    )
}

/// Waits until a Dataset serves with so many workers.
fn wait_for_workers(space: &Namespace<'_>, workers: u64) {
    space.wait(DATASET, "data", &format!("{workers} workers serve"), Duration::from_secs(120), |object| {
        let ready = condition(object, "Ready")?.0 == "True";
        let state = &object["status"]["workers"];
        (ready && state["ready"] == workers && state["replicas"] == workers).then_some(())
    });
}

#[test]
fn readers_outlive_a_deleted_worker() {
    let Some(cluster) = Cluster::shared("readers_outlive_a_deleted_worker") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    space.ready_dataset("data", &bucket, &uncached(1));
    let reader = EndlessReader::start(&space, "reader", None, &CONTENTS);
    for _ in 0..2 {
        let old = space.get(POD, "millrace-data-0").unwrap()["metadata"]["uid"].clone();
        space.delete(POD, "millrace-data-0");
        space.wait(POD, "millrace-data-0", "another worker is ready", READY, |pod| {
            (pod["metadata"]["uid"] != old && condition(pod, "Ready")?.0 == "True").then_some(())
        });
        reader.wait_for_rounds(2, ROUND);
    }
    wait_for_workers(&space, 1);
}

#[test]
fn readers_outlive_scaling_out_and_in() {
    let Some(cluster) = Cluster::shared("readers_outlive_scaling_out_and_in") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    space.ready_dataset("data", &bucket, &uncached(1));
    let reader = EndlessReader::start(&space, "reader", None, &CONTENTS);
    for workers in [3, 2] {
        let scale = format!("--replicas={workers}");
        let status =
            cluster.kubectl().args(["scale", "-n", &space.name, "datasets/data", &scale]).status().unwrap();
        assert!(status.success());
        wait_for_workers(&space, workers);
        reader.wait_for_rounds(2, ROUND);
    }
    assert_eq!(space.get(STATEFUL_SET, "millrace-data").unwrap()["spec"]["replicas"], 2);
}

#[test]
fn readers_outlive_the_operator_and_its_successor_goes_on() {
    let Some(cluster) = Cluster::alone("readers_outlive_the_operator_and_its_successor_goes_on") else {
        return;
    };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    space.ready_dataset("data", &bucket, &uncached(1));
    let reader = EndlessReader::start(&space, "reader", None, &CONTENTS);
    let lease = cluster.objects.get(SYSTEM, "coordination.k8s.io/v1/Lease", "millrace-operator").unwrap();
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap();
    // The pod, and something that tells its lives apart.
    let holder = holder.split_once("_").map_or(holder, |(pod, _)| pod);
    let grace = json!({"gracePeriodSeconds": 0}).to_string();
    let status = cluster
        .kubectl()
        .args(["delete", "--raw", &format!("/api/v1/namespaces/{SYSTEM}/pods/{holder}"), "-f", "-"])
        .stdin(input(&grace))
        .status()
        .unwrap();
    assert!(status.success());
    space.merge(DATASET, "data", &json!({"spec": {"workers": {"replicas": 2}}}));
    space.wait(STATEFUL_SET, "millrace-data", "the successor has scaled", Duration::from_secs(15), |set| {
        (set["spec"]["replicas"] == 2).then_some(())
    });
    wait_for_workers(&space, 2);
    reader.wait_for_rounds(2, ROUND);
    wait_for_operator(&cluster);
}

#[test]
fn readers_outlive_a_minute_without_the_api_server() {
    let Some(cluster) = Cluster::alone("readers_outlive_a_minute_without_the_api_server") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    space.ready_dataset("data", &bucket, &uncached(2));
    let reader = EndlessReader::start(&space, "reader", None, &CONTENTS);
    let api_server = cluster.stop_api_server();
    // Long enough for leases to run out and for watches to be given up.
    std::thread::sleep(Duration::from_secs(60));
    api_server.end();
    reader.wait_for_rounds(2, ROUND);
    space.merge(DATASET, "data", &json!({"spec": {"workers": {"replicas": 1}}}));
    wait_for_workers(&space, 1);
    reader.wait_for_rounds(1, ROUND);
    wait_for_operator(&cluster);
}

#[test]
fn readers_outlive_the_crash_of_a_workers_node() {
    let Some(cluster) = Cluster::alone("readers_outlive_the_crash_of_a_workers_node") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    space.ready_dataset("data", &bucket, &uncached(3));
    let node_of = |pod: &str| space.get(POD, pod).unwrap()["spec"]["nodeName"].as_str().unwrap().to_owned();
    // The S3 server must live on.
    let s3 = node_of("s3");
    let victim = (0..3).map(|number| node_of(&format!("millrace-data-{number}"))).find(|node| *node != s3);
    let victim = victim.expect("workers are spread over three nodes");
    let reader = EndlessReader::start(&space, "reader", Some(&s3), &CONTENTS);
    let boot = boot_of(&cluster, &victim);
    let node = cluster.crash_node(&victim);
    reader.wait_for_rounds(2, ROUND);
    node.end();
    wait_for_boot_after(&boot, &cluster, &victim);
    wait_for_workers(&space, 3);
    reader.wait_for_rounds(1, ROUND);
    wait_for_operator(&cluster);
}

#[test]
fn readers_outlive_a_restart_of_the_kubelet() {
    let Some(cluster) = Cluster::alone("readers_outlive_a_restart_of_the_kubelet") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    space.ready_dataset("data", &bucket, &uncached(1));
    let reader = EndlessReader::start(&space, "reader", Some("node2"), &CONTENTS);
    cluster.restart_kubelet("node2");
    reader.wait_for_rounds(2, ROUND);
    // The driver registers with the new one: another pod mounts.
    EndlessReader::start(&space, "second", Some("node2"), &CONTENTS);
    reader.wait_for_rounds(1, ROUND);
}

#[test]
fn a_node_comes_back_from_a_reboot_and_pods_read() {
    let Some(cluster) = Cluster::alone("a_node_comes_back_from_a_reboot_and_pods_read") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    space.ready_dataset("data", &bucket, &uncached(1));
    let s3 = space.get(POD, "s3").unwrap()["spec"]["nodeName"].as_str().unwrap().to_owned();
    let worker = space.get(POD, "millrace-data-0").unwrap()["spec"]["nodeName"].as_str().unwrap().to_owned();
    let victim = ["node1", "node2", "node3"].into_iter().find(|node| *node != s3 && *node != worker).unwrap();
    drop(EndlessReader::start(&space, "before", Some(victim), &CONTENTS));
    let boot = boot_of(&cluster, victim);
    cluster.crash_node(victim).end();
    wait_for_boot_after(&boot, &cluster, victim);
    EndlessReader::start(&space, "after", Some(victim), &CONTENTS);
    for pod in ["before", "after"] {
        space.delete_and_wait(POD, pod, Duration::from_secs(60));
    }
    wait_for_operator(&cluster);
    let mounts = cluster.in_node(victim, &["cat", "/proc/self/mountinfo"]);
    let stale: Vec<&str> =
        mounts.lines().filter(|line| line.contains("/volumes/kubernetes.io~csi/")).collect();
    assert!(stale.is_empty(), "mounts of pods that are gone: {stale:#?}");
}

/// The boot that a node's kubelet has last spoken of.
fn boot_of(cluster: &Cluster, node: &str) -> String {
    let node = cluster.objects.get("", "v1/Node", node).unwrap();
    node["status"]["nodeInfo"]["bootID"].as_str().unwrap().to_owned()
}

/// Waits until a node is ready again, and the CSI driver on it. It looks ready from before until its new kubelet speaks.
fn wait_for_boot_after(boot: &str, cluster: &Cluster, node: &str) {
    cluster.objects.wait(("", "v1/Node", node), "the node is ready", Duration::from_secs(90), |node| {
        let is_new = node["status"]["nodeInfo"]["bootID"] != boot;
        (is_new && condition(node, "Ready")?.0 == "True").then_some(())
    });
    cluster.objects.wait(
        ("", "storage.k8s.io/v1/CSINode", node),
        "the driver has registered",
        Duration::from_secs(90),
        |node| {
            let drivers = node["spec"]["drivers"].as_array()?;
            drivers.iter().any(|driver| driver["name"] == "csi.millrace.dev").then_some(())
        },
    );
}

/// Waits until all replicas of the operator are ready, so that the next test finds it whole.
fn wait_for_operator(cluster: &Cluster) {
    cluster.objects.wait(
        (SYSTEM, "apps/v1/Deployment", "millrace-operator"),
        "all replicas are ready",
        Duration::from_secs(120),
        |deployment| (deployment["status"]["readyReplicas"] == deployment["spec"]["replicas"]).then_some(()),
    );
}

fn input(text: &str) -> std::process::Stdio {
    use std::io::{Seek, Write};
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.rewind().unwrap();
    file.into()
}
