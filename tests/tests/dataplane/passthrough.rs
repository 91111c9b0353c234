//! Does the kernel read whole files itself, with right bytes whatever happens to the node store below?

mod faults;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace_s3_server::synthetic;
use millrace_tests::cluster::{Cluster, MIB};
use millrace_tests::content::{Files, check_file, check_part};
use millrace_tests::mapped::map;
use millrace_tests::mounted::{MountSetup, Mounted};
use millrace_tests::program::until;
use millrace_tests::skip::can_mount_as_root;

const WAIT: Duration = Duration::from_secs(20);

fn keeping(store: &Path) -> MountSetup {
    MountSetup::keeping(store).arg("--mode", "Files").arg("--log", "debug")
}

fn opens(mounted: &Mounted, how: &str) -> u64 {
    mounted.metric("csi_driver_opens_total", &format!("how=\"{how}\""))
}

fn reads(mounted: &Mounted) -> u64 {
    mounted.metric("csi_driver_fuse_requests_total", "opcode=\"read\"")
}

fn verified(mounted: &Mounted) -> u64 {
    mounted.metric("csi_driver_verifications_total", "result=\"verified\"")
}

/// Whether the kernel takes files of a store here; says so where not.
fn passes_through(name: &str, mounted: &Mounted) -> bool {
    let is_on = mounted.metric("csi_driver_passthrough", "state=\"on\"") == 1;
    if !is_on {
        millrace_tests::skip::skipped(name, "the kernel takes no files of the node store here");
    }
    is_on
}

/// A mount whose node store has all of it, verified.
fn warmed(cluster: &Cluster, files: &Files, setup: &MountSetup) -> Mounted {
    let mounted = Mounted::start(cluster, setup);
    files.check(&mounted.point);
    mounted.wait_until_stored(files.bytes());
    if mounted.metric("csi_driver_passthrough", "state=\"on\"") == 1 {
        let large = files.0.iter().filter(|(_, size)| *size >= MIB).count() as u64;
        until("all large files are verified", WAIT, || verified(&mounted) >= large);
    }
    mounted
}

/// Whether all of an open file has the bytes of an object.
fn is_right(file: &File, key: &str) -> bool {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    synthetic::matches(key, 0, &bytes)
}

#[test]
fn whole_files_are_read_without_a_request_and_byte_for_byte() {
    let name = "whole_files_are_read_without_a_request_and_byte_for_byte";
    if !can_mount_as_root(name) {
        return;
    }
    let files = Files::new()
        .with("one", MIB)
        .with("odd", 5 * MIB + 77)
        .with("blocks", 20 * MIB + 17)
        .with("small", 70_000);
    let cluster = Cluster::of(files.objects());
    let setup = keeping(&cluster.new_dir("store"));
    let mounted = warmed(&cluster, &files, &setup);
    if !passes_through(name, &mounted) {
        return;
    }
    // A new mount, whose kernel has no page of it.
    let mounted = mounted.restart(&cluster, &setup);
    let large = Files(files.0[..3].to_vec());
    large.check(&mounted.point);
    assert_eq!((reads(&mounted), opens(&mounted, "passthrough")), (0, 3));
    for (key, size) in &large.0 {
        let map = map(&mounted.path(key));
        assert!(map.len() as u64 == *size && synthetic::matches(key, 0, &map), "{key} by mmap");
    }
    let mut state = 7u64;
    for _ in 0..300 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (offset, len) = ((state >> 33) % (20 * MIB), 1 + (state >> 13) as usize % 70_000);
        check_part(&mounted.point, "blocks", offset, len.min((20 * MIB + 17 - offset) as usize)).unwrap();
    }
    let direct = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT;
    let file: File =
        rustix::fs::open(mounted.path("blocks"), direct, rustix::fs::Mode::empty()).unwrap().into();
    let mut buffer = Aligned([0; 8192]);
    assert_eq!(file.read_at(&mut buffer.0, 3 * MIB).unwrap(), 8192);
    assert!(synthetic::matches("blocks", 3 * MIB, &buffer.0), "O_DIRECT");
    assert_eq!(reads(&mounted), 0);
    check_file(&mounted.point, "small", 70_000);
    assert!(reads(&mounted) > 0 && opens(&mounted, "packed") == 1);
    assert_eq!(mounted.fetched_bytes(), 0);
    let ids = |state| mounted.metric("csi_driver_backing_ids", state);
    drop(file);
    until("all is closed", WAIT, || ids("in_use") == 0);
    assert_eq!(ids("idle"), 3);
    cluster.assert_quiet();
}

