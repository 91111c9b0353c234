//! Is S3 read once, whoever reads?

use millrace_tests::cluster::{Cluster, MIB, Setup};
use millrace_tests::content::{Files, check_file};
use millrace_tests::mounted::{MountSetup, Mounted};
use millrace_tests::skip::can_mount;

/// The files in an order of its own for each reader.
fn shuffled(files: &Files, reader: u64) -> Vec<(String, u64)> {
    let mut files = files.0.clone();
    let mut state = reader.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for last in (1..files.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        files.swap(last, (state >> 33) as usize % (last + 1));
    }
    files
}

#[test]
fn six_readers_on_three_mounts_and_three_workers_read_s3_once() {
    if !can_mount("six_readers_on_three_mounts_and_three_workers_read_s3_once") {
        return;
    }
    let files = Files::new().with_many("small", 400, 50_000).with_many("large", 10, 4 * MIB + 999);
    let cluster = Cluster::start(files.objects(), &Setup::workers(3));
    let mounts: Vec<Mounted> =
        (0..3).map(|_| Mounted::start(&cluster, &MountSetup::keeping(cluster.new_dir("store")))).collect();
    std::thread::scope(|scope| {
        for (number, mount) in mounts.iter().chain(&mounts).enumerate() {
            let order = shuffled(&files, number as u64);
            scope.spawn(move || order.iter().for_each(|(key, size)| check_file(&mount.point, key, *size)));
        }
    });
    let share = cluster.s3_bytes() as f64 / files.bytes() as f64;
    println!("S3 sent {share} times the bytes");
    assert!((1.0..=1.02).contains(&share), "S3 sent {share} times the bytes");
    for mount in &mounts {
        let share = mount.fetched_bytes() as f64 / files.bytes() as f64;
        assert!((1.0..=1.02).contains(&share), "a mount fetched {share} times the bytes");
    }
    cluster.assert_quiet();
}
