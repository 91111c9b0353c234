//! Are all bytes right, however they are read?

use millrace_tests::cluster::{Cluster, MIB, Setup};
use millrace_tests::content::Files;
use millrace_tests::mounted::{MountSetup, Mounted};
use millrace_tests::skip::can_mount;

const KIB: u64 = 1 << 10;

/// All sizes at which something begins or ends, deep folders and awkward names.
fn tree() -> Files {
    let sizes = [0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB - 1, MIB, MIB + 1, 20 * MIB + 17];
    let files = sizes.iter().fold(Files::new(), |files, size| files.with(format!("sizes/{size}"), *size));
    let deep = (0..40).map(|level| format!("level-{level}")).collect::<Vec<_>>().join("/");
    let long = "n".repeat(255);
    files
        .with(format!("{deep}/bottom"), 70_000)
        .with(format!("names/{long}"), 10)
        .with("names/with space", 11)
        .with("names/with \"quotes\" and \\", 12)
        .with("names/line\nbreak", 13)
        .with("names/\u{1}\u{7f}", 14)
        .with("names/grün 日本 🦀", 15)
        .with("names/-rf", 16)
        .with("names/*?[a]", 17)
        .with("names/%2F+&=", 18)
        .with("names/Case", 19)
        .with("names/case", 20)
        .with("names/...", 21)
        .with_many("small", 60, 3_000)
}

#[test]
fn a_tree_reads_byte_for_byte_cold_warm_and_after_a_remount() {
    if !can_mount("a_tree_reads_byte_for_byte_cold_warm_and_after_a_remount") {
        return;
    }
    let files = tree();
    let cluster = Cluster::start(files.objects(), &Setup::workers(2));
    assert_eq!((cluster.made.objects, cluster.made.bytes), (files.0.len() as u64, files.bytes()));
    let setup = MountSetup::keeping(cluster.new_dir("store"));
    let mounted = Mounted::start(&cluster, &setup);
    files.check(&mounted.point);
    // Chunks that a reader wants before the fetch under way comes to them are asked for twice.
    let s3_bytes = cluster.s3_bytes();
    assert!(s3_bytes >= files.bytes() && s3_bytes < files.bytes() + MIB, "{s3_bytes} of {}", files.bytes());
    files.check(&mounted.point);
    mounted.wait_until_stored(files.bytes());
    // Killed, so that the next one finds a dead mount on its folder.
    let mounted = mounted.restart(&cluster, &setup);
    files.check(&mounted.point);
    assert_eq!(mounted.fetched_bytes(), 0, "all of it is in the node store");
    assert_eq!(cluster.s3_bytes(), s3_bytes);
    cluster.assert_quiet();
}
