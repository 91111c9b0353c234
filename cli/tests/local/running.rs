//! Does a Dataset come up, tell about itself, and go down?

use millrace_s3_server::target::Operation;

use crate::rig::{Rig, can_run, said, until};

#[test]
fn a_dataset_is_read_told_about_and_stopped_and_its_cache_outlives_that() {
    if !can_run() {
        return;
    }
    let mut rig = Rig::new();
    rig.up();
    rig.compare();
    let printed = rig.up_said();
    assert!(printed.contains("ready: mounted at") && printed.contains("21 objects"), "{printed}");
    until("warm", || rig.condition("Warm") == ("True".to_owned(), "Warmed".to_owned()));
    assert_eq!(rig.condition("Ready").0, "True");
    until("all cached", || rig.status()["status"]["cached"]["percent"] == 100);
    let status = rig.status();
    assert_eq!(status["status"]["version"]["objects"], 21);
    assert_eq!(status["status"]["workers"]["ready"], 2);
    assert!(rig.ok(&["status"]).contains("Ready: True"));
    assert!(rig.ok(&["warm", "/small"]).is_empty());
    // What was asked for goes before what the Dataset asks for, not in its place.
    until("all warm again", || {
        let status = rig.status();
        let warm_up = &status["status"]["warmUp"];
        warm_up["bytesTotal"] == status["status"]["version"]["bytes"]
            && warm_up["bytesDone"] == warm_up["bytesTotal"]
    });
    let why = rig.ok(&["why", "mnt/large.bin"]);
    assert!(
        why.contains("owner x-") && why.contains("has 77 of 77") && why.contains("store has 100 %"),
        "{why}"
    );
    let unknown = rig.local(&["why", "/nothing"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert_eq!(rig.local(&["warm", "/nothing"]).status.code(), Some(1));

    let second = rig.local(&["up", "-f", "dataset.yaml", "--mount", "mnt"]);
    assert_eq!(second.status.code(), Some(1));
    assert!(said(&second).contains("is up already, by process"), "{}", said(&second));
    assert!(said(&rig.local(&["rm", "x"])).contains("is up already"));

    rig.ok(&["down"]);
    assert_eq!(rig.wait_up(), Some(0));
    rig.assert_nothing_left();
    assert!(rig.ok(&["down", "x"]).contains("was not up"));
    assert_eq!(rig.local(&["warm", "/"]).status.code(), Some(3));
    assert_eq!(rig.condition("Ready").0, "False");

    rig.server.reset_counters();
    rig.up();
    rig.compare();
    assert_eq!(rig.server.counters().requests_of(Operation::GetObject), 0);
    rig.signal_up("-INT");
    assert_eq!(rig.wait_up(), Some(0));
    rig.assert_nothing_left();
    rig.ok(&["rm", "x"]);
    assert!(!rig.folder().exists());
}

#[test]
fn keys_come_from_the_files_secret_and_go_with_down_and_memory_goes_with_rm() {
    use millrace_s3_server::auth::{Access, Credentials};
    if !can_run() {
        return;
    }
    let mut rig = Rig::with(|builder| builder.access(Access::signed(Credentials::new("me", "hush"))).tls());
    let ca = rig.server.ca_pem().unwrap().replace('\n', "\n    ");
    let more = format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: keys}}\nstringData:\n  AWS_ACCESS_KEY_ID: me\n  \
        AWS_SECRET_ACCESS_KEY: hush\n  ca.crt: |\n    {ca}\n"
    );
    let dataset = rig
        .dataset(&more)
        .replace("anonymous: {}", "secretRef: {name: keys}")
        .replace("medium: Disk, quota: 64Mi", "medium: Memory, quota: 16Mi");
    rig.write("dataset.yaml", &dataset);
    rig.up();
    rig.compare();
    assert!(rig.folder().join("credentials/keys/AWS_SECRET_ACCESS_KEY").exists());
    let uid = std::fs::read_to_string(rig.folder().join("uid")).unwrap();
    let memory = std::path::Path::new("/dev/shm").join(format!("millrace-{uid}"));
    assert!(memory.join("x-0/tier-0").exists());
    rig.ok(&["down", "x"]);
    rig.assert_nothing_left();
    let kept = std::fs::read_to_string(rig.folder().join("dataset.yaml")).unwrap();
    assert!(!kept.contains("hush") && memory.exists());
    rig.ok(&["rm", "x"]);
    assert!(!memory.exists());
}

#[test]
fn a_reader_who_stays_does_not_keep_it_up_and_one_who_waits_is_let_go() {
    use std::io::Read;
    if !can_run() {
        return;
    }
    let mut rig = Rig::new();
    rig.up();
    let mut file = std::fs::File::open(rig.mount().join("large.bin")).unwrap();
    let mut start = [0; 1000];
    file.read_exact(&mut start).unwrap();
    assert!(rig.ok(&["down"]).contains("is down"));
    assert_eq!(rig.wait_up(), Some(0));
    rig.assert_nothing_left();
    let mut rest = Vec::new();
    // Whatever is cached in the kernel may still come; nobody hangs.
    let _ = file.read_to_end(&mut rest);
}

#[test]
fn keys_that_cannot_be_shown_are_listed_by_why() {
    if !can_run() {
        return;
    }
    let mut rig = Rig::new();
    rig.objects.put("large.bin/below", "x");
    rig.objects.put("odd//name", "x");
    rig.up();
    let all = rig.ok(&["why"]);
    assert!(all.contains("keys are not shown") && all.contains("odd//name"), "{all}");
    assert!(rig.up_said().contains("`millrace local why` lists them"), "{}", rig.up_said());
    assert!(rig.status()["status"]["version"]["leftOut"].as_i64().unwrap() >= 2);
}