#[repr(align(4096))]
struct Aligned([u8; 8192]);

#[test]
fn file_that_completes_while_it_is_open_passes_through_for_the_next_reader() {
    let name = "file_that_completes_while_it_is_open_passes_through_for_the_next_reader";
    if !can_mount_as_root(name) {
        return;
    }
    let files = Files::new().with("dir/kept-open", 24 * MIB + 5);
    let cluster = Cluster::of(files.objects());
    let mounted = Mounted::start(&cluster, &keeping(&cluster.new_dir("store")));
    if !passes_through(name, &mounted) {
        return;
    }
    let path = mounted.path("dir/kept-open");
    let first = File::open(&path).unwrap();
    assert!(is_right(&first, "dir/kept-open"));
    until("it is verified", WAIT, || verified(&mounted) == 1);
    let before = reads(&mounted);
    let second = File::open(&path).unwrap();
    assert!(is_right(&second, "dir/kept-open"));
    assert_eq!((opens(&mounted, "passthrough"), opens(&mounted, "incomplete")), (1, 1));
    assert_eq!(mounted.metric("csi_driver_node_switches_total", ""), 1);
    assert_eq!(reads(&mounted), before, "the kernel reads the second one");
    let (one, two) = (first.metadata().unwrap(), second.metadata().unwrap());
    assert_eq!((one.ino(), one.len()), (two.ino(), two.len()));
    // A name is not needed, and both modes stay side by side.
    let again = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&first))).unwrap();
    assert!(is_right(&again, "dir/kept-open") && is_right(&first, "dir/kept-open"));
    for _ in 0..3 {
        assert!(is_right(&File::open(&path).unwrap(), "dir/kept-open"));
    }
    assert_eq!(opens(&mounted, "passthrough"), 4);
    drop((first, second, again));
    until("all is closed", WAIT, || mounted.metric("csi_driver_open_files", "") == 0);
    assert!(is_right(&File::open(&path).unwrap(), "dir/kept-open"));
    cluster.assert_quiet();
}

#[test]
fn half_of_a_small_file_is_completed_inside_the_open() {
    let name = "half_of_a_small_file_is_completed_inside_the_open";
    if !can_mount_as_root(name) {
        return;
    }
    let files = Files::new().with("some", 3 * MIB).with("little", 3 * MIB + 1);
    let cluster = Cluster::of(files.objects());
    let mounted = Mounted::start(&cluster, &keeping(&cluster.new_dir("store")));
    if !passes_through(name, &mounted) {
        return;
    }
    // From the end, so that nothing is fetched ahead.
    for (key, at) in [("some", 2 * MIB), ("some", MIB), ("little", 2 * MIB)] {
        check_part(&mounted.point, key, at, MIB as usize).unwrap();
    }
    let stored = |key: &str| {
        let mut value = [0; 8];
        let len = rustix::fs::getxattr(mounted.path(key), "user.millrace.cached", &mut value).unwrap();
        std::str::from_utf8(&value[..len]).unwrap().parse::<u32>().unwrap()
    };
    until("half of it is stored", WAIT, || (50..100).contains(&stored("some")));
    until("all is closed", WAIT, || mounted.metric("csi_driver_open_files", "") == 0);
    let file = File::open(mounted.path("some")).unwrap();
    let is_passed = opens(&mounted, "passthrough") == 1;
    assert!(is_right(&file, "some"));
    // On a machine that is busy with other tests the time may not do.
    assert!(is_passed || opens(&mounted, "incomplete") == 4, "{}", opens(&mounted, "incomplete"));
    assert!(stored("little") < 50, "{}", stored("little"));
    cluster.assert_quiet();
}

