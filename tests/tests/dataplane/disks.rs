//! What do readers see when the disks under the stores are full, read-only or wrong?

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_tests::cluster::{Cluster, MIB, Setup};
use millrace_tests::content::{Files, check_part, forget_pages};
use millrace_tests::mounted::{MountSetup, Mounted, detach};
use millrace_tests::program::until;
use millrace_tests::skip::{can_mount, can_mount_as_root, output_of};

fn files() -> Files {
    Files::new().with_many("large", 6, 2 * MIB + 5).with_many("small", 60, 40_000)
}

fn check_twice(files: &Files, mounted: &Mounted) {
    for _ in 0..2 {
        files.check(&mounted.point);
        files.0.iter().for_each(|(key, _)| forget_pages(&mounted.path(key)));
    }
}

#[test]
fn node_store_evicts_to_stay_within_its_quota() {
    if !can_mount("node_store_evicts_to_stay_within_its_quota") {
        return;
    }
    let (files, cluster) = (files(), Cluster::of(files().objects()));
    let setup = MountSetup::keeping(cluster.new_dir("store")).arg("--node-store-quota", "4Mi");
    let mounted = Mounted::start(&cluster, &setup);
    check_twice(&files, &mounted);
    assert!(mounted.metric("csi_driver_node_store_evictions_total", "") > 0);
    assert!(mounted.metric("csi_driver_node_store_bytes", "state=\"used\"") <= 4 * MIB);
    cluster.assert_quiet();
}

#[test]
fn node_store_that_is_switched_off_keeps_nothing() {
    if !can_mount("node_store_that_is_switched_off_keeps_nothing") {
        return;
    }
    let (files, cluster) = (files(), Cluster::of(files().objects()));
    let store = cluster.new_dir("store");
    let setup = MountSetup::keeping(&store).arg("--node-store-quota", "0");
    let mounted = Mounted::start(&cluster, &setup);
    check_twice(&files, &mounted);
    assert_eq!(std::fs::read_dir(&store).unwrap().count(), 0);
    cluster.assert_quiet();
}

/// A file system on a folder of the test.
struct OnFolder(PathBuf);

impl Drop for OnFolder {
    fn drop(&mut self) {
        detach(&self.0);
    }
}

fn run(program: &str, args: &[&str], path: &Path) {
    output_of(std::process::Command::new(program).args(args).arg(path));
}

#[test]
fn node_store_on_a_full_disk_is_done_without() {
    if !can_mount_as_root("node_store_on_a_full_disk_is_done_without") {
        return;
    }
    let (files, cluster) = (files(), Cluster::of(files().objects()));
    let store = cluster.new_dir("store");
    run("mount", &["-t", "tmpfs", "-o", "size=8m", "none"], &store);
    let _mount = OnFolder(store.clone());
    let mounted = Mounted::start(&cluster, &MountSetup::keeping(&store));
    check_twice(&files, &mounted);
    assert!(mounted.metric("csi_driver_node_store_not_kept_total", "") > 0);
}

#[test]
fn node_store_on_a_read_only_disk_is_read_and_not_written() {
    if !can_mount_as_root("node_store_on_a_read_only_disk_is_read_and_not_written") {
        return;
    }
    let (files, cluster) = (files(), Cluster::of(files().objects()));
    let store = cluster.new_dir("store");
    run("mount", &["--bind", store.to_str().unwrap()], &store);
    let _mount = OnFolder(store.clone());
    let setup = MountSetup::keeping(&store);
    let mut mounted = Mounted::start(&cluster, &setup);
    check_part(&mounted.point, "large/000", 0, MIB as usize).unwrap();
    mounted.wait_until_stored(MIB);
    assert!(mounted.program.terminate().0.success());
    run("mount", &["-o", "remount,bind,ro"], &store);
    let mounted = mounted.restart(&cluster, &setup);
    check_part(&mounted.point, "large/000", 0, MIB as usize).unwrap();
    assert!(mounted.metric("csi_driver_reads_total", "hit") > 0, "{}", mounted.program.log());
    check_twice(&files, &mounted);
}

/// Flips a bit in every chunk of the store files below `dir`.
fn flip(dir: &Path) -> usize {
    let mut flipped = 0;
    for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()) {
        if entry.file_type().unwrap().is_dir() {
            flipped += flip(&entry.path());
        } else if entry.metadata().unwrap().len() >= 65_536 {
            let file = std::fs::File::options().read(true).write(true).open(entry.path()).unwrap();
            for at in (1000..entry.metadata().unwrap().len()).step_by(65_536) {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 4], at).unwrap();
                flipped += 1;
            }
        }
    }
    flipped
}

