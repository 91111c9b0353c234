//! Do the README's commands work as they are written?

use std::process::Command;

use millrace_tests::kubernetes::cluster::Cluster;
use millrace_tests::kubernetes::namespace::READY;
use millrace_tests::kubernetes::objects::{DATASET, JOB};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The first block of commands below a heading of the README.
fn commands(heading: &str) -> String {
    let text = std::fs::read_to_string(format!("{REPOSITORY}/README.md")).unwrap();
    let section = text.split_once(&format!("\n## {heading}\n")).expect("the README has the section").1;
    let block = section.split_once("```sh\n").expect("the section has commands").1;
    block.split_once("```").expect("the block ends").0.to_owned()
}

#[test]
fn five_commands_lead_from_nothing_to_a_job_that_has_read() {
    let Some(cluster) = Cluster::alone("five_commands_lead_from_nothing_to_a_job_that_has_read") else {
        return;
    };
    let lines = commands("On Kubernetes");
    assert!(lines.trim().lines().count() <= 5, "{lines}");
    let path = std::env::var("PATH").unwrap_or_default();
    let shell = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", script]).current_dir(REPOSITORY);
        command.env("KUBECONFIG", &cluster.paths.kubeconfig).env("REGISTRY", "registry.test");
        command.env("PATH", format!("{}:{path}", cluster.paths.bin.display()));
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    let (gone, said) = shell("helm uninstall millrace --namespace millrace-system --wait");
    assert!(gone, "{said}");
    let started = std::time::Instant::now();
    let (worked, output) = shell(&lines);
    println!("{lines}took {:?}:\n{output}", started.elapsed());
    let was_read = output.contains("500");
    cluster.objects.delete("default", JOB, "read-samples");
    cluster.objects.delete("default", DATASET, "samples");
    cluster.objects.wait_until_gone("default", DATASET, "samples", READY);
    // As the other tests want it.
    cluster.install();
    assert!(worked && was_read, "{output}");
}
