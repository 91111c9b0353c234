//! Do workers read without any key, by the web identity of their service account?

use millrace_tests::kubernetes::bucket::{Bucket, Contents};
use millrace_tests::kubernetes::cluster::Cluster;
use millrace_tests::kubernetes::namespace::{Namespace, READY, RUN};
use millrace_tests::kubernetes::objects::{DATASET, POD, condition};
use millrace_tests::kubernetes::readers::{AT_DATA, SUM_ALL, check_sums};
use serde_json::{Value, json};

const FEW: Contents = Contents { objects: 3, bytes: 100_000 };

const ROLE: &str = "arn:aws:iam::123456789012:role/dataset-reader";

/// What a pod mounts of service account tokens: their audiences.
fn audiences(pod: &Value) -> Vec<String> {
    let volumes = pod["spec"]["volumes"].as_array().unwrap().iter();
    let sources = volumes.flat_map(|volume| volume["projected"]["sources"].as_array().into_iter().flatten());
    let tokens = sources.filter(|source| source["serviceAccountToken"].is_object());
    // One of the API server's own names no audience.
    tokens
        .map(|token| token["serviceAccountToken"]["audience"].as_str().unwrap_or("the API server").to_owned())
        .collect()
}

#[test]
fn a_service_accounts_role_reads_and_no_worker_gets_a_token_for_the_api_server() {
    let test = "a_service_accounts_role_reads_and_no_worker_gets_a_token_for_the_api_server";
    let Some(cluster) = Cluster::shared(test) else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::with_token_service(&space, FEW);
    let endpoint = &bucket.endpoint;
    space.apply(&format!(
        "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: dataset-reader, annotations: {{eks.amazonaws.com/role-arn: \
         \"{ROLE}\", millrace.dev/sts-endpoint: \"{endpoint}\"}}}}}}"
    ));
    let source = bucket.source().replace(", credentials: {secretRef: {name: s3}}", ", region: eu-central-1");
    assert!(!source.contains("secretRef"), "{source}");
    space.apply(&format!(
        "{{apiVersion: millrace.dev/v1alpha1, kind: Dataset, metadata: {{name: data}}, spec: {{sources: [{source}], workers: \
         {{serviceAccountName: dataset-reader}}}}}}"
    ));
    space.wait_for_condition("data", "Ready", "True");
    space.pod("reader", AT_DATA, None, SUM_ALL);
    check_sums(&space.output("reader", RUN), &FEW);
    let worker = space.get(POD, "millrace-data-0").unwrap();
    assert_eq!(worker["spec"]["serviceAccountName"], "dataset-reader");
    assert_eq!(audiences(&worker), ["sts.amazonaws.com"]);
    // A key would be a way round what is shown here.
    let asked = bucket.counters().requests;
    assert!(asked.get("AssumeRoleWithWebIdentity").is_some_and(|count| *count > 0), "{asked:?}");

    // Another account is another template; what is cached goes with the pod, so the user has to say so.
    space.merge(DATASET, "data", &json!({"spec": {"workers": {"serviceAccountName": null}}}));
    space.wait(DATASET, "data", "it asks before it rolls", READY, |object| {
        let (status, reason, message) = condition(object, "Degraded")?;
        (status == "True" && reason == "RollPending" && message.contains("millrace.dev/roll")).then_some(())
    });
    let still = space.get(POD, "millrace-data-0").unwrap();
    assert_eq!(still["metadata"]["uid"], worker["metadata"]["uid"]);
    space.merge(DATASET, "data", &json!({"metadata": {"annotations": {"millrace.dev/roll": "1"}}}));
    space.wait(POD, "millrace-data-0", "a worker without any token", READY, |pod| {
        (pod["metadata"]["uid"] != worker["metadata"]["uid"] && audiences(pod).is_empty()).then_some(())
    });
}
