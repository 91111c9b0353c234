//! Do keys stay where they belong: in Secrets, and in the memory of workers?

use millrace_tests::kubernetes::bucket::{Bucket, Contents, KEY_ID, S3, SECRET_KEY};
use millrace_tests::kubernetes::cluster::{Cluster, SYSTEM};
use millrace_tests::kubernetes::namespace::{Namespace, READY, RUN};
use millrace_tests::kubernetes::objects::{DATASET, POD, condition};
use millrace_tests::kubernetes::readers::{AT_DATA, SUM_ALL, check_sums};
use serde_json::Value;

const FEW: Contents = Contents { objects: 3, bytes: 100_000 };

/// Keys that no server knows, as no other test has them.
const WRONG_ID: &str = "AKIALEAKTEST00WXYZ";
const WRONG_SECRET: &str = "leak+test/secret+of+forty+characters/0000";

/// All that users, or other pods, can see without a right to Secrets: where, and what.
fn visible(cluster: &Cluster, space: &Namespace<'_>) -> Vec<(String, String)> {
    let mut seen = Vec::new();
    let kinds = [
        DATASET,
        POD,
        "v1/Event",
        "v1/Service",
        "v1/PersistentVolumeClaim",
        "v1/ConfigMap",
        "apps/v1/StatefulSet",
        "apps/v1/ControllerRevision",
        "policy/v1/PodDisruptionBudget",
    ];
    let of_space = kinds.iter().map(|kind| (*kind, space.list(kind, "")));
    let all = of_space.chain([("v1/PersistentVolume", cluster.objects.list("", "v1/PersistentVolume", ""))]);
    for (kind, objects) in all {
        for object in objects {
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            // The server's own pod has the id of its key in its arguments.
            if !(kind == POD && name == S3) {
                seen.push((format!("{kind} {name}"), object.to_string()));
            }
        }
    }
    for (place, pods) in
        [(&*space.name, space.list(POD, "")), (SYSTEM, cluster.objects.list(SYSTEM, POD, ""))]
    {
        for pod in pods.iter().filter(|pod| pod["metadata"]["name"] != S3) {
            let name = pod["metadata"]["name"].as_str().unwrap();
            for container in pod["spec"]["containers"].as_array().unwrap() {
                let log = cluster.objects.log(place, name, container["name"].as_str());
                // One that has not started yet has none.
                seen.push((format!("log of {place}/{name}"), log.unwrap_or_default()));
            }
            if let Some(port) = admin_port(pod) {
                let path = format!("/api/v1/namespaces/{place}/pods/{name}:{port}/proxy/metrics");
                seen.push((
                    format!("metrics of {place}/{name}"),
                    cluster.objects.raw(&path).unwrap_or_default(),
                ));
            }
        }
    }
    for node in ["node1", "node2", "node3"] {
        let script = "for process in /proc/[0-9]*; do case \"$(tr '\\0' ' ' <$process/cmdline)\" in \
                      /operator*|/csi-driver*|/cache-worker*) cat $process/cmdline $process/environ;; esac; done 2>/dev/null | tr '\\0' '\\n'";
        let said = cluster.in_node(node, &["sh", "-c", script]);
        assert!(said.contains("/csi-driver"), "no driver on {node}: {said}");
        seen.push((format!("arguments and environments on {node}"), said));
    }
    seen
}

fn admin_port(pod: &Value) -> Option<i64> {
    let ports = pod["spec"]["containers"][0]["ports"].as_array()?;
    ports.iter().find(|port| port["name"] == "admin")?["containerPort"].as_i64()
}

/// The values of a Secret that are no key ids.
fn values(cluster: &Cluster, space: &Namespace<'_>, secret: &str) -> Vec<String> {
    let template =
        "go-template={{range $name, $value := .data}}{{$value}} {{$value | base64decode}}{{\"\\n\"}}{{end}}";
    let args = ["get", "secret", secret, "-n", &space.name, "-o", template];
    let said = String::from_utf8(cluster.kubectl().args(args).output().unwrap().stdout).unwrap();
    said.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn keys_are_seen_nowhere_after_reads_and_errors() {
    let Some(cluster) = Cluster::shared("keys_are_seen_nowhere_after_reads_and_errors") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, FEW);
    space.apply(&format!(
        "{{apiVersion: v1, kind: Secret, metadata: {{name: own}}, stringData: {{AWS_ACCESS_KEY_ID: {WRONG_ID}, \
         AWS_SECRET_ACCESS_KEY: \"{WRONG_SECRET}\"}}}}"
    ));
    let source = bucket.source().replace(&format!("secretRef: {{name: {S3}}}"), "secretRef: {name: own}");
    space.apply(&format!(
        "{{apiVersion: millrace.dev/v1alpha1, kind: Dataset, metadata: {{name: refused}}, spec: {{sources: [{source}]}}}}"
    ));
    space.ready_dataset("data", &bucket, "warmUp: {when: Never}");
    space.wait(DATASET, "refused", "the refusal is told, with the end of the key's id", READY, |object| {
        let (status, _, message) = condition(object, "Indexed")?;
        (status == "False" && message.contains("WXYZ")).then_some(())
    });
    space.pod("reader", AT_DATA, None, SUM_ALL);
    check_sums(&space.output("reader", RUN), &FEW);

    let seen = visible(&cluster, &space);
    let mut secrets =
        vec![KEY_ID.to_owned(), SECRET_KEY.to_owned(), WRONG_ID.to_owned(), WRONG_SECRET.to_owned()];
    for secret in ["own", "s3", "millrace-data-data", "millrace-data-control"] {
        let values = values(&cluster, &space, secret);
        assert!(values.len() >= 2, "{secret} has no value");
        secrets.extend(values);
    }
    for (place, text) in &seen {
        for secret in &secrets {
            assert!(!text.contains(secret.as_str()), "{place} shows {secret}: {text}");
        }
    }
    let has = |what: &str| seen.iter().any(|(place, text)| place.contains(what) && !text.is_empty());
    for what in ["log of", "metrics of", "Event", "StatefulSet", "PersistentVolume "] {
        assert!(has(what), "nothing was looked at of {what}");
    }
}
