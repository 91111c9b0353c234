//! Does a change of a Dataset's mount settings reach who it should: what a node keeps at once, how files look pods that start
//! later?

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use millrace_control::proto::MountSettings;
use millrace_tests::program::until;
use millrace_tests::skip::can_mount_as_root;

use super::driver::{Driver, Volume, set_mount};
use super::publish::{assert_shows, cluster};

/// For a question to the workers and a look at a file, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(20);

const STORE: &str = "csi_driver_node_store_bytes";

fn quota(node_cache_quota_bytes: u64) -> MountSettings {
    MountSettings { node_cache_quota_bytes, file_mode: 0o444, dir_mode: 0o555, ..MountSettings::default() }
}

#[test]
fn a_changed_quota_reaches_a_mount_process_that_runs() {
    if !can_mount_as_root("a_changed_quota_reaches_a_mount_process_that_runs") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&["--refresh-seconds", "1"]));
    let volume = Volume::of(&cluster, "uid-1");
    set_mount(&cluster, quota(1 << 30));
    let target = driver.published(&volume, "p");
    assert_shows(&target);
    let (pid, state) =
        (driver.mount_pid(), |state: &str| driver.metric(STORE, &format!("state=\"{state}\"")));
    assert_eq!(state("quota"), 1 << 30);
    until("what was read is kept", SOON, || state("used") > 100_000);
    // Switched off: what is kept goes, and reads go on.
    set_mount(&cluster, quota(0));
    until("nothing may be kept", SOON, || state("quota") == 0 && state("used") == 0);
    assert_eq!(driver.metric("csi_driver_node_cache_granted_bytes", ""), 0);
    assert_shows(&target);
    // And on again.
    set_mount(&cluster, quota(3 << 30));
    until("more may be kept", SOON, || state("quota") == 3 << 30);
    until("what is read is kept", SOON, || {
        // Past the kernel's own cache.
        std::fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
        assert_shows(&target);
        state("used") > 100_000
    });
    assert_eq!(driver.mount_pid(), pid, "the same process");
}

#[test]
fn a_pod_that_starts_later_sees_the_new_owner_beside_one_that_runs() {
    if !can_mount_as_root("a_pod_that_starts_later_sees_the_new_owner_beside_one_that_runs") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&["--refresh-seconds", "1"]));
    let volume = Volume::of(&cluster, "uid-1");
    set_mount(&cluster, quota(1 << 30));
    let first = driver.published(&volume, "first");
    let look = |target: &std::path::Path| {
        let metadata = std::fs::metadata(target.join("three")).unwrap();
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
    };
    let settings =
        MountSettings { uid: 1000, gid: 2000, file_mode: 0o440, dir_mode: 0o550, ..quota(2 << 30) };
    set_mount(&cluster, settings);
    let second = driver.published(&volume, "second");
    assert_eq!(look(&second), (1000, 2000, 0o440));
    assert_eq!(look(&first), (0, 0, 0o444), "a pod that runs sees no change");
    assert_eq!(driver.processes().len(), 2);
    // One store for both, so one quota, and series that are told apart.
    until("both know the quota", SOON, || driver.metric(STORE, "state=\"quota\"") == 2 * (2 << 30));
    assert_eq!(driver.metric("csi_driver_mount_process_up", "variant=\""), 1);
    assert_eq!(driver.metric("csi_driver_mount_process_up", ""), 2);
    // A target keeps its look when it is published again.
    driver.publish(&volume, &first, "first").unwrap();
    assert_eq!(look(&first), (0, 0, 0o444));
    driver.unpublish(&volume, &first).unwrap();
    until("the first process ends", SOON, || driver.processes().len() == 1);
    assert_eq!(look(&second), (1000, 2000, 0o440));
}
