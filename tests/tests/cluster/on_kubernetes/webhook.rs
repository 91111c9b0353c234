//! Are pods of all kinds given their datasets, and wrong ones refused where their author sees it?

use std::time::{Duration, Instant};

use millrace_tests::kubernetes::cluster::{Cluster, SYSTEM};
use millrace_tests::kubernetes::namespace::{Namespace, READY};
use millrace_tests::kubernetes::objects::POD;
use millrace_tests::kubernetes::readers;
use serde_json::Value;

/// For the operator to look at its Secret, and for what it does about it.
const RENEWED: Duration = Duration::from_secs(90);

/// A workload with a pod template, which carries this annotation.
fn workload(kind: &str, name: &str, annotation: &str) -> String {
    let template = format!(
        "{{metadata: {{labels: {{app: {name}}}, annotations: {{millrace.dev/dataset: \"{annotation}\"}}}}, spec: \
         {{securityContext: {{runAsNonRoot: true, runAsUser: 1000, seccompProfile: {{type: RuntimeDefault}}}}, containers: \
         [{{name: main, image: \"registry.test/shell:1\", command: [sleep, \"60\"], securityContext: \
         {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}}}]"
    );
    let selector = format!("selector: {{matchLabels: {{app: {name}}}}}, template: {template}}}}}");
    let once = format!("template: {template}, restartPolicy: Never}}}}");
    let (version, spec) = match kind {
        "Job" => ("batch/v1", format!("{{{once}}}")),
        "CronJob" => ("batch/v1", format!("{{schedule: \"0 0 1 1 *\", jobTemplate: {{spec: {{{once}}}}}}}")),
        "StatefulSet" => ("apps/v1", format!("{{serviceName: none, {selector}}}")),
        _ => ("apps/v1", format!("{{{selector}}}")),
    };
    format!("{{apiVersion: {version}, kind: {kind}, metadata: {{name: {name}}}, spec: {spec}}}")
}

