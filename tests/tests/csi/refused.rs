//! What is kubelet told where a dataset cannot be published, and does it come once it can?

use std::path::Path;
use std::time::{Duration, Instant};

use millrace_api::keys::Key;
use millrace_csi_driver::csi::proto::volume_capability::{AccessType, BlockVolume, MountVolume};
use millrace_csi_driver::csi::proto::{NodeGetCapabilitiesRequest, NodeGetInfoRequest};
use millrace_s3_server::backend::memory::InMemory;
use millrace_tests::cluster::{Cluster, Setup, source};
use millrace_tests::skip::{can_mount_as_root, is_root, skipped};
use rustix::mount::{MountFlags, UnmountFlags};
use tonic::Code;

use super::driver::{Driver, Volume, refused, set_mount};
use super::publish::{assert_shows, cluster};

/// A volume of a dataset that nobody serves.
fn nowhere() -> Volume {
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    Volume::at(&listener.local_addr().unwrap().to_string(), &Key::new([1; 32]), "uid-0")
}

fn needs_root(name: &str) -> bool {
    if !is_root() {
        skipped(name, "needs root");
    }
    is_root()
}

#[test]
fn arguments_are_checked_as_the_specification_says() {
    if !needs_root("arguments_are_checked_as_the_specification_says") {
        return;
    }
    let driver = Driver::start(&[]);
    let (volume, target) = (nowhere(), driver.target());
    let changed = |change: &dyn Fn(&mut millrace_csi_driver::csi::proto::NodePublishVolumeRequest)| {
        let mut request = volume.request(&target, "p");
        change(&mut request);
        refused(Code::InvalidArgument, driver.publish_request(request))
    };
    assert!(changed(&|request| request.volume_id.clear()).contains("volume_id"));
    assert!(changed(&|request| request.target_path.clear()).contains("target_path"));
    assert!(changed(&|request| request.volume_capability = None).contains("volume_capability"));
    assert!(changed(&|request| request.secrets.clear()).contains("nodePublishSecretRef"));
    assert!(changed(&|request| drop(request.volume_context.remove("workers"))).contains("workers"));
    let access = |access: AccessType| {
        changed(&|request| request.volume_capability.as_mut().unwrap().access_type = Some(access.clone()))
    };
    assert!(access(AccessType::Block(BlockVolume {})).contains("Filesystem"));
    let mount_flags = vec!["noatime".to_owned()];
    assert!(access(AccessType::Mount(MountVolume { mount_flags, ..Default::default() })).contains("noatime"));
    let unnamed = Volume { id: String::new(), ..volume.clone() };
    refused(Code::InvalidArgument, driver.unpublish(&unnamed, &target));
    refused(Code::InvalidArgument, driver.unpublish(&volume, Path::new("")));
    refused(Code::InvalidArgument, driver.stats(&unnamed, &target).map(drop));
    refused(Code::InvalidArgument, driver.stats(&volume, Path::new("")).map(drop));
    refused(Code::NotFound, driver.stats(&volume, &target).map(drop));
    refused(Code::NotFound, driver.stats(&volume, Path::new("some/path")).map(drop));
    let mut node = driver.node();
    let (info, capabilities) = driver.runtime.block_on(async {
        (
            node.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner(),
            node.node_get_capabilities(NodeGetCapabilitiesRequest {}).await.unwrap().into_inner(),
        )
    });
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("node-a", 0));
    assert_eq!(capabilities.capabilities.len(), 2);
}

#[test]
fn a_node_without_fuse_says_so() {
    if !needs_root("a_node_without_fuse_says_so") {
        return;
    }
    let driver = Driver::start(&["--fuse-device", "/nonexistent/fuse"]);
    let message = refused(Code::FailedPrecondition, driver.publish(&nowhere(), &driver.target(), "p"));
    assert!(message.contains("node-a") && message.contains("modprobe fuse"), "{message}");
    assert_eq!(driver.metric("csi_driver_call_failures_total", "FailedPrecondition"), 1);
}

