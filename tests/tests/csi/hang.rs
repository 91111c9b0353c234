//! Does a mount that hangs hold up anybody but its own readers?

use std::time::{Duration, Instant};

use millrace_csi_driver::node_mounts::process::pid_in;
use millrace_tests::program::until;
use millrace_tests::skip::can_mount_as_root;
use rustix::process::Signal;

use super::driver::{Driver, Volume, mounts_below, signal};
use super::publish::{assert_shows, cluster};

/// Far less than any deadline of a step would take if a call waited for the hung mount.
const SOON: Duration = Duration::from_secs(8);

/// Lets a stopped process go on, also when the test fails.
pub struct Stopped(u32);

impl Stopped {
    pub fn new(pid: u32) -> Self {
        signal(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.0.cast_signed()) {
            // It may have been killed meanwhile.
            let _ = rustix::process::kill_process(pid, Signal::CONT);
        }
    }
}

#[test]
fn a_hung_mount_blocks_no_other_volume_and_goes_when_its_pods_go() {
    if !can_mount_as_root("a_hung_mount_blocks_no_other_volume_and_goes_when_its_pods_go") {
        return;
    }
    let (one, other, driver) = (cluster(), cluster(), Driver::start(&[]));
    let (hung, well) = (Volume::of(&one, "uid-hung"), Volume::of(&other, "uid-well"));
    let targets = [driver.published(&hung, "a"), driver.published(&hung, "b")];
    let pid = pid_in(&driver.processes()[0].join("addresses.json")).unwrap();
    let stopped = Stopped::new(pid);
    // A reader that hangs in it.
    let file = targets[0].join("a/one.bin");
    let reader = std::thread::spawn(move || std::fs::read(file));

    let started = Instant::now();
    let target = driver.published(&well, "c");
    assert_shows(&target);
    assert_eq!(driver.trouble(&well, &target), None);
    let trouble = driver.trouble(&hung, &targets[0]).unwrap();
    assert!(trouble.contains("no answer"), "{trouble}");
    driver.unpublish(&well, &target).unwrap();
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());

    let started = Instant::now();
    targets.iter().for_each(|target| driver.unpublish(&hung, target).unwrap());
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    assert!(targets.iter().all(|target| !target.exists()));
    // With its last pod gone it is ended, and with it whoever waits in it.
    until("the hung process is gone", Duration::from_secs(30), || driver.processes().is_empty());
    assert!(reader.join().unwrap().is_err());
    assert_eq!(mounts_below(&driver.plugin_dir().join("state/mounts")).len(), 0);
    drop(stopped);
    // The Dataset works again.
    assert_shows(&driver.published(&hung, "d"));
}
