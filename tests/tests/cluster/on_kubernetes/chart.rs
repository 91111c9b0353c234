//! Does the chart install, test itself, refuse to leave Datasets behind, and go?

use std::process::{Command, Output};

use millrace_tests::kubernetes::bucket::{Bucket, Contents};
use millrace_tests::kubernetes::cluster::{Cluster, SYSTEM};
use millrace_tests::kubernetes::namespace::{Namespace, READY};
use millrace_tests::kubernetes::objects::{DATASET, POD};
use millrace_tests::kubernetes::readers;
use serde_json::json;

fn helm(cluster: &Cluster, args: &[&str]) -> Output {
    let mut command = Command::new(cluster.paths.bin.join("helm"));
    command.env("KUBECONFIG", &cluster.paths.kubeconfig).args(["-n", SYSTEM]).args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_api_server_takes_the_chart_with_other_values_too() {
    let Some(cluster) = Cluster::shared("the_api_server_takes_the_chart_with_other_values_too") else {
        return;
    };
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/millrace");
    let values = format!("{chart}/ci/all-values.yaml");
    // Its kind comes with the Prometheus operator, which is not here.
    let args = [
        "template",
        "millrace",
        chart,
        "-f",
        &values,
        "--set",
        "serviceMonitor.enabled=false",
        "--kube-version",
        "1.34.0",
    ];
    let rendered = helm(&cluster, &args);
    assert!(rendered.status.success(), "{}", text(&rendered));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &rendered.stdout).unwrap();
    // With the whole schema, so that a field of a wrong name is refused.
    let dry = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--validate=strict",
        "-n",
        SYSTEM,
    ];
    let applied = cluster.kubectl().args(dry).arg("-f").arg(file.path()).output().unwrap();
    // The tests' own namespace is made by helm when it runs them, which a dry run does not.
    let message = text(&applied);
    // kubectl's own errors begin with a small letter.
    let is_error = |line: &str| line.to_ascii_lowercase().starts_with("error");
    let refused = message.lines().filter(|line| is_error(line) && !line.contains("millrace-system-test"));
    assert_eq!(refused.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(message.contains("daemonset.apps/millrace-csi-driver"), "{message}");
}

#[test]
fn the_charts_own_test_passes() {
    let Some(cluster) = Cluster::alone("the_charts_own_test_passes") else { return };
    let tested = helm(&cluster, &["test", "millrace", "--timeout", "4m"]);
    assert!(tested.status.success(), "{}", text(&tested));
    cluster.objects.delete("", "v1/Namespace", &format!("{SYSTEM}-test"));
    cluster.objects.wait_until_gone("", "v1/Namespace", &format!("{SYSTEM}-test"), READY);
}

#[test]
fn uninstalling_waits_for_datasets_and_leaves_none_of_ours() {
    let Some(cluster) = Cluster::alone("uninstalling_waits_for_datasets_and_leaves_none_of_ours") else {
        return;
    };
    {
        let space = Namespace::new(&cluster);
        let bucket = Bucket::start(&space, Contents::new(3, 1000));
        space.ready_dataset("data", &bucket, "");
        let refused = helm(&cluster, &["uninstall", "millrace", "--timeout", "1m"]);
        assert!(!refused.status.success(), "{}", text(&refused));
        space.merge(DATASET, "data", &json!({"spec": {"workers": {"replicas": 2}}}));
        space.wait_for_condition("data", "Ready", "True");
    }
    let gone = helm(&cluster, &["uninstall", "millrace", "--wait", "--timeout", "2m"]);
    let left: Vec<_> = ["apps/v1/Deployment", "apps/v1/DaemonSet", "v1/Service", "v1/ServiceAccount"]
        .iter()
        .flat_map(|kind| cluster.objects.list(SYSTEM, kind, "app.kubernetes.io/name=millrace"))
        .collect();
    let has_crd =
        cluster.objects.get("", "apiextensions.k8s.io/v1/CustomResourceDefinition", "datasets.millrace.dev");
    cluster.install();
    assert!(gone.status.success(), "{}", text(&gone));
    assert!(left.is_empty(), "{left:#?}");
    assert!(has_crd.is_some(), "the CRD must outlive the release: Datasets go with it");
}

#[test]
fn a_pod_with_a_dataset_can_be_created_as_soon_as_the_chart_is_installed() {
    let Some(cluster) =
        Cluster::alone("a_pod_with_a_dataset_can_be_created_as_soon_as_the_chart_is_installed")
    else {
        return;
    };
    let space = Namespace::new(&cluster);
    let gone = helm(&cluster, &["uninstall", "millrace", "--wait", "--timeout", "2m"]);
    // With a new certificate, as on a cluster that never had one.
    cluster.objects.delete(SYSTEM, "v1/Secret", "millrace-webhook-certificate");
    cluster.install();
    space.apply(&readers::pod("early", "nowhere=/data", None, "true"));
    assert!(gone.status.success(), "{}", text(&gone));
    let pod = space.get(POD, "early").unwrap();
    assert_eq!(pod["metadata"]["labels"]["millrace.dev/consumer"], "true");
}
