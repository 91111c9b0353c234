//! What is left when a process is killed?

use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::rig::{Rig, can_run, kill, until};

fn worker(rig: &Rig, at: usize) -> (u64, String) {
    let status = rig.status();
    let worker = &status["local"]["workers"][at];
    (worker["pid"].as_u64().unwrap(), worker["addresses"]["data"].as_str().unwrap().to_owned())
}

#[test]
fn a_killed_worker_comes_back_at_its_port_and_readers_do_not_notice() {
    if !can_run() {
        return;
    }
    let mut rig = Rig::new();
    rig.up();
    let (pid, address) = worker(&rig, 0);
    kill("-KILL", pid);
    rig.compare();
    until("the worker's return", || {
        let status = rig.status();
        let now = &status["local"]["workers"][0];
        now["pid"].as_u64() != Some(pid) && now["answers"] == true
    });
    assert_eq!(worker(&rig, 0).1, address);
    until("ready", || rig.condition("Ready").0 == "True");
    assert_eq!(rig.status()["status"]["workers"]["epoch"], 1);
}

#[test]
fn a_worker_whose_port_is_taken_moves_and_all_learn_where() {
    if !can_run() {
        return;
    }
    let mut rig = Rig::new();
    rig.up();
    let (pid, address) = worker(&rig, 1);
    // Held back, so that we are first at the port.
    rig.signal_up("-STOP");
    kill("-KILL", pid);
    let mut taken = None;
    until("its port", || {
        taken = TcpListener::bind(&address).ok();
        taken.is_some()
    });
    rig.signal_up("-CONT");
    until("the worker's return", || {
        let status = rig.status();
        let now = &status["local"]["workers"][1];
        now["addresses"]["data"] != address.as_str() && now["answers"] == true
    });
    until("the new epoch", || {
        let workers = rig.status()["local"]["workers"].as_array().unwrap().clone();
        workers.iter().all(|worker| worker["epoch"] == 2)
    });
    rig.compare();
}

#[test]
fn a_killed_mount_comes_back() {
    if !can_run() {
        return;
    }
    let mut rig = Rig::new();
    rig.up();
    rig.compare();
    let pid = rig.status()["local"]["mount"]["pid"].as_u64().unwrap();
    kill("-KILL", pid);
    until("the mount's return", || is_served_by_another(&rig, pid));
    rig.compare();
}

#[test]
fn down_ends_a_worker_that_hangs() {
    if !can_run() {
        return;
    }
    let mut rig = Rig::new();
    rig.up();
    kill("-STOP", worker(&rig, 0).0);
    rig.ok(&["down"]);
    assert_eq!(rig.wait_up(), Some(0));
    rig.assert_nothing_left();
}

#[test]
fn down_cleans_up_after_a_killed_supervisor() {
    if !can_run() {
        return;
    }
    let mut rig = Rig::new();
    rig.up();
    rig.signal_up("-KILL");
    assert_eq!(rig.wait_up(), None);
    // Nobody pulls the files from under their readers.
    rig.compare();
    assert_eq!(rig.status()["local"]["supervisor"], serde_json::Value::Null);
    assert!(rig.ok(&["down"]).contains("left by a crash"));
    rig.assert_nothing_left();
}

#[test]
fn up_cleans_up_after_a_crash_of_all() {
    if !can_run() {
        return;
    }
    let mut rig = Rig::new();
    rig.up();
    let mount = rig.status()["local"]["mount"]["pid"].as_u64().unwrap();
    rig.signal_up("-KILL");
    rig.wait_up();
    kill("-KILL", mount);
    until("the dead mount", || std::fs::read_dir(rig.mount()).is_err());
    rig.up();
    rig.compare();
    rig.ok(&["down"]);
    assert_eq!(rig.wait_up(), Some(0));
    rig.assert_nothing_left();
}

#[test]
fn an_index_that_rots_at_the_only_worker_is_made_again() {
    if !can_run() {
        return;
    }
    let mut rig = Rig::new();
    let dataset = rig.dataset("");
    rig.write("dataset.yaml", &dataset.replace("replicas: 2", "replicas: 1"));
    rig.up();
    rig.compare();
    let version = rig.status()["status"]["version"]["id"].as_str().unwrap().to_owned();
    let indexes = files_of(&rig.folder(), &format!("{version}.idx"));
    assert_eq!(indexes.len(), 2, "the worker's and the mount's: {indexes:?}");
    for path in &indexes {
        flip_middle(path);
    }
    let pid = rig.status()["local"]["mount"]["pid"].as_u64().unwrap();
    kill("-KILL", pid);
    until("the mount's return", || is_served_by_another(&rig, pid));
    rig.compare();
    until("ready", || rig.condition("Ready").0 == "True");
    assert!(rig.up_said().contains("no worker has the index any more"), "{}", rig.up_said());
    assert_eq!(rig.status()["status"]["version"]["id"], version.as_str(), "the bucket is the same");
}

/// Whether another process than this one serves the mount. What the kernel has kept of a dead mount can be read on, files of a
/// packed one even opened; the room of its file system is asked of the process.
fn is_served_by_another(rig: &Rig, pid: u64) -> bool {
    let status = rig.status();
    let mount = &status["local"]["mount"];
    let is_another = mount["alive"] == true && mount["pid"].as_u64().is_some_and(|found| found != pid);
    is_another && rustix::fs::statfs(rig.mount()).is_ok()
}

/// Files below a folder whose name contains `part`.
fn files_of(dir: &Path, part: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files_of(&entry.path(), part));
        } else if entry.file_name().to_string_lossy().contains(part) {
            found.push(entry.path());
        }
    }
    found
}

fn flip_middle(path: &Path) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let (middle, mut byte) = (file.metadata().unwrap().len() / 2, [0]);
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 16], middle).unwrap();
}
