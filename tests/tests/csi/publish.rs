//! Does a pod read what is in the bucket, and nobody writes?

use std::path::Path;
use std::time::Duration;

use millrace_control::proto::MountSettings;
use millrace_csi_driver::csi::proto::volume_capability::access_mode::Mode;
use millrace_csi_driver::csi::proto::volume_capability::{AccessType, MountVolume};
use millrace_csi_driver::csi::proto::volume_usage::Unit;
use millrace_s3_server::backend::memory::InMemory;
use millrace_tests::cluster::{Cluster, source};
use millrace_tests::mounted::is_mounted;
use millrace_tests::program::until;
use millrace_tests::skip::{can_mount_as_root, skipped};

use super::driver::{Driver, Volume, mounts_below, set_mount};

fn objects() -> InMemory {
    InMemory::new().with("a/one.bin", vec![1; 100_000]).with("a/two.bin", vec![2; 3]).with("three", "3")
}

/// Whether the target shows what is in the bucket.
pub fn assert_shows(target: &Path) {
    assert_eq!(std::fs::read(target.join("a/one.bin")).unwrap(), vec![1; 100_000]);
    assert_eq!(std::fs::read(target.join("three")).unwrap(), b"3");
}

/// A worker with a few objects, which has been told how to mount them.
pub fn cluster() -> Cluster {
    let cluster = Cluster::of(objects());
    set_mount(&cluster, MountSettings { node_cache_quota_bytes: 1 << 30, ..MountSettings::default() });
    cluster
}

