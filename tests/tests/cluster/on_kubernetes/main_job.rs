//! Is a dataset, once applied, there for whoever asks for it?

use std::time::{Duration, Instant};

use millrace_tests::kubernetes::bucket::{Bucket, Contents, FIRST};
use millrace_tests::kubernetes::cluster::Cluster;
use millrace_tests::kubernetes::namespace::{Namespace, READY, RUN};
use millrace_tests::kubernetes::objects::{DATASET, JOB, POD, condition};
use millrace_tests::kubernetes::readers::{AT_DATA, SUM_ALL, check_sums, job};

/// Small enough to be quick, large enough for blocks and packs.
const SMALL: Contents = Contents { objects: 40, bytes: 1_500_000 };

#[test]
fn an_annotated_job_reads_every_byte() {
    let Some(cluster) = Cluster::shared("an_annotated_job_reads_every_byte") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, SMALL);
    space.ready_dataset("data", &bucket, "");
    space.apply(&job("train", AT_DATA, SUM_ALL));
    space.wait(JOB, "train", "the job has ended", RUN, |job| {
        let status = &job["status"];
        (status["succeeded"] == 1 || status["failed"].as_i64() > Some(0)).then_some(())
    });
    let pods = space.list(POD, "batch.kubernetes.io/job-name=train");
    let pod = pods[0]["metadata"]["name"].as_str().unwrap().to_owned();
    check_sums(&space.output(&pod, RUN), &SMALL);
    assert_eq!(pods[0]["metadata"]["labels"]["millrace.dev/consumer"], "true");
}

#[test]
fn a_plain_claim_reads_without_annotation() {
    let Some(cluster) = Cluster::shared("a_plain_claim_reads_without_annotation") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, Contents::new(3, 100_000));
    space.ready_dataset("data", &bucket, "");
    let pod = millrace_tests::kubernetes::readers::pod("plain", "", None, SUM_ALL);
    let with_claim = pod.replace(
        "  restartPolicy: Never\n",
        "  restartPolicy: Never\n  volumes: [{name: d, persistentVolumeClaim: {claimName: data}}]\n",
    );
    let with_mount = with_claim
        .replace("  - name: reader\n", "  - name: reader\n    volumeMounts: [{name: d, mountPath: /data}]\n");
    space.apply(&with_mount);
    check_sums(&space.output("plain", RUN), &bucket.contents);
}

#[test]
fn three_pods_on_three_nodes_cost_one_read_of_the_bucket() {
    let Some(cluster) = Cluster::shared("three_pods_on_three_nodes_cost_one_read_of_the_bucket") else {
        return;
    };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, Contents::new(64, 16 << 20));
    space.ready_dataset(
        "data",
        &bucket,
        "workers: {replicas: 3, cache: {tiers: [{medium: Disk, quota: 2Gi}]}}\nwarmUp: {when: Never}",
    );
    // One is enough to be ready; those that join later take blocks over, which are read again.
    space.wait(DATASET, "data", "all workers serve", READY, |object| {
        (object["status"]["workers"]["ready"] == 3).then_some(())
    });
    bucket.reset_counters();
    let pods = ["one", "two", "three"];
    for (number, pod) in pods.iter().enumerate() {
        space.pod(pod, AT_DATA, Some(&format!("node{}", number + 1)), SUM_ALL);
    }
    for pod in pods {
        check_sums(&space.output(pod, Duration::from_secs(300)), &bucket.contents);
    }
    let (sent, size) = (bucket.counters().body_bytes, bucket.contents.total_bytes());
    println!("S3 has sent {sent} bytes for a dataset of {size}: {:.3} times", sent as f64 / size as f64);
    assert!(sent as f64 <= 1.02 * size as f64, "S3 has sent {sent} bytes for {size}");
}

#[test]
fn a_pod_may_come_before_its_dataset() {
    let Some(cluster) = Cluster::shared("a_pod_may_come_before_its_dataset") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, Contents::new(3, 100_000));
    space.pod("early", AT_DATA, None, SUM_ALL);
    // The scheduler says what it waits for: the claim of the Dataset's name.
    space.wait_for_event("Pod", "early", "data", READY);
    space.dataset("data", &bucket, "");
    check_sums(&space.output("early", RUN), &bucket.contents);
}

#[test]
fn sources_and_containers_are_chosen_by_annotation() {
    let Some(cluster) = Cluster::shared("sources_and_containers_are_chosen_by_annotation") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, Contents::new(3, 100_000));
    let source = bucket.source().replace("path: /,", "path: /train,");
    space.apply(&format!(
        "apiVersion: millrace.dev/v1alpha1\nkind: Dataset\nmetadata: {{name: data}}\nspec: {{sources: [{source}]}}"
    ));
    space.wait_for_condition("data", "Ready", "True");
    space.pod("two-places", "data/train=/data,data=/all", None, &format!("ls /all && {SUM_ALL}"));
    let output = space.output("two-places", RUN);
    assert_eq!(output.lines().next(), Some("train"), "{output}");
    check_sums(&output, &bucket.contents);
}

#[test]
fn writing_fails_and_says_read_only() {
    let Some(cluster) = Cluster::shared("writing_fails_and_says_read_only") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, Contents::new(3, 100_000));
    space.ready_dataset("data", &bucket, "");
    space.pod("writer", AT_DATA, None, &format!("touch /data/new; rm /data/{FIRST}; true"));
    // busybox prints errors of its applets to standard error, which is part of the log.
    let output = space.output("writer", RUN);
    assert_eq!(output.matches("Read-only file system").count(), 2, "{output}");
}

#[test]
fn the_first_byte_comes_within_ten_seconds_of_apply() {
    let Some(cluster) = Cluster::alone("the_first_byte_comes_within_ten_seconds_of_apply") else { return };
    let (mut taken, mut ready_after) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let space = Namespace::new(&cluster);
        let bucket = Bucket::start(&space, Contents::new(20, 1_000_000));
        let started = Instant::now();
        space.dataset("data", &bucket, "");
        space.pod(
            "reader",
            AT_DATA,
            None,
            &format!("head -c 1 /data/{FIRST} >/dev/null && echo read; sleep 60"),
        );
        let (mut runs_at, mut ready_at) = (None, None);
        while !cluster.objects.log(&space.name, "reader", None).is_ok_and(|log| log.contains("read")) {
            let worker = space.get(POD, "millrace-data-0").unwrap_or_default();
            let dataset = space.get(DATASET, "data").unwrap_or_default();
            let runs = worker["status"]["phase"] == "Running";
            let is_ready = condition(&dataset, "Ready").is_some_and(|ready| ready.0 == "True");
            runs_at = runs_at.or_else(|| runs.then(|| started.elapsed()));
            ready_at = ready_at.or_else(|| is_ready.then(|| started.elapsed()));
            assert!(started.elapsed() < RUN, "no byte within {RUN:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let read_at = started.elapsed();
        taken.push(read_at);
        // What has come between two looks has come by now.
        ready_after.push(ready_at.unwrap_or(read_at).saturating_sub(runs_at.unwrap_or(read_at)));
    }
    taken.sort();
    ready_after.sort();
    println!(
        "from apply to the first byte in a pod: {taken:?}; from a worker that runs to Ready: {ready_after:?}"
    );
    assert!(ready_after[2] <= Duration::from_secs(5), "median of {ready_after:?}");
    assert!(taken[2] <= Duration::from_secs(10), "median of {taken:?}");
}
