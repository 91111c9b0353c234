//! Does a user learn what is wrong, where, and does all go well once it is cured?

use std::time::Duration;

use millrace_tests::kubernetes::bucket::{BUCKET, Bucket, Contents, KEY_ID, S3, SECRET_KEY};
use millrace_tests::kubernetes::cluster::Cluster;
use millrace_tests::kubernetes::namespace::{Namespace, READY, RUN};
use millrace_tests::kubernetes::objects::{DATASET, POD, STATEFUL_SET};
use millrace_tests::kubernetes::readers::{AT_DATA, SUM_ALL, check_sums};
use serde_json::json;

const FEW: Contents = Contents { objects: 3, bytes: 100_000 };

/// Waits until a condition's message contains all of `parts`.
fn wait_for_message(space: &Namespace<'_>, condition: &str, status: &str, parts: &[&str]) {
    let what = format!("{condition}={status} with {parts:?}");
    space.wait(DATASET, "data", &what, READY, |object| {
        let (found, reason, message) = millrace_tests::kubernetes::objects::condition(object, condition)?;
        let text = format!("{reason}: {message}");
        (found == status && parts.iter().all(|part| text.contains(part))).then_some(())
    });
}

#[test]
fn a_wrong_secret_is_named_and_its_cure_is_taken_up() {
    let Some(cluster) = Cluster::shared("a_wrong_secret_is_named_and_its_cure_is_taken_up") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, FEW);
    let wrong = |id: &str, secret: &str| {
        format!(
            "{{apiVersion: v1, kind: Secret, metadata: {{name: own}}, \
             stringData: {{AWS_ACCESS_KEY_ID: {id}, AWS_SECRET_ACCESS_KEY: {secret}}}}}"
        )
    };
    space.apply(&wrong("AKIAWRONG0XYZ9", "no-such-secret"));
    let source = bucket.source().replace(&format!("secretRef: {{name: {S3}}}"), "secretRef: {name: own}");
    space.apply(&format!(
        "apiVersion: millrace.dev/v1alpha1\nkind: Dataset\nmetadata: {{name: data}}\nspec: {{sources: [{source}]}}"
    ));
    wait_for_message(&space, "Indexed", "False", &[BUCKET, "own", "XYZ9"]);
    let dataset = space.get(DATASET, "data").unwrap().to_string();
    assert!(
        !dataset.contains("AKIAWRONG0XYZ9"),
        "the status shows more of the key id than its end: {dataset}"
    );
    space.apply(&wrong(KEY_ID, SECRET_KEY));
    // The kubelet brings the new contents into the pod within a minute or so.
    space.wait(DATASET, "data", "ready with the right secret", Duration::from_secs(180), |object| {
        let ready = millrace_tests::kubernetes::objects::condition(object, "Ready")?;
        (ready.0 == "True").then_some(())
    });
}

#[test]
fn a_secret_that_is_not_there_is_named() {
    let Some(cluster) = Cluster::shared("a_secret_that_is_not_there_is_named") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, FEW);
    let source = bucket.source().replace(&format!("secretRef: {{name: {S3}}}"), "secretRef: {name: nowhere}");
    space.apply(&format!(
        "apiVersion: millrace.dev/v1alpha1\nkind: Dataset\nmetadata: {{name: data}}\nspec: {{sources: [{source}]}}"
    ));
    wait_for_message(&space, "Indexed", "False", &["nowhere"]);
}

#[test]
fn a_bucket_that_is_not_there_is_named() {
    let Some(cluster) = Cluster::shared("a_bucket_that_is_not_there_is_named") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, FEW);
    let source = bucket.source().replace(&format!("bucket: {BUCKET}"), "bucket: no-such-bucket");
    let dataset = |source: &str| {
        format!(
            "apiVersion: millrace.dev/v1alpha1\nkind: Dataset\nmetadata: {{name: data}}\nspec: {{sources: [{source}]}}"
        )
    };
    space.apply(&dataset(&source));
    wait_for_message(&space, "Indexed", "False", &["no-such-bucket"]);
    space.apply(&dataset(&bucket.source()));
    space.wait_for_condition("data", "Ready", "True");
    space.pod("reader", AT_DATA, None, SUM_ALL);
    check_sums(&space.output("reader", RUN), &FEW);
}

#[test]
fn a_bad_annotation_is_refused_with_the_right_form() {
    let Some(cluster) = Cluster::shared("a_bad_annotation_is_refused_with_the_right_form") else { return };
    let space = Namespace::new(&cluster);
    let form = "imagenet=/data";
    for (bad, cure) in [
        ("data", form),
        ("data=relative", form),
        ("=/data", form),
        ("data=/a,data=/a", "give each a path of its own"),
    ] {
        let message = space.refusal(&millrace_tests::kubernetes::readers::pod("bad", bad, None, "true"));
        assert!(message.contains("millrace.dev/dataset") && message.contains(cure), "{bad}: {message}");
    }
}

#[test]
fn a_field_that_does_not_exist_is_refused_by_strict_clients() {
    let Some(cluster) = Cluster::shared("a_field_that_does_not_exist_is_refused_by_strict_clients") else {
        return;
    };
    let space = Namespace::new(&cluster);
    let yaml = "{apiVersion: millrace.dev/v1alpha1, kind: Dataset, metadata: {name: data}, spec: {sources: \
                [{path: /, s3: {bucket: data, region: eu-west-1}}], worker: {replicas: 2}}}";
    let file = tempfile_with(yaml);
    let output = cluster
        .kubectl()
        .args(["create", "--validate=strict", "-n", &space.name, "-f"])
        .arg(file.path())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && message.contains("worker"), "{message}");
}

