//! What is left when a process is killed?

use std::net::TcpListener;

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
    until("the mount's return", || {
        let status = rig.status();
        let mount = &status["local"]["mount"];
        // Attributes of a dead mount are believed for a while; opening a file of it fails at once.
        mount["pid"].as_u64() != Some(pid) && std::fs::read(rig.mount().join("large.bin")).is_ok()
    });
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
