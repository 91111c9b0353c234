//! Does what users are told to run do what they are told?

use std::path::Path;
use std::process::{Command, Output};

use millrace_tests::kubernetes::cluster::{Cluster, SYSTEM};
use millrace_tests::kubernetes::namespace::{Namespace, RUN};
use millrace_tests::kubernetes::objects::{JOB, POD};
use serde_json::json;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Most commands from nothing to a Job that has read.
const COMMANDS: usize = 5;

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The first commands of the README's part on Kubernetes.
fn lines_of_readme() -> String {
    let readme = std::fs::read_to_string(Path::new(REPOSITORY).join("README.md")).unwrap();
    let (_, part) = readme.split_once("\n## On Kubernetes\n").expect("the README has a part on Kubernetes");
    let (_, block) = part.split_once("\n```sh\n").expect("it has commands");
    block.split_once("\n```\n").expect("they end").0.to_owned()
}

fn shell(cluster: &Cluster, script: &str) -> Output {
    let path = format!("{}:{}", cluster.paths.bin.display(), std::env::var("PATH").unwrap_or_default());
    Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(REPOSITORY)
        .env("KUBECONFIG", &cluster.paths.kubeconfig)
        .env("PATH", path)
        .env("REGISTRY", "registry.test")
        .output()
        .unwrap()
}

#[test]
fn the_readmes_lines_run_as_they_are() {
    let Some(cluster) = Cluster::alone("the_readmes_lines_run_as_they_are") else { return };
    let script = lines_of_readme();
    let commands = script.lines().filter(|line| !line.trim().is_empty()).count();
    let removed = shell(&cluster, &format!("helm uninstall millrace -n {SYSTEM} --wait --timeout 2m"));
    let ran = if removed.status.success() { Some(shell(&cluster, &script)) } else { None };
    // Whatever came of it, others find the cluster as it was.
    let cleaned = shell(
        &cluster,
        "kubectl delete job read-samples --ignore-not-found\n\
         kubectl delete dataset samples --ignore-not-found --timeout=120s\n\
         helm uninstall millrace -n millrace-system --wait --timeout 2m || true",
    );
    cluster.install();
    let ran = ran.unwrap_or_else(|| panic!("{}", text(&removed)));
    assert!(ran.status.success(), "{}", text(&ran));
    assert!(cleaned.status.success(), "{}", text(&cleaned));
    // 500 files, and the hash of what they hold.
    let said = text(&ran);
    assert!(said.lines().any(|line| line.trim() == "500") && said.contains("  -"), "{said}");
    assert!(commands <= COMMANDS, "{commands} commands: {script}");
}

#[test]
fn a_training_job_learns_from_what_it_reads() {
    let Some(cluster) = Cluster::shared("a_training_job_learns_from_what_it_reads") else { return };
    let fetched = Command::new(format!("{REPOSITORY}/scripts/fetch-mnist")).output().unwrap();
    assert!(fetched.status.success(), "{}", text(&fetched));
    let folder = String::from_utf8_lossy(&fetched.stdout).trim().to_owned();
    let space = Namespace::new(&cluster);
    // The S3 server shows a folder of this machine.
    let relaxed = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
    cluster.objects.merge("", "v1/Namespace", &space.name, &relaxed);
    space.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: mnist-s3, labels: {{app: mnist-s3}}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         containers:\n  - name: s3\n    image: registry.test/millrace/csi-driver:dev\n    \
         command: [/millrace, s3, serve, /mnist, --bucket, my-bucket, --listen, \"0.0.0.0:9000\"]\n    \
         volumeMounts: [{{name: mnist, mountPath: /mnist, readOnly: true}}]\n  \
         volumes: [{{name: mnist, hostPath: {{path: {folder}, type: Directory}}}}]\n"
    ));
    space.apply(
        "apiVersion: v1\nkind: Service\nmetadata: {name: mnist-s3}\nspec: {selector: {app: mnist-s3}, ports: [{port: 9000}]}\n",
    );
    let example =
        std::fs::read_to_string(format!("{REPOSITORY}/examples/kubernetes/train-mnist.yaml")).unwrap();
    let aws = "      prefix: mnist/\n      region: eu-west-1\n      credentials:\n        secretRef: {name: mnist-s3}\n";
    assert!(example.contains(aws), "the example's source has changed: change this test");
    let here = "      endpoint: http://mnist-s3:9000\n      credentials: {anonymous: {}}\n";
    space.apply(&example.replace(aws, here));
    space.wait(JOB, "train-mnist", "the job has ended", RUN, |job| {
        let status = &job["status"];
        (status["succeeded"] == 1 || status["failed"].as_i64() > Some(0)).then_some(())
    });
    let pods = space.list(POD, "batch.kubernetes.io/job-name=train-mnist");
    let pod = pods[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let said = space.output(&pod, RUN);
    println!("{said}");
    let percent =
        said.split_once("accuracy: ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<f64>().ok());
    assert!(percent.is_some_and(|percent| percent > 90.0), "{said}");
}

#[test]
fn every_example_is_taken_by_the_api_server_field_by_field() {
    let Some(cluster) = Cluster::shared("every_example_is_taken_by_the_api_server_field_by_field") else {
        return;
    };
    let space = Namespace::new(&cluster);
    // Users' namespaces are mostly laxer; what matters here is that no field is unknown and no value refused.
    let relaxed = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    cluster.objects.merge("", "v1/Namespace", &space.name, &relaxed);
    let mut refused = Vec::new();
    for folder in ["examples", "examples/kubernetes"] {
        let folder = format!("--filename={REPOSITORY}/{folder}");
        let dry =
            ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-n", &space.name, &folder];
        let applied = cluster.kubectl().args(dry).output().unwrap();
        if !applied.status.success() {
            refused.push(text(&applied));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}