#[test]
fn block_size_cannot_change_not_even_by_removal() {
    let Some(cluster) = Cluster::shared("block_size_cannot_change_not_even_by_removal") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, FEW);
    space.dataset("data", &bucket, "workers: {cache: {blockSize: 4Mi}}");
    let change = |value: serde_json::Value| {
        cluster.objects.try_merge(&space.name, DATASET, "data", &json!({"spec": {"workers": value}}))
    };
    let message = change(json!({"cache": {"blockSize": "8Mi"}})).unwrap_err();
    assert!(message.contains("blockSize"), "{message}");
    change(json!({"cache": null})).unwrap_err();
}

#[test]
fn a_users_own_claim_of_the_name_is_left_alone() {
    let Some(cluster) = Cluster::shared("a_users_own_claim_of_the_name_is_left_alone") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, FEW);
    space.apply(
        "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], \
         storageClassName: mine, resources: {requests: {storage: 1Gi}}}}",
    );
    space.dataset("data", &bucket, "");
    space.wait(DATASET, "data", "a condition names the conflict", READY, |object| {
        object["status"]["conditions"].as_array()?.iter().find(|condition| {
            condition["reason"] == "NameConflict"
                && condition["message"].as_str().unwrap_or_default().contains("data")
        })?;
        Some(())
    });
    let claim = space.get("v1/PersistentVolumeClaim", "data").unwrap();
    assert_eq!(claim["spec"]["storageClassName"], "mine");
    space.delete("v1/PersistentVolumeClaim", "data");
    space.wait("v1/PersistentVolumeClaim", "data", "the Dataset's own takes its place", READY, |other| {
        (other["metadata"]["uid"] != claim["metadata"]["uid"]).then_some(())
    });
    space.wait_for_condition("data", "Ready", "True");
}

#[test]
fn an_exceeded_quota_is_named() {
    let Some(cluster) = Cluster::shared("an_exceeded_quota_is_named") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, FEW);
    // The S3 server is the one pod that fits.
    space.apply("{apiVersion: v1, kind: ResourceQuota, metadata: {name: tight}, spec: {hard: {pods: 1}}}");
    space.dataset("data", &bucket, "");
    wait_for_message(&space, "Ready", "False", &["tight"]);
    space.delete("v1/ResourceQuota", "tight");
    space.wait(DATASET, "data", "ready without the quota", Duration::from_secs(180), |object| {
        let ready = millrace_tests::kubernetes::objects::condition(object, "Ready")?;
        (ready.0 == "True").then_some(())
    });
}

#[test]
fn names_at_the_limits_work() {
    let Some(cluster) = Cluster::shared("names_at_the_limits_work") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, FEW);
    let long = "a-name-of-exactly-sixty-three-characters-which-is-the-longest-1";
    assert_eq!(long.len(), 63);
    for (pod, name) in [("first", "3d-shapes"), ("second", long)] {
        space.ready_dataset(name, &bucket, "");
        space.pod(pod, &format!("{name}=/data"), None, SUM_ALL);
        check_sums(&space.output(pod, RUN), &FEW);
    }
}

#[test]
fn what_a_user_breaks_comes_back() {
    let Some(cluster) = Cluster::shared("what_a_user_breaks_comes_back") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, FEW);
    space.ready_dataset("data", &bucket, "");
    space.merge(STATEFUL_SET, "millrace-data", &json!({"spec": {"replicas": 0}}));
    space.wait(STATEFUL_SET, "millrace-data", "one replica again", READY, |set| {
        (set["spec"]["replicas"] == 1 && set["status"]["readyReplicas"] == 1).then_some(())
    });
    let kinds = [
        ("v1/Service", "millrace-data"),
        ("policy/v1/PodDisruptionBudget", "millrace-data"),
        ("v1/PersistentVolumeClaim", "data"),
    ];
    for (kind, name) in kinds {
        let old =
            space.get(kind, name).unwrap_or_else(|| panic!("no {kind} {name}"))["metadata"]["uid"].clone();
        space.delete(kind, name);
        space.wait(kind, name, "another one is there", READY, |object| {
            (object["metadata"]["uid"] != old && object["metadata"]["deletionTimestamp"].is_null())
                .then_some(())
        });
    }
    space.wait_for_condition("data", "Ready", "True");
    space.pod("reader", AT_DATA, None, SUM_ALL);
    check_sums(&space.output("reader", RUN), &FEW);
}

#[test]
fn keys_that_are_deleted_come_back_for_the_pods_that_need_them() {
    let Some(cluster) = Cluster::shared("keys_that_are_deleted_come_back_for_the_pods_that_need_them") else {
        return;
    };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, FEW);
    space.ready_dataset("data", &bucket, "");
    // Nobody may look at Secrets: kubelet is the one who finds them missing, when a pod starts.
    for secret in ["millrace-data-data", "millrace-data-control"] {
        space.delete_and_wait("v1/Secret", secret, READY);
    }
    space.pod("reader", AT_DATA, None, SUM_ALL);
    check_sums(&space.output("reader", Duration::from_secs(240)), &FEW);
    let old = space.get(POD, "millrace-data-0").unwrap()["metadata"]["uid"].clone();
    space.delete(POD, "millrace-data-0");
    space.wait(POD, "millrace-data-0", "another worker is ready", Duration::from_secs(240), |pod| {
        let is_ready = millrace_tests::kubernetes::objects::condition(pod, "Ready")?.0 == "True";
        (pod["metadata"]["uid"] != old && is_ready).then_some(())
    });
    space.pod("second", AT_DATA, None, SUM_ALL);
    check_sums(&space.output("second", RUN), &FEW);
}

fn tempfile_with(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    file
}
