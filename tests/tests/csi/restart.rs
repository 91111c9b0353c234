//! What becomes of pods when the driver or a mount process is killed, at whatever step, or the node starts again?

use std::path::Path;
use std::time::Duration;

use millrace_csi_driver::node_mounts::process::pid_in;
use millrace_tests::mounted::is_mounted;
use millrace_tests::program::until;
use millrace_tests::skip::can_mount_as_root;
use rustix::mount::UnmountFlags;
use rustix::process::Signal;

use super::driver::{Driver, Volume, mounts_below, signal};
use super::publish::{assert_shows, cluster};

/// For a mount process to come up again and its targets to be replaced.
const AGAIN: Duration = Duration::from_secs(30);

/// Whether somebody serves it: what the kernel has kept can be read without, the room of the file system cannot be asked.
fn shows(target: &Path) -> bool {
    let is_right = std::fs::read(target.join("three")).is_ok_and(|content| content == b"3");
    is_right && rustix::fs::statfs(target).is_ok()
}

fn unmount(target: &Path) {
    rustix::mount::unmount(target, UnmountFlags::DETACH).unwrap();
}

#[test]
fn a_killed_driver_leaves_nothing_that_its_successor_does_not_mend() {
    if !can_mount_as_root("a_killed_driver_leaves_nothing_that_its_successor_does_not_mend") {
        return;
    }
    let (cluster, mut driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let (kept, gone) = (driver.published(&volume, "kept"), driver.published(&volume, "gone"));
    driver.program.kill();
    driver.restart();
    // A new pod works at once, the old target as soon as the mount process serves.
    let new = driver.published(&volume, "new");
    assert_shows(&new);
    until("the old target is replaced", AGAIN, || shows(&kept));
    assert_eq!(mounts_below(&kept).len(), 1);
    let trouble = driver.trouble(&volume, &kept).unwrap();
    assert!(trouble.contains("started again"), "{trouble}");
    assert_eq!(driver.trouble(&volume, &new), None);
    for target in [&kept, &gone, &new] {
        driver.unpublish(&volume, target).unwrap();
        assert!(!target.exists());
    }
    until("the mount process ends", Duration::from_secs(20), || driver.processes().is_empty());
    assert_eq!(mounts_below(&driver.plugin_dir().join("state/mounts")).len(), 0);
}

#[test]
fn a_stopped_driver_takes_its_processes_along_and_its_successor_goes_on() {
    if !can_mount_as_root("a_stopped_driver_takes_its_processes_along_and_its_successor_goes_on") {
        return;
    }
    let (cluster, mut driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let target = driver.published(&volume, "p");
    let pid = driver.mount_pid();
    let (status, _) = driver.program.terminate();
    assert!(status.success(), "{}", driver.program.log());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    // A container that starts now fails, which is better than an empty folder.
    assert!(is_mounted(&target) && std::fs::read_dir(&target).is_err());
    driver.restart();
    until("the target is replaced", AGAIN, || shows(&target));
}

/// Each state that a kill between two steps of publish or unpublish leaves, and then either call.
#[test]
fn a_kill_between_any_two_steps_is_made_good_by_either_call() {
    if !can_mount_as_root("a_kill_between_any_two_steps_is_made_good_by_either_call") {
        return;
    }
    let (cluster, mut driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let records = driver.plugin_dir().join("state/targets");
    for step in 0..6 {
        for is_publish in [true, false] {
            let target = driver.published(&volume, "p");
            driver.program.kill();
            let forget = || {
                let record = std::fs::read_dir(&records).unwrap().next().unwrap().unwrap().path();
                std::fs::remove_file(record).unwrap();
            };
            match step {
                // Written down and mounted.
                0 => {}
                // Written down, folder made.
                1 => unmount(&target),
                // Written down only.
                2 => {
                    unmount(&target);
                    std::fs::remove_dir(&target).unwrap();
                }
                // Unmounted, folder left, forgotten.
                3 => {
                    unmount(&target);
                    forget();
                }
                // Mounted, but not known.
                4 => forget(),
                // Half of a record.
                _ => {
                    let record = std::fs::read_dir(&records).unwrap().next().unwrap().unwrap().path();
                    std::fs::rename(&record, record.with_extension("partial")).unwrap();
                }
            }
            driver.restart();
            if is_publish {
                driver.publish(&volume, &target, "p").unwrap();
                assert!(shows(&target), "step {step}");
                assert_eq!(mounts_below(&target).len(), 1, "step {step}");
            }
            driver.unpublish(&volume, &target).unwrap();
            assert!(!target.exists() && !is_mounted(&target), "step {step}");
            assert_eq!(std::fs::read_dir(&records).unwrap().count(), 0, "step {step}");
        }
    }
}

#[test]
fn a_reboot_voids_what_was_published_and_kubelet_publishes_again() {
    if !can_mount_as_root("a_reboot_voids_what_was_published_and_kubelet_publishes_again") {
        return;
    }
    let (cluster, mut driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let (again, gone) = (driver.published(&volume, "again"), driver.published(&volume, "gone"));
    driver.program.kill();
    signal(pid_in(&driver.processes()[0].join("addresses.json")).unwrap(), Signal::KILL);
    // No mount outlives the kernel, the keys' memory neither; folders and records do.
    mounts_below(driver.dir()).iter().for_each(|point| unmount(point));
    for record in std::fs::read_dir(driver.plugin_dir().join("state/targets")).unwrap() {
        let path = record.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        assert!(text.contains(boot.trim()));
        std::fs::write(&path, text.replace(boot.trim(), "an-earlier-boot")).unwrap();
    }
    driver.restart();
    assert_eq!(driver.metric("csi_driver_published_targets", ""), 0);
    driver.publish(&volume, &again, "again").unwrap();
    assert_shows(&again);
    assert!(gone.exists());
    driver.unpublish(&volume, &gone).unwrap();
    assert!(!gone.exists());
}

#[test]
fn a_mount_process_that_dies_is_started_again_and_its_targets_are_replaced() {
    if !can_mount_as_root("a_mount_process_that_dies_is_started_again_and_its_targets_are_replaced") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let target = driver.published(&volume, "p");
    let pid = driver.mount_pid();
    signal(pid, Signal::KILL);
    until("the target is replaced", AGAIN, || shows(&target));
    assert_ne!(driver.mount_pid(), pid);
    let trouble = driver.trouble(&volume, &target).unwrap();
    assert!(trouble.contains("started again"), "{trouble}");
    assert_eq!(driver.metric("csi_driver_mount_process_restarts_total", "died"), 1);
    let next = driver.published(&volume, "q");
    assert_eq!(driver.trouble(&volume, &next), None);
}

#[test]
fn a_driver_that_ends_without_pods_leaves_nothing_mounted() {
    if !can_mount_as_root("a_driver_that_ends_without_pods_leaves_nothing_mounted") {
        return;
    }
    let (cluster, mut driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let target = driver.published(&volume, "p");
    driver.unpublish(&volume, &target).unwrap();
    // Its mount process may be kept for the next pod at this moment.
    let (status, _) = driver.program.terminate();
    assert!(status.success(), "{}", driver.program.log());
    assert_eq!(mounts_below(driver.dir()).len(), 0);
}

#[test]
fn keys_are_in_memory_only_and_go_with_the_last_pod() {
    if !can_mount_as_root("keys_are_in_memory_only_and_go_with_the_last_pod") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let target = driver.published(&volume, "p");
    let keys = driver.plugin_dir().join("state/keys");
    assert!(is_mounted(&keys));
    assert_eq!(std::fs::read_dir(&keys).unwrap().count(), 1);
    driver.unpublish(&volume, &target).unwrap();
    until("the key is gone", Duration::from_secs(20), || std::fs::read_dir(&keys).unwrap().count() == 0);
    let key = &volume.secrets["data.key"];
    assert!(!driver.program.log().contains(key));
    let targets = driver.published(&volume, "q");
    for record in std::fs::read_dir(driver.plugin_dir().join("state/targets")).unwrap() {
        assert!(!std::fs::read_to_string(record.unwrap().path()).unwrap().contains(key));
    }
    driver.unpublish(&volume, &targets).unwrap();
}
