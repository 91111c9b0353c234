//! What do readers see when the node store's disk is of another kind, rots, or is emptied?

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use millrace_tests::cluster::{Cluster, MIB};
use millrace_tests::content::{Files, check_file};
use millrace_tests::mounted::Mounted;
use millrace_tests::program::until;
use millrace_tests::skip::{can_mount_as_root, output_of};

use crate::stacked::{OnFolder, overlay};

use super::{WAIT, is_right, keeping, opens, passes_through, reads, verified, warmed};

fn data_files(store: &Path) -> Vec<PathBuf> {
    let listed = output_of(std::process::Command::new("find").arg(store).args(["-name", "*.data"]));
    listed.lines().map(PathBuf::from).collect()
}

/// The store's file of an object, by its size.
fn data_file(store: &Path, size: u64) -> PathBuf {
    let mut found = data_files(store).into_iter().filter(|path| path.metadata().unwrap().len() == size);
    found.next().unwrap_or_else(|| panic!("no store file of {size} bytes"))
}

fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 2], at).unwrap();
}

/// Overlayfs keeps the first node that a name had, and takes another one for damage.
#[test]
fn overlay_over_the_mount_is_never_told_of_another_node() {
    let name = "overlay_over_the_mount_is_never_told_of_another_node";
    if !can_mount_as_root(name) {
        return;
    }
    let files = Files::new().with("dir/kept-open", 4 * MIB + 5);
    let cluster = Cluster::of(files.objects());
    let mounted = Mounted::start(&cluster, &keeping(&cluster.new_dir("store")));
    let (layers, over) = (cluster.new_dir("layers"), cluster.new_dir("over"));
    if !passes_through(name, &mounted) || !overlay(&layers, &mounted.point, &over) {
        return;
    }
    let over = OnFolder(over);
    let open = || File::open(over.0.join("dir/kept-open")).unwrap();
    let first = open();
    assert!(is_right(&first, "dir/kept-open"));
    until("it is verified", WAIT, || verified(&mounted) == 1);
    assert!(is_right(&open(), "dir/kept-open"));
    assert_eq!(opens(&mounted, "held"), 1);
    // Somebody beside the overlay is sent to the other node.
    let beside = File::open(mounted.path("dir/kept-open")).unwrap();
    assert!(is_right(&beside, "dir/kept-open") && opens(&mounted, "passthrough") == 1);
    assert!(is_right(&open(), "dir/kept-open"));
    drop((first, beside));
    until("all is closed", WAIT, || mounted.metric("csi_driver_open_files", "") == 0);
    assert!(is_right(&open(), "dir/kept-open"));
    assert_eq!(opens(&mounted, "passthrough"), 2);
}

#[test]
fn node_store_on_a_stacked_file_system_is_read_through_us() {
    let name = "node_store_on_a_stacked_file_system_is_read_through_us";
    if !can_mount_as_root(name) {
        return;
    }
    let files = Files::new().with("one", 3 * MIB).with("small", 10_000);
    let cluster = Cluster::of(files.objects());
    let (layers, store) = (cluster.new_dir("layers"), cluster.new_dir("store"));
    if !overlay(&layers, &cluster.new_dir("lower"), &store) {
        return;
    }
    let _mount = OnFolder(store.clone());
    let setup = keeping(&store);
    let mounted = warmed(&cluster, &files, &setup).restart(&cluster, &setup);
    let off = |label| mounted.metric("csi_driver_passthrough", label);
    assert_eq!(
        (off("state=\"off\",reason=\"stacked\"") + off("reason=\"stacked\",state=\"off\""), off("")),
        (1, 1)
    );
    files.check(&mounted.point);
    assert!(reads(&mounted) > 0);
    assert_eq!(mounted.fetched_bytes(), 0);
    assert_eq!(mounted.program.log().matches("files are read through this process").count(), 2, "once each");
    cluster.assert_quiet();
}

#[test]
fn node_store_on_a_tmpfs_passes_through() {
    let name = "node_store_on_a_tmpfs_passes_through";
    if !can_mount_as_root(name) {
        return;
    }
    let files = Files::new().with("one", 3 * MIB);
    let cluster = Cluster::of(files.objects());
    let store = cluster.new_dir("store");
    output_of(
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=600m", "none"]).arg(&store),
    );
    let _mount = OnFolder(store.clone());
    let setup = keeping(&store);
    let mounted = warmed(&cluster, &files, &setup);
    if !passes_through(name, &mounted) {
        return;
    }
    let mounted = mounted.restart(&cluster, &setup);
    files.check(&mounted.point);
    assert_eq!((reads(&mounted), opens(&mounted, "passthrough")), (0, 1));
}

/// A seal that says nothing, as after a reboot.
fn break_seals(store: &Path) {
    let sidecars = output_of(std::process::Command::new("find").arg(store).args(["-name", "*.map"]));
    sidecars.lines().for_each(|path| flip(Path::new(path), 57));
}

