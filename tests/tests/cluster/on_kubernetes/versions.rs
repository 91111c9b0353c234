//! Do two versions of a Dataset stay apart where both are mounted?

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_tests::kubernetes::bucket::Bucket;
use millrace_tests::kubernetes::cluster::Cluster;
use millrace_tests::kubernetes::namespace::{Namespace, READY, RUN};
use millrace_tests::kubernetes::objects::{DATASET, POD, condition};
use millrace_tests::kubernetes::readers::AT_DATA;
use serde_json::json;

/// Writes a large object and some that share a block.
fn fill(word: &str) -> String {
    format!(
        "yes {word} | head -c 3000000 > /files/large; for n in 1 2 3; do yes {word}-$n | head -c 40000 > /files/small-$n; done"
    )
}

/// Sum of each file, by its name, past the kernel's cache.
fn sums(space: &Namespace<'_>, pod: &str) -> BTreeMap<String, String> {
    let script = "cd /data; for file in *; do \
                  echo \"$file $(dd if=$file iflag=direct bs=1M 2>/dev/null | sha256sum | cut -d' ' -f1)\"; done";
    let said = space.exec(pod, None, script);
    said.lines().filter_map(|line| line.split_once(' ')).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

/// Ends the worker's process; the kubelet starts it again in the same pod.
fn restart_worker(cluster: &Cluster, space: &Namespace<'_>) {
    let restarts = |pod: &serde_json::Value| pod["status"]["containerStatuses"][0]["restartCount"].as_i64();
    let pod = space.get(POD, "millrace-data-0").unwrap();
    let (node, uid, before) = (
        pod["spec"]["nodeName"].as_str().unwrap(),
        space.get(DATASET, "data").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned(),
        restarts(&pod),
    );
    let kill = format!(
        "for process in /proc/[0-9]*; do \
         case \"$(tr '\\0' ' ' <$process/cmdline)\" in '/cache-worker serve --dataset-uid={uid} '*) kill -KILL ${{process#/proc/}};; esac; \
         done; true"
    );
    cluster.in_node(node, &["sh", "-c", &kill]);
    space.wait(POD, "millrace-data-0", "it runs again", Duration::from_secs(90), |pod| {
        (restarts(pod) > before && condition(pod, "Ready")?.0 == "True").then_some(())
    });
}

#[test]
fn a_pod_keeps_its_version_beside_one_with_the_next_also_after_a_restart_of_the_worker() {
    let test = "a_pod_keeps_its_version_beside_one_with_the_next_also_after_a_restart_of_the_worker";
    let Some(cluster) = Cluster::shared(test) else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::of_files(&space, &fill("first"));
    // Nodes keep nothing: what the pods read comes from the worker.
    space.ready_dataset("data", &bucket, "mount: {nodeCache: {quota: 0}}");
    space.wait_for_condition("data", "Warm", "True");
    let version = || space.get(DATASET, "data").unwrap()["status"]["version"]["id"].clone();
    let first = version();
    space.pod("old", AT_DATA, Some("node2"), "sleep 3600");
    space.wait_until_running("old", RUN);
    let of_first = sums(&space, "old");
    assert_eq!(of_first.len(), 4, "{of_first:?}");

    bucket.change(&space, &format!("{}; yes new | head -c 50000 > /files/small-4", fill("second")));
    space.merge(DATASET, "data", &json!({"metadata": {"annotations": {"millrace.dev/refresh": "now"}}}));
    space.wait(DATASET, "data", "another version, loaded", READY, |object| {
        let is_new = object["status"]["version"]["id"] != first && condition(object, "Warm")?.0 == "True";
        (is_new && object["status"]["version"]["refresh"] == "now").then_some(())
    });
    space.pod("new", AT_DATA, Some("node2"), "sleep 3600");
    space.wait_until_running("new", RUN);
    let of_second = sums(&space, "new");
    assert_eq!(of_second.len(), 5, "{of_second:?}");
    assert!(of_first.iter().all(|(name, sum)| of_second[name] != *sum), "{of_first:?} {of_second:?}");
    assert_eq!(sums(&space, "old"), of_first);

    restart_worker(&cluster, &space);
    assert_eq!(sums(&space, "old"), of_first, "after the restart");
    assert_eq!(sums(&space, "new"), of_second, "after the restart");
    // One that comes now gets the new one.
    space.pod("third", AT_DATA, Some("node1"), "sleep 3600");
    space.wait_until_running("third", RUN);
    assert_eq!(sums(&space, "third"), of_second);
}
