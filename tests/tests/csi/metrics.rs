//! Does the driver's port tell what its mount processes count, whatever becomes of them?

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use millrace_csi_driver::node_mounts::process::pid_in;
use millrace_tests::program::until;
use millrace_tests::skip::can_mount_as_root;
use rustix::process::Signal;

use super::driver::{Driver, Volume, signal};
use super::hang::Stopped;
use super::publish::{assert_shows, cluster};

const REQUESTS: &str = "csi_driver_fuse_requests_total";
const UP: &str = "csi_driver_mount_process_up";

#[test]
fn each_mount_process_is_told_apart_by_what_it_shows() {
    if !can_mount_as_root("each_mount_process_is_told_apart_by_what_it_shows") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    for uid in ["uid-1", "uid-2"] {
        assert_shows(&driver.published(&Volume::of(&cluster, uid), "p"));
    }
    let text = driver.metrics_text();
    let series: Vec<&str> =
        text.lines().filter(|line| !line.starts_with('#') && line.contains(' ')).collect();
    let names: BTreeSet<&str> =
        series.iter().filter_map(|line| line.rsplit_once(' ')).map(|(name, _)| name).collect();
    assert_eq!(names.len(), series.len(), "no series is there twice");
    for uid in ["uid-1", "uid-2"] {
        let labels =
            format!("namespace=\"vision\",dataset=\"data\",uid=\"{uid}\",version=\"{}\"", cluster.version);
        assert!(driver.metric(REQUESTS, &labels) > 0, "{text}");
        assert_eq!(driver.metric(UP, &labels), 1, "{text}");
        assert!(driver.metric("process_resident_memory_bytes", &labels) > 0, "{text}");
        assert!(driver.metric("csi_driver_fetched_bytes_total", &labels) >= 100_001, "{text}");
    }
    // The driver's own are there once, and what both share is not shown twice.
    assert_eq!(text.lines().filter(|line| line.starts_with("process_open_fds ")).count(), 1);
    assert_eq!(text.lines().filter(|line| line.starts_with("millrace_build_info{")).count(), 1);
    assert_eq!(text.matches(&format!("# TYPE {REQUESTS} ")).count(), 1);
}

#[test]
fn counts_never_fall_when_a_mount_process_dies_or_is_stopped() {
    if !can_mount_as_root("counts_never_fall_when_a_mount_process_dies_or_is_stopped") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let target = driver.published(&volume, "p");
    assert_shows(&target);
    let mut least = driver.metric(REQUESTS, "uid-1");
    let mut look = || {
        let now = driver.metric(REQUESTS, "uid-1");
        assert!(now >= least, "{now} after {least}");
        least = now;
        now
    };
    let before = look();
    signal(driver.mount_pid(), Signal::KILL);
    until("its successor serves", Duration::from_secs(30), || {
        look();
        driver.metrics_text().contains("csi_driver_mount_process_restarts_total{reason=\"died\"} 1")
            // A name that was never asked for: the kernel answers from its own caches even where nobody serves.
            && std::fs::metadata(target.join("absent")).unwrap_err().kind() == std::io::ErrorKind::NotFound
    });
    assert!(look() > before, "what the successor counts is added");
    // Read after the last scrape: what is counted between the last scrape and a stop is not lost.
    for number in 0..50 {
        std::fs::metadata(target.join(format!("missing-{number}"))).unwrap_err();
    }
    driver.unpublish(&volume, &target).unwrap();
    until("the mount process ends", Duration::from_secs(20), || driver.processes().is_empty());
    until("it is not counted as one that should answer", Duration::from_secs(5), || {
        !driver.metrics_text().contains(UP)
    });
    assert!(driver.metric(REQUESTS, "opcode=\"lookup\"") >= 50, "{}", driver.metrics_text());
    assert!(!driver.metrics_text().contains("csi_driver_fuse_in_flight{"), "a gauge of what is gone");
    // The next process of the same version goes on counting.
    let end = look();
    assert_shows(&driver.published(&volume, "q"));
    assert!(look() > end);
}

#[test]
fn a_hung_mount_process_costs_a_scrape_its_deadline_and_is_seen() {
    if !can_mount_as_root("a_hung_mount_process_costs_a_scrape_its_deadline_and_is_seen") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    for uid in ["uid-1", "uid-2", "uid-3"] {
        assert_shows(&driver.published(&Volume::of(&cluster, uid), "p"));
    }
    let before = driver.metric(REQUESTS, "uid-1");
    let pids: Vec<u32> = ["uid-1", "uid-2"]
        .map(|uid| {
            let processes = driver.processes();
            let process = processes.iter().find(|process| process.to_str().unwrap().contains(uid)).unwrap();
            pid_in(&process.join("addresses.json")).unwrap()
        })
        .into();
    let stopped: Vec<Stopped> = pids.into_iter().map(Stopped::new).collect();
    let started = Instant::now();
    let text = driver.metrics_text();
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    assert!(text.contains("csi_driver_published_targets 3"), "{text}");
    let up = ["uid-1", "uid-2", "uid-3"].map(|uid| driver.metric(UP, uid));
    assert_eq!(up, [0, 0, 1]);
    assert!(driver.metric(REQUESTS, "uid-1") >= before, "what it counted stays");
    drop(stopped);
    until("it answers again", Duration::from_secs(20), || driver.metric(UP, "uid-1") == 1);
}