#[test]
fn files_that_the_kernel_holds_stay_whole_while_the_rest_is_evicted() {
    let name = "files_that_the_kernel_holds_stay_whole_while_the_rest_is_evicted";
    if !can_mount_as_root(name) {
        return;
    }
    let files = Files::new().with_many("held", 3, 3 * MIB + 5).with_many("more", 8, 2 * MIB + 9);
    let held = Files(files.0[..3].to_vec());
    let cluster = Cluster::of(files.objects());
    let setup = keeping(&cluster.new_dir("store")).arg("--node-store-quota", "16Mi");
    let mounted = warmed(&cluster, &held, &setup);
    if !passes_through(name, &mounted) {
        return;
    }
    let open = |key: &str| File::open(mounted.path(key)).unwrap();
    let handles: Vec<(&str, File)> = held.0.iter().map(|(key, _)| (key.as_str(), open(key))).collect();
    // Mapped and closed: the kernel says nothing of it to anybody.
    let mapped = map(&mounted.path("held/001"));
    assert_eq!(opens(&mounted, "passthrough"), 4);
    let second = Mounted::start(&cluster, &setup);
    for _ in 0..2 {
        files.check(&mounted.point);
        files.check(&second.point);
        handles.iter().for_each(|(key, file)| assert!(is_right(file, key), "{key}"));
    }
    drop(handles);
    for _ in 0..3 {
        files.check(&second.point);
        files.check(&mounted.point);
        assert!(synthetic::matches("held/001", 0, &mapped), "mapped");
    }
    assert!(second.metric("csi_driver_node_store_evictions_total", "") > 0);
    for mount in [&mounted, &second] {
        assert!(mount.metric("csi_driver_node_store_bytes", "state=\"used\"") <= 16 * MIB);
        assert_eq!(mount.metric("csi_driver_node_store_corrupt_chunks_total", ""), 0);
    }
    cluster.assert_quiet();
}

/// `MILLRACE_OPENS` sets how many opens there are.

#[test]
fn opens_closes_and_evictions_in_a_race_never_fail() {
    let name = "opens_closes_and_evictions_in_a_race_never_fail";
    if !can_mount_as_root(name) {
        return;
    }
    let opens_wanted: u64 = std::env::var("MILLRACE_OPENS").map_or(100_000, |count| count.parse().unwrap());
    let files = Files::new().with_many("f", 12, MIB + 4097);
    let cluster = Cluster::of(files.objects());
    // Room for two thirds of the files.
    let setup = keeping(&cluster.new_dir("store")).arg("--node-store-quota", "9Mi").arg("--log", "info");
    let (one, two) = (Mounted::start(&cluster, &setup), Mounted::start(&cluster, &setup));
    if !passes_through(name, &one) {
        return;
    }
    let left = AtomicU64::new(opens_wanted);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let (left, files, mounted) = (&left, &files, if thread == 0 { &two } else { &one });
            scope.spawn(move || {
                let mut state = thread + 1;
                let mut kept: Vec<File> = Vec::new();
                while left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                    .is_ok()
                {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    // Mostly a few hot ones.
                    let number = (state >> 33) % if state >> 62 == 0 { 12 } else { 5 };
                    let (key, size) = &files.0[number as usize];
                    let file = File::open(mounted.path(key)).unwrap();
                    let at = (state >> 13) % (size - 64);
                    let mut bytes = [0; 64];
                    file.read_exact_at(&mut bytes, at)
                        .unwrap_or_else(|error| panic!("{key} at {at}: {error}"));
                    assert!(synthetic::matches(key, at, &bytes), "{key} at {at}");
                    if state >> 60 == 1 {
                        kept.push(file);
                        kept.truncate(3);
                    }
                }
            });
        }
    });
    eprintln!("{opens_wanted} opens in {:?}", start.elapsed());
    for mounted in [&one, &two] {
        until("all is closed", WAIT, || mounted.metric("csi_driver_open_files", "") == 0);
        assert_eq!(mounted.metric("csi_driver_backing_ids", "in_use"), 0);
        assert_eq!(mounted.metric("csi_driver_node_store_corrupt_chunks_total", ""), 0);
        assert!(opens(mounted, "passthrough") > 0);
        // A file of its own, so that it is sure to be whole.
        files.check(&mounted.point);
    }
    assert!(one.metric("csi_driver_node_store_evictions_total", "") > 0);
    cluster.assert_quiet();
}