/// The first pod with this label, once there is one.
fn first_pod(space: &Namespace<'_>, label: &str) -> Value {
    let began = Instant::now();
    loop {
        if let Some(pod) = space.list(POD, label).into_iter().next() {
            return pod;
        }
        assert!(began.elapsed() < READY, "no pod with {label}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_wrong_template_is_refused_when_it_is_applied() {
    let Some(cluster) = Cluster::shared("a_wrong_template_is_refused_when_it_is_applied") else { return };
    let space = Namespace::new(&cluster);
    for kind in ["Job", "CronJob", "Deployment", "StatefulSet", "DaemonSet"] {
        let message = space.refusal(&workload(kind, "wrong", "data=relative"));
        assert!(
            message.contains("its pods would be refused") && message.contains("\"data=relative\""),
            "{kind}: {message}"
        );
    }
    // What is right passes, with a Dataset or without.
    space.apply(&workload("CronJob", "right", "data=/data"));
}

#[test]
fn pods_of_jobs_deployments_and_stateful_sets_get_their_datasets() {
    let Some(cluster) = Cluster::shared("pods_of_jobs_deployments_and_stateful_sets_get_their_datasets")
    else {
        return;
    };
    let space = Namespace::new(&cluster);
    for (kind, name) in [("Job", "job"), ("Deployment", "deployment"), ("StatefulSet", "set")] {
        space.apply(&workload(kind, name, "data/train=/a,data/val=/b"));
        let pod = first_pod(&space, &format!("app={name}"));
        assert_eq!(pod["metadata"]["labels"]["millrace.dev/consumer"], "true", "{kind}");
        let claims: Vec<&Value> = pod["spec"]["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|volume| volume["persistentVolumeClaim"].get("claimName"))
            .collect();
        assert_eq!(claims, ["data"], "{kind}");
    }
}

#[test]
fn init_containers_get_the_dataset_too_and_only_chosen_containers_where_some_are_chosen() {
    let test = "init_containers_get_the_dataset_too_and_only_chosen_containers_where_some_are_chosen";
    let Some(cluster) = Cluster::shared(test) else { return };
    let space = Namespace::new(&cluster);
    let secure = "securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}, image: \"registry.test/shell:1\"";
    let pod = |name: &str, more: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, annotations: {{millrace.dev/dataset: \"data=/data\"{more}}}}}, spec: \
             {{securityContext: {{runAsNonRoot: true, runAsUser: 1000, seccompProfile: {{type: RuntimeDefault}}}}, \
             initContainers: [{{name: prepare, {secure}}}], containers: [{{name: main, {secure}}}, {{name: side, {secure}}}]}}}}"
        )
    };
    let with_mount = |name: &str| {
        let spec = space.get(POD, name).unwrap()["spec"].clone();
        let all = [&spec["initContainers"], &spec["containers"]].map(|list| list.as_array().unwrap().clone());
        let has_it = |container: &&Value| {
            let mounts = container["volumeMounts"].as_array();
            mounts.is_some_and(|mounts| mounts.iter().any(|mount| mount["mountPath"] == "/data"))
        };
        let named = all.concat().iter().filter(has_it).map(|found| found["name"].clone()).collect::<Vec<_>>();
        named.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    space.apply(&pod("all", ""));
    assert_eq!(with_mount("all"), ["prepare", "main", "side"]);
    space.apply(&pod("some", ", millrace.dev/containers: \"prepare,side\""));
    assert_eq!(with_mount("some"), ["prepare", "side"]);
    let message = space.refusal(&pod("wrong", ", millrace.dev/containers: loader"));
    assert!(message.contains("loader") && message.contains("main"), "{message}");
}

#[test]
fn a_waiting_pod_is_told_for_what_it_waits() {
    let Some(cluster) = Cluster::shared("a_waiting_pod_is_told_for_what_it_waits") else { return };
    let space = Namespace::new(&cluster);
    space.pod("early", "nowhere=/data", None, "true");
    let event = space.wait_for_event("Pod", "early", "WaitingForDataset", READY);
    assert!(event.contains("there is none in namespace"), "{event}");
}

#[test]
fn trust_that_somebody_takes_away_comes_back() {
    let Some(cluster) = Cluster::alone("trust_that_somebody_takes_away_comes_back") else { return };
    let space = Namespace::new(&cluster);
    let bundle = |kind: &str| {
        let configuration = cluster.objects.get("", kind, "millrace").unwrap();
        configuration["webhooks"][0]["clientConfig"]["caBundle"].as_str().map(str::to_owned)
    };
    for (resource, kind) in [
        ("mutatingwebhookconfiguration", "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration"),
        ("validatingwebhookconfiguration", "admissionregistration.k8s.io/v1/ValidatingWebhookConfiguration"),
    ] {
        let before = bundle(kind);
        let remove = r#"[{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]"#;
        let patched =
            cluster.kubectl().args(["patch", resource, "millrace", "--type=json", "-p", remove]).status();
        assert!(patched.unwrap().success());
        cluster.objects.wait(("", kind, "millrace"), "the same bundle", READY, |object| {
            (object["webhooks"][0]["clientConfig"]["caBundle"].as_str() == before.as_deref()).then_some(())
        });
    }
    let message = space.refusal(&readers::pod("bad", "wrong", None, "true"));
    assert!(message.contains("millrace.dev/dataset"), "{message}");
}

#[test]
fn a_deleted_certificate_comes_back_and_no_pod_notices() {
    let Some(cluster) = Cluster::alone("a_deleted_certificate_comes_back_and_no_pod_notices") else { return };
    let space = Namespace::new(&cluster);
    let secret = "v1/Secret";
    let name = "millrace-webhook-certificate";
    let before = cluster.objects.get(SYSTEM, secret, name).unwrap();
    cluster.objects.delete(SYSTEM, secret, name);
    let message = space.refusal(&readers::pod("bad", "wrong", None, "true"));
    assert!(message.contains("millrace.dev/dataset"), "{message}");
    cluster.objects.wait((SYSTEM, secret, name), "the same certificate", RENEWED, |object| {
        (object["metadata"]["uid"] != before["metadata"]["uid"] && object["data"] == before["data"])
            .then_some(())
    });
}

#[test]
fn pods_without_the_annotation_do_not_reach_the_webhook() {
    let Some(cluster) = Cluster::alone("pods_without_the_annotation_do_not_reach_the_webhook") else {
        return;
    };
    let space = Namespace::new(&cluster);
    let requests = || {
        let pods = cluster.objects.list(SYSTEM, POD, "app.kubernetes.io/component=operator");
        let count = |pod: &Value| {
            let name = pod["metadata"]["name"].as_str().unwrap();
            let path = format!("/api/v1/namespaces/{SYSTEM}/pods/{name}:7432/proxy/metrics");
            let metrics = cluster.objects.raw(&path).unwrap();
            let lines = metrics.lines().filter(|line| line.starts_with("operator_webhook_requests_total{"));
            lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum::<u64>()
        };
        pods.iter().map(count).sum::<u64>()
    };
    let before = requests();
    space.apply(&readers::pod("plain", "", None, "true"));
    assert_eq!(requests(), before);
    space.apply(&readers::pod("wants", "data=/data", None, "true"));
    assert!(requests() > before);
}