#[test]
fn workers_that_are_not_there_are_waited_for_and_named() {
    if !can_mount_as_root("workers_that_are_not_there_are_waited_for_and_named") {
        return;
    }
    let driver = Driver::start(&["--publish-wait-seconds", "2"]);
    let (volume, target) = (nowhere(), driver.target());
    let started = Instant::now();
    let message = refused(Code::Unavailable, driver.publish(&volume, &target, "p"));
    assert!(started.elapsed() >= Duration::from_secs(2));
    assert!(message.contains("vision/data") && message.contains(&volume.attributes["workers"]), "{message}");
    assert!(!target.exists());
    driver.unpublish(&volume, &target).unwrap();
}

#[test]
fn a_wrong_key_is_told_from_absent_workers() {
    if !can_mount_as_root("a_wrong_key_is_told_from_absent_workers") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&["--publish-wait-seconds", "3"]));
    let volume = Volume::at(&cluster.workers[0].data, &Key::new([9; 32]), "uid-1");
    let message = refused(Code::Unavailable, driver.publish(&volume, &driver.target(), "p"));
    assert!(message.contains("key"), "{message}");
}

#[test]
fn the_first_version_is_waited_for_inside_the_call() {
    if !can_mount_as_root("the_first_version_is_waited_for_inside_the_call") {
        return;
    }
    let objects = InMemory::new().with("a/one.bin", vec![1; 100_000]).with("three", "3");
    let mut cluster = Cluster::without_index(objects, &Setup::default());
    let driver = Driver::start(&["--publish-wait-seconds", "40"]);
    let impatient = Driver::start(&["--publish-wait-seconds", "1"]);
    let volume = Volume::of(&cluster, "uid-1");
    let message = refused(Code::FailedPrecondition, impatient.publish(&volume, &impatient.target(), "p"));
    assert!(message.contains("not indexed") && message.contains("vision/data"), "{message}");
    let target = driver.target();
    let (mut node, request) = (driver.node(), volume.request(&target, "p"));
    let call = driver.runtime.spawn(async move { node.node_publish_volume(request).await });
    cluster.make_index(&[source(&cluster.s3.endpoint())]);
    set_mount(&cluster, Default::default());
    driver.runtime.block_on(call).unwrap().unwrap();
    assert_shows(&target);
}

#[test]
fn a_target_in_use_is_not_taken_over() {
    if !can_mount_as_root("a_target_in_use_is_not_taken_over") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let target = driver.published(&volume, "p");
    let other = Volume { id: "another".into(), ..volume.clone() };
    let message = refused(Code::AlreadyExists, driver.publish(&other, &target, "q"));
    assert!(message.contains("uid-1"), "{message}");
    refused(Code::NotFound, driver.stats(&other, &target).map(drop));
    assert_shows(&target);
    let foreign = driver.target();
    std::fs::create_dir(&foreign).unwrap();
    rustix::mount::mount("none", &foreign, "tmpfs", MountFlags::empty(), None).unwrap();
    let message = refused(Code::FailedPrecondition, driver.publish(&volume, &foreign, "q"));
    assert!(message.contains("tmpfs"), "{message}");
    rustix::mount::unmount(&foreign, UnmountFlags::empty()).unwrap();
    driver.publish(&volume, &foreign, "q").unwrap();
    assert_shows(&foreign);
}

#[test]
fn a_folder_with_something_in_it_stays() {
    if !can_mount_as_root("a_folder_with_something_in_it_stays") {
        return;
    }
    let (cluster, driver) = (cluster(), Driver::start(&[]));
    let volume = Volume::of(&cluster, "uid-1");
    let target = driver.published(&volume, "p");
    rustix::mount::unmount(&target, UnmountFlags::DETACH).unwrap();
    std::fs::write(target.join("precious"), "x").unwrap();
    let message = refused(Code::Unavailable, driver.unpublish(&volume, &target));
    assert!(message.contains("remove the folder"), "{message}");
    assert_eq!(std::fs::read(target.join("precious")).unwrap(), b"x");
    std::fs::remove_file(target.join("precious")).unwrap();
    driver.unpublish(&volume, &target).unwrap();
    assert!(!target.exists());
}