#[test]
fn files_not_verified_in_this_boot_are_verified_before_they_pass_through() {
    let name = "files_not_verified_in_this_boot_are_verified_before_they_pass_through";
    if !can_mount_as_root(name) {
        return;
    }
    let files = Files::new().with("little", 2 * MIB).with("large", 20 * MIB);
    let cluster = Cluster::of(files.objects());
    let store = cluster.new_dir("store");
    output_of(std::process::Command::new("mount").arg("--bind").arg(&store).arg(&store));
    let _mount = OnFolder(store.clone());
    let setup = keeping(&store);
    let mut mounted = warmed(&cluster, &files, &setup);
    if !passes_through(name, &mounted) {
        return;
    }
    assert!(mounted.program.terminate().0.success());
    break_seals(&store);
    let mut mounted = mounted.restart(&cluster, &setup);
    check_file(&mounted.point, "little", 2 * MIB);
    assert_eq!((opens(&mounted, "passthrough"), verified(&mounted)), (1, 1), "inside its open");
    check_file(&mounted.point, "large", 20 * MIB);
    assert_eq!(opens(&mounted, "unverified"), 1);
    until("it is verified behind the reader", WAIT, || verified(&mounted) == 2);
    until("it is closed", WAIT, || mounted.metric("csi_driver_open_files", "") == 0);
    check_file(&mounted.point, "large", 20 * MIB);
    assert_eq!(opens(&mounted, "passthrough"), 2);

    // Where nothing can be noted, not every open pays for a verification.
    assert!(mounted.program.terminate().0.success());
    break_seals(&store);
    output_of(std::process::Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&store));
    let mounted = mounted.restart(&cluster, &setup);
    for _ in 0..5 {
        files.check(&mounted.point);
    }
    assert_eq!((opens(&mounted, "passthrough"), opens(&mounted, "unverified")), (0, 10));
    assert!(mounted.metric("csi_driver_verifications_total", "") <= 2);
    assert_eq!(mounted.fetched_bytes(), 0);
}

#[test]
fn disk_that_rots_below_an_open_file_is_found_and_later_opens_are_right() {
    let name = "disk_that_rots_below_an_open_file_is_found_and_later_opens_are_right";
    if !can_mount_as_root(name) {
        return;
    }
    let files = Files::new().with("rots", 6 * MIB + 3).with("stays", 2 * MIB);
    let cluster = Cluster::of(files.objects());
    let store = cluster.new_dir("store");
    let setup = keeping(&store).arg("--scrub-rate", "1Gi").arg("--scrub-every-seconds", "1");
    let mounted = warmed(&cluster, &files, &setup);
    if !passes_through(name, &mounted) {
        return;
    }
    let (open, stays) =
        (File::open(mounted.path("rots")).unwrap(), File::open(mounted.path("stays")).unwrap());
    assert_eq!(opens(&mounted, "passthrough"), 2);
    flip(&data_file(&store, 6 * MIB + 3), 4 * MIB + 1);
    until("the scrub has found it", WAIT, || {
        mounted.metric("csi_driver_node_store_corrupt_chunks_total", "") > 0
    });
    // Whoever has it open reads what the kernel has; every open from here on is right.
    assert!(!is_right(&open, "rots"));
    for _ in 0..3 {
        check_file(&mounted.point, "rots", 6 * MIB + 3);
    }
    until("it is verified anew", WAIT, || verified(&mounted) >= 3);
    drop(open);
    until("it is closed", WAIT, || mounted.metric("csi_driver_open_files", "") == 1);
    let before = (reads(&mounted), opens(&mounted, "passthrough"));
    check_file(&mounted.point, "rots", 6 * MIB + 3);
    assert_eq!((reads(&mounted), opens(&mounted, "passthrough")), (before.0, before.1 + 1));
    assert!(is_right(&stays, "stays"));
    assert!(mounted.metric("csi_driver_scrub_bytes_total", "") >= 2 * MIB);
}

#[test]
fn store_that_is_emptied_below_open_files_is_filled_again() {
    let name = "store_that_is_emptied_below_open_files_is_filled_again";
    if !can_mount_as_root(name) {
        return;
    }
    let files = Files::new().with_many("f", 4, 2 * MIB);
    let cluster = Cluster::of(files.objects());
    let store = cluster.new_dir("store");
    let mounted = warmed(&cluster, &files, &keeping(&store));
    if !passes_through(name, &mounted) {
        return;
    }
    let open = File::open(mounted.path("f/001")).unwrap();
    std::fs::remove_dir_all(store.join("blocks")).unwrap();
    assert!(is_right(&open, "f/001"), "the kernel still has it");
    for _ in 0..3 {
        files.check(&mounted.point);
    }
    assert!(is_right(&open, "f/001"));
}