#[test]
fn flipped_bits_are_found_counted_and_fetched_again() {
    if !can_mount("flipped_bits_are_found_counted_and_fetched_again") {
        return;
    }
    let (files, cluster) = (files(), Cluster::of(files().objects()));
    let store = cluster.new_dir("store");
    let setup = MountSetup::keeping(&store);
    let mut mounted = Mounted::start(&cluster, &setup);
    files.check(&mounted.point);
    mounted.wait_until_stored(files.bytes());
    cluster.wait_until_kept(0, files.bytes());
    // Under the nose of the process that has them open.
    assert!(flip(&store) > 100);
    files.0.iter().for_each(|(key, _)| forget_pages(&mounted.path(key)));
    let before = cluster.s3_bytes();
    files.check(&mounted.point);
    assert!(mounted.metric("csi_driver_node_store_corrupt_chunks_total", "") > 100);
    assert_eq!(cluster.s3_bytes(), before, "the worker still had all");
    mounted.program.kill();

    assert!(flip(&cluster.workers[0].dir.join("tier")) > 100);
    let mounted = Mounted::start(&cluster, &MountSetup::default());
    files.check(&mounted.point);
    assert!(cluster.workers[0].metric("cache_worker_store_corrupt_chunks_total", "") > 100.0);
    assert!(cluster.s3_bytes() >= before + 12 * MIB, "what is damaged is read from S3 again");
}

#[test]
fn two_mounts_share_a_node_store() {
    if !can_mount("two_mounts_share_a_node_store") {
        return;
    }
    let (files, cluster) = (files(), Cluster::of(files().objects()));
    let setup = MountSetup::keeping(cluster.new_dir("store"));
    let (first, second) = (Mounted::start(&cluster, &setup), Mounted::start(&cluster, &setup));
    let half = |is_second: bool| {
        let numbered = files.0.iter().enumerate();
        Files(numbered.filter(|(i, _)| (i % 2 == 1) == is_second).map(|(_, file)| file.clone()).collect())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| half(false).check(&first.point));
        scope.spawn(|| half(true).check(&second.point));
    });
    let both = |name: &str, label: &str| first.metric(name, label) + second.metric(name, label);
    // Each may have brought ahead what the other reads.
    until("the node store has all", Duration::from_secs(20), || {
        both("csi_driver_node_store_bytes_total", "direction=\"written\"") >= files.bytes()
    });
    let misses = || both("csi_driver_reads_total", "result=\"miss\"");
    let missed = misses();
    half(true).check(&first.point);
    half(false).check(&second.point);
    assert_eq!(misses(), missed, "each finds what the other has kept");
    cluster.assert_quiet();
}

#[test]
fn damaged_index_is_found_after_a_death_and_fetched_again() {
    if !can_mount("damaged_index_is_found_after_a_death_and_fetched_again") {
        return;
    }
    let (files, mut cluster) = (files(), Cluster::start(files().objects(), &Setup::workers(2)));
    let indexes = cluster.new_dir("indexes");
    let setup = MountSetup::default().arg("--index-dir", indexes.to_str().unwrap());
    let mut mounted = Mounted::start(&cluster, &setup);
    files.check(&mounted.point);
    mounted.program.kill();
    damage_index(&indexes, &cluster.version);
    let mounted = mounted.restart(&cluster, &setup);
    files.check(&mounted.point);
    drop(mounted);

    cluster.workers[0].program.kill();
    let state = cluster.workers[0].dir.join("state");
    damage_index(&state, &cluster.version);
    cluster.workers[0].restart();
    until("the worker has fetched the index from its peer", Duration::from_secs(10), || {
        cluster.status(0).versions.first().is_some_and(|version| version.index_ready)
    });
    files.check(&Mounted::start(&cluster, &MountSetup::default()).point);
}

#[test]
fn an_index_that_rotted_between_two_mounts_is_fetched_again() {
    if !can_mount("an_index_that_rotted_between_two_mounts_is_fetched_again") {
        return;
    }
    let (files, cluster) = (files(), Cluster::start(files().objects(), &Setup::workers(1)));
    let indexes = cluster.new_dir("indexes");
    let setup = MountSetup::default().arg("--index-dir", indexes.to_str().unwrap());
    files.check(&Mounted::start(&cluster, &setup).point);
    damage_index(&indexes, &cluster.version);
    files.check(&Mounted::start(&cluster, &setup).point);
}

/// Flips a bit in the middle of the index of a version, somewhere below `dir`.
fn damage_index(dir: &Path, version: &str) {
    let found = output_of(
        std::process::Command::new("find")
            .arg(dir)
            .args(["-type", "f", "-size", "+1k", "-name"])
            .arg(format!("*{version}*")),
    );
    let path = found.lines().next().unwrap_or_else(|| panic!("no index below {dir:?}")).to_owned();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let (middle, mut byte) = (file.metadata().unwrap().len() / 2, [0]);
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 16], middle).unwrap();
}