#[test]
fn a_pod_reads_what_is_in_the_bucket_and_cannot_write() {
    if !can_mount_as_root("a_pod_reads_what_is_in_the_bucket_and_cannot_write") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let target = driver.published(&volume, "train-0");
    assert_shows(&target);
    for attempt in [
        std::fs::write(target.join("new"), "x"),
        std::fs::write(target.join("three"), "x"),
        std::fs::create_dir(target.join("folder")),
        std::fs::remove_file(target.join("three")),
    ] {
        assert_eq!(attempt.unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
    let stats = driver.stats(&volume, &target).unwrap();
    let of = |unit: Unit| stats.usage.iter().find(|usage| usage.unit == i32::from(unit)).unwrap();
    // Counted in blocks of the file system.
    assert!(of(Unit::Bytes).total >= 100_004 && of(Unit::Bytes).total < 120_000, "{stats:?}");
    assert_eq!((of(Unit::Inodes).total, of(Unit::Inodes).used, of(Unit::Inodes).available), (5, 5, 0));
    assert!(!stats.volume_condition.unwrap().abnormal);
    driver.unpublish(&volume, &target).unwrap();
    assert!(!target.exists() && target.parent().unwrap().exists());
    until("the mount process ends", Duration::from_secs(20), || driver.processes().is_empty());
    assert_eq!(mounts_below(&driver.plugin_dir().join("state/mounts")).len(), 0);
    assert_eq!(driver.metric("csi_driver_published_targets", ""), 0);
    assert_eq!(driver.metric("csi_driver_call_seconds_count", "\"publish\""), 1);
}

#[test]
fn every_access_mode_and_a_target_that_is_there_are_served_read_only() {
    if !can_mount_as_root("every_access_mode_and_a_target_that_is_there_are_served_read_only") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    for mode in [Mode::SingleNodeWriter, Mode::MultiNodeMultiWriter, Mode::SingleNodeSingleWriter] {
        let target = driver.target();
        std::fs::create_dir(&target).unwrap();
        let mut request = volume.request(&target, "p");
        request.readonly = false;
        request.volume_capability.as_mut().unwrap().access_mode.as_mut().unwrap().mode = mode.into();
        driver.publish_request(request).unwrap();
        assert_shows(&target);
        assert!(std::fs::write(target.join("x"), "y").is_err());
        driver.unpublish(&volume, &target).unwrap();
    }
}

#[test]
fn pods_of_a_version_share_one_mount_process_which_knows_them() {
    if !can_mount_as_root("pods_of_a_version_share_one_mount_process_which_knows_them") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let targets = ["a", "b"].map(|pod| driver.published(&volume, pod));
    let pid = driver.mount_pid();
    targets.iter().for_each(|target| assert_shows(target));
    let names = || -> Vec<String> {
        let sessions = cluster.status(0).sessions;
        let ours = sessions.iter().filter(|session| session.node == "node-a");
        ours.flat_map(|session| session.pods.iter().map(|pod| pod.name.clone())).collect()
    };
    until("the worker knows both pods", Duration::from_secs(20), || names() == ["a", "b"]);
    driver.unpublish(&volume, &targets[0]).unwrap();
    until("the worker knows that one is gone", Duration::from_secs(20), || names() == ["b"]);
    assert_shows(&targets[1]);
    driver.unpublish(&volume, &targets[1]).unwrap();
    // The next epoch's pod comes at once.
    let target = driver.published(&volume, "c");
    assert_eq!(driver.mount_pid(), pid);
    assert_shows(&target);
}

#[test]
fn repeated_calls_change_nothing() {
    if !can_mount_as_root("repeated_calls_change_nothing") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    driver.unpublish(&volume, &driver.target()).unwrap();
    let target = driver.target();
    for _ in 0..3 {
        driver.publish(&volume, &target, "p").unwrap();
        let layers = mounts_below(&target);
        assert_eq!(layers, [target.canonicalize().unwrap()]);
    }
    assert_shows(&target);
    for _ in 0..3 {
        driver.unpublish(&volume, &target).unwrap();
        assert!(!target.exists() && !is_mounted(&target));
    }
}

#[test]
fn concurrent_calls_on_one_target_end_in_one_mount_or_none() {
    if !can_mount_as_root("concurrent_calls_on_one_target_end_in_one_mount_or_none") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let target = driver.target();
    let publish = |count: usize| {
        let calls: Vec<_> = (0..count)
            .map(|_| {
                let (mut node, request) = (driver.node(), volume.request(&target, "p"));
                driver.runtime.spawn(async move { node.node_publish_volume(request).await })
            })
            .collect();
        calls.into_iter().for_each(|call| drop(driver.runtime.block_on(call).unwrap().unwrap()));
    };
    publish(8);
    assert_eq!(mounts_below(&target).len(), 1);
    assert_shows(&target);
    // A caller that gives up leaves a call that goes on.
    let other = driver.target();
    let (mut node, request) = (driver.node(), volume.request(&other, "q"));
    driver.runtime.block_on(async {
        let _ = tokio::time::timeout(Duration::from_micros(300), node.node_publish_volume(request)).await;
    });
    driver.unpublish(&volume, &other).unwrap();
    driver.unpublish(&volume, &target).unwrap();
    assert!(!target.exists());
    until("nothing is published", Duration::from_secs(10), || {
        driver.metric("csi_driver_published_targets", "") == 0
    });
}

#[test]
fn new_pods_get_the_new_version_and_running_ones_keep_theirs() {
    if !can_mount_as_root("new_pods_get_the_new_version_and_running_ones_keep_theirs") {
        return;
    }
    let (mut cluster, driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let old = driver.published(&volume, "old");
    cluster.objects.put("four", "4");
    cluster.make_index(&[source(&cluster.s3.endpoint())]);
    set_mount(&cluster, MountSettings::default());
    let new = driver.published(&volume, "new");
    assert_eq!(std::fs::read(new.join("four")).unwrap(), b"4");
    assert_eq!((old.join("three").exists(), old.join("four").exists()), (true, false));
    assert_eq!(driver.processes().len(), 2);
    // The index of the version that goes stays until another takes its place.
    let indexes = || std::fs::read_dir(driver.dir().join("cache/uid-1/indexes")).unwrap().flatten().count();
    let before = indexes();
    driver.unpublish(&volume, &old).unwrap();
    until("the old version's process ends", Duration::from_secs(20), || driver.processes().len() == 1);
    cluster.objects.put("five", "5");
    cluster.make_index(&[source(&cluster.s3.endpoint())]);
    set_mount(&cluster, MountSettings::default());
    let newest = driver.published(&volume, "newest");
    assert!(newest.join("five").exists());
    until("the first index is removed", Duration::from_secs(20), || indexes() == before);
}

#[test]
fn a_context_is_no_hindrance_where_the_kernel_has_no_labels() {
    if !can_mount_as_root("a_context_is_no_hindrance_where_the_kernel_has_no_labels") {
        return;
    }
    if std::fs::read_to_string("/proc/filesystems").unwrap().contains("selinuxfs") {
        return skipped("a_context_is_no_hindrance_where_the_kernel_has_no_labels", "the kernel has SELinux");
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let target = driver.target();
    let mut request = volume.request(&target, "p");
    let mount_flags = vec!["context=\"system_u:object_r:container_file_t:s0:c1,c2\"".to_owned()];
    let mount = MountVolume { mount_flags, ..MountVolume::default() };
    request.volume_capability.as_mut().unwrap().access_type = Some(AccessType::Mount(mount));
    driver.publish_request(request).unwrap();
    assert_shows(&target);
}

#[test]
fn owner_and_permissions_are_as_the_workers_say() {
    use std::os::unix::fs::MetadataExt;
    if !can_mount_as_root("owner_and_permissions_are_as_the_workers_say") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    let mount = MountSettings {
        version: cluster.version.clone(),
        node_cache_quota_bytes: 1 << 30,
        uid: 1234,
        gid: 100,
        file_mode: 0o440,
        dir_mode: 0o550,
        mode: 0,
    };
    set_mount(&cluster, mount);
    let target = driver.published(&Volume::of(&cluster, "uid-1"), "p");
    let file = std::fs::metadata(target.join("three")).unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (1234, 100, 0o440));
    assert_eq!(std::fs::metadata(target.join("a")).unwrap().mode() & 0o7777, 0o550);
}

#[test]
fn what_was_read_outlives_pods_within_the_nodes_limit() {
    if !can_mount_as_root("what_was_read_outlives_pods_within_the_nodes_limit") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&["--node-cache-limit", "100Mi"]));
    let quota = |bytes| MountSettings { node_cache_quota_bytes: bytes, ..MountSettings::default() };
    set_mount(&cluster, quota(1 << 30));
    let volume = Volume::of(&cluster, "uid-1");
    let target = driver.published(&volume, "p");
    assert_shows(&target);
    assert_eq!(driver.metric("csi_driver_node_cache_granted_bytes", ""), 100 << 20);
    driver.unpublish(&volume, &target).unwrap();
    until("the mount process ends", Duration::from_secs(20), || driver.processes().is_empty());
    assert!(driver.dir().join("cache/uid-1/store").exists());
    // A second Dataset needs the room.
    set_mount(&cluster, quota(90 << 20));
    let other = Volume::of(&cluster, "uid-2");
    assert_shows(&driver.published(&other, "q"));
    assert!(!driver.dir().join("cache/uid-1").exists());
    assert_eq!(driver.metric("csi_driver_node_cache_granted_bytes", ""), 90 << 20);
}
