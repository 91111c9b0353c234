//! What does the user read when something is wrong?

use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::faults::rule::{Fault, Rule};
use millrace_s3_server::target::Operation;

use crate::rig::{Rig, can_run, said, until};

/// Runs an `up` that must fail, and gives what it said last.
fn refused(rig: &Rig, dataset: &str, mount: &str) -> String {
    rig.write("wrong.yaml", dataset);
    let output = rig.local(&["up", "-f", "wrong.yaml", "--mount", mount]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    rig.assert_nothing_left();
    let said = said(&output);
    let from = said.find("millrace: ").unwrap_or_else(|| panic!("no message: {said}"));
    said[from..].trim_end().to_owned()
}

#[test]
fn a_wrong_dataset_is_refused_with_the_field_and_nothing_is_left() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let right = rig.dataset("");
    let bucket = refused(&rig, &right.replace("bucket: data", "bucket: other"), "mnt");
    assert!(bucket.contains("spec.sources[0]") && bucket.contains("\"other\""), "{bucket}");
    assert!(bucket.contains("NoSuchBucket") && bucket.lines().count() == 1, "{bucket}");
    let secret = refused(&rig, &right.replace("anonymous: {}", "secretRef: {name: keys}"), "mnt");
    assert!(secret.contains("spec.sources[0].s3.credentials.secretRef.name"), "{secret}");
    let none = refused(&rig, &right.replace("replicas: 2", "replicas: 0"), "mnt");
    assert!(none.contains("spec.workers.replicas"), "{none}");
    let both = refused(&rig, &right.replace("bucket: data", "bucket: D, colour: red"), "mnt");
    assert!(both.contains("bucket") && both.contains("colour"), "{both}");
}

#[test]
fn a_mount_point_that_cannot_be_is_refused_with_the_cure() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    std::fs::create_dir(rig.dir.path().join("full")).unwrap();
    rig.write("full/file", "");
    for (mount, why) in
        [("missing", "does not exist"), ("full", "not empty"), ("dataset.yaml", "not a directory")]
    {
        let text = refused(&rig, &rig.dataset(""), mount);
        assert!(text.contains(mount) && text.contains(why), "{text}");
    }
}

#[test]
fn a_listing_that_fails_falls_back_to_the_version_before() {
    if !can_run() {
        return;
    }
    let mut rig = Rig::new();
    rig.up();
    rig.compare();
    rig.ok(&["down"]);
    rig.wait_up();
    let denied = Fault::Error { status: 403, code: "AccessDenied".into(), message: String::new() };
    rig.server
        .set_faults(FaultPlan::default().rule(Rule::from(denied).operation(Operation::ListObjectsV2)))
        .unwrap();
    rig.up();
    assert!(rig.up_said().contains("using the version of"), "{}", rig.up_said());
    assert_eq!(rig.condition("Degraded"), ("True".to_owned(), "OriginUnavailable".to_owned()));
    rig.compare();
}

#[test]
fn an_object_that_cannot_be_warmed_is_named() {
    if !can_run() {
        return;
    }
    let mut rig = Rig::new();
    rig.write("dataset.yaml", &rig.dataset("  warmUp: {when: Never}\n"));
    rig.server.set_faults(FaultPlan::default().rule(Rule::from(Fault::Deleted).keys("small/7.txt"))).unwrap();
    rig.up();
    assert_eq!(rig.condition("Warm").1, "NotAskedFor");
    let output = rig.local(&["warm", "/"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("small/7.txt"), "{}", said(&output));
    assert_eq!(rig.condition("Warm").1, "ObjectsFailed");
    let why = rig.ok(&["why", "/small/7.txt"]);
    assert!(why.contains("NoSuchKey") && why.contains("cure:"), "{why}");
}

#[test]
fn a_start_that_hangs_ends_with_ctrl_c() {
    if !can_run() {
        return;
    }
    let mut rig = Rig::new();
    let plan = FaultPlan::default().rule(Rule::from(Fault::Hang).operation(Operation::ListObjectsV2));
    rig.server.set_faults(plan).unwrap();
    rig.begin_up();
    until("the listing", || rig.server.counters().requests_of(Operation::ListObjectsV2) > 0);
    rig.signal_up("-INT");
    assert_eq!(rig.wait_up(), Some(0));
    rig.assert_nothing_left();
}
