//! Does everything go when it should, and nothing before?

use std::time::Duration;

use millrace_tests::kubernetes::bucket::{Bucket, Contents};
use millrace_tests::kubernetes::cluster::Cluster;
use millrace_tests::kubernetes::namespace::{Namespace, READY};
use millrace_tests::kubernetes::objects::{DATASET, POD, condition};
use millrace_tests::kubernetes::readers::EndlessReader;

const CONTENTS: Contents = Contents { objects: 8, bytes: 1 << 20 };

/// What a Dataset has in its namespace.
const KINDS: [&str; 6] = [
    "apps/v1/StatefulSet",
    "v1/Service",
    "v1/Secret",
    "policy/v1/PodDisruptionBudget",
    "v1/PersistentVolumeClaim",
    POD,
];

/// Waits until nothing of a Dataset is left.
fn wait_until_nothing_is_left(cluster: &Cluster, space: &Namespace<'_>, uid: &str) {
    let labels = format!("millrace.dev/dataset-uid={uid}");
    for kind in KINDS {
        for object in space.list(kind, &labels) {
            let name = object["metadata"]["name"].as_str().unwrap();
            cluster.objects.wait_until_gone(&space.name, kind, name, READY);
        }
    }
    cluster.objects.wait_until_gone("", "v1/PersistentVolume", &format!("millrace-{uid}"), READY);
}

#[test]
fn a_dataset_that_is_read_waits_for_its_readers() {
    let Some(cluster) = Cluster::shared("a_dataset_that_is_read_waits_for_its_readers") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    space.ready_dataset("data", &bucket, "mount: {nodeCache: {quota: 0}}");
    let uid = space.get(DATASET, "data").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let reader = EndlessReader::start(&space, "reader", None, &CONTENTS);
    let foreground = ["delete", "-n", &space.name, "datasets/data", "--cascade=foreground", "--wait=false"];
    assert!(cluster.kubectl().args(foreground).status().unwrap().success());
    space.wait(DATASET, "data", "it says which pod it waits for", READY, |object| {
        let conditions = object["status"]["conditions"].as_array()?;
        conditions.iter().find(|condition| {
            let message = condition["message"].as_str().unwrap_or_default();
            condition["type"] == "Terminating" && message.contains("reader")
        })?;
        Some(())
    });
    reader.wait_for_rounds(2, Duration::from_secs(60));
    space.delete_and_wait(POD, "reader", READY);
    cluster.objects.wait_until_gone(&space.name, DATASET, "data", READY);
    wait_until_nothing_is_left(&cluster, &space, &uid);
}

#[test]
fn a_namespace_goes_whole_with_readers_in_it() {
    let Some(cluster) = Cluster::shared("a_namespace_goes_whole_with_readers_in_it") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    space.ready_dataset("data", &bucket, "");
    EndlessReader::start(&space, "reader", None, &CONTENTS);
    // The end of the namespace's guard waits for it, and for its volumes.
}

#[test]
fn a_dataset_of_the_same_name_is_another_one() {
    let Some(cluster) = Cluster::shared("a_dataset_of_the_same_name_is_another_one") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, CONTENTS);
    let uid_of = || space.get(DATASET, "data").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    space.ready_dataset("data", &bucket, "");
    let first = uid_of();
    space.delete_and_wait(DATASET, "data", READY);
    wait_until_nothing_is_left(&cluster, &space, &first);
    space.ready_dataset("data", &bucket, "");
    assert_ne!(uid_of(), first);
    let claim = space.get("v1/PersistentVolumeClaim", "data").unwrap();
    assert_eq!(claim["spec"]["volumeName"], format!("millrace-{}", uid_of()));
    let reader = EndlessReader::start(&space, "reader", None, &CONTENTS);
    reader.wait_for_rounds(1, READY);
    assert!(
        condition(&space.get(DATASET, "data").unwrap(), "Terminating").is_none_or(|found| found.0 != "True")
    );
}
