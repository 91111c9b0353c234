//! Does packed mode serve right bytes, without opens, and without reads when all is warm?

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::faults::rule::{Fault, Rule};
use millrace_s3_server::target::Operation;
use millrace_tests::cluster::{Cluster, MIB, Setup};
use millrace_tests::content::{Files, check_file, check_part};
use millrace_tests::mounted::{MountSetup, Mounted};
use millrace_tests::skip::can_mount;

/// Two folders of small files, and a large one beside them.
fn files() -> Files {
    Files::new().with_many("a", 150, 40_000).with_many("b/c", 150, 5_000).with("b/large", 3 * MIB + 17)
}

fn packed(cluster: &Cluster) -> MountSetup {
    MountSetup::keeping(cluster.new_dir("store")).arg("--mode", "Packed")
}

/// Requests of one operation that the mount process has seen.
fn seen(mounted: &Mounted, operation: &str) -> u64 {
    mounted.metric("csi_driver_fuse_requests_total", &format!("opcode=\"{operation}\""))
}

/// Names below a folder, as the kernel lists them.
fn walk(dir: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(walk(&entry.path())),
            false => {
                found.push((entry.path().to_string_lossy().into_owned(), entry.metadata().unwrap().len()))
            }
        }
    }
    found
}

#[test]
fn warm_files_cost_no_request_at_all() {
    if !can_mount("warm_files_cost_no_request_at_all") {
        return;
    }
    let files = files();
    let cluster = Cluster::start(files.objects(), &Setup::workers(2));
    let mounted = Mounted::start(&cluster, &packed(&cluster));
    assert_eq!(mounted.metric("csi_driver_mount_mode", "mode=\"packed\",reason=\"asked\""), 1);
    let listed = walk(&mounted.point);
    assert_eq!(listed.len(), files.0.len());
    assert_eq!(listed.iter().map(|(_, size)| size).sum::<u64>(), files.bytes());
    files.check(&mounted.point);
    let requests = ["open", "release", "read", "lookup", "getattr", "opendir", "readdir", "readdirplus"];
    let before = requests.map(|operation| seen(&mounted, operation));
    // The first of each tells the kernel not to ask again.
    assert_eq!((before[0], before[1], before[5]), (1, 0, 1));
    files.check(&mounted.point);
    assert_eq!(walk(&mounted.point), listed);
    assert_eq!(requests.map(|operation| seen(&mounted, operation)), before, "{requests:?}");
    cluster.assert_quiet();
}

#[test]
fn small_files_are_packed_and_large_ones_are_not_unless_it_is_asked_for() {
    if !can_mount("small_files_are_packed_and_large_ones_are_not_unless_it_is_asked_for") {
        return;
    }
    let (small, large) = (files(), Files::new().with("large", 30 * MIB).with("README", 1_000));
    for (files, mode, says) in [
        (&small, "Auto", "mode=\"packed\",reason=\"small_files\""),
        (&small, "Files", "mode=\"files\",reason=\"asked\""),
        (&large, "Auto", "mode=\"files\",reason=\"large_files\""),
        (&large, "Packed", "mode=\"packed\",reason=\"asked\""),
    ] {
        let cluster = Cluster::of(files.objects());
        let setup = MountSetup::keeping(cluster.new_dir("store")).arg("--mode", mode);
        let mounted = Mounted::start(&cluster, &setup);
        assert_eq!(mounted.metric("csi_driver_mount_mode", says), 1, "{mode}");
        files.check(&mounted.point);
        let opens = seen(&mounted, "open");
        assert_eq!(opens > 1, says.contains("\"files\""), "{opens} opens: {says}");
        cluster.assert_quiet();
    }
}

#[test]
fn a_lost_object_is_an_error_and_its_neighbours_in_the_pack_are_not() {
    if !can_mount("a_lost_object_is_an_error_and_its_neighbours_in_the_pack_are_not") {
        return;
    }
    let files = files();
    let cluster = Cluster::of(files.objects());
    let mounted = Mounted::start(&cluster, &packed(&cluster).arg("--read-deadline-seconds", "20"));
    cluster.objects.remove("a/007");
    for _ in 0..2 {
        let error = check_part(&mounted.point, "a/007", 0, 40_000).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
        for (key, size) in files.0.iter().filter(|(key, _)| key != "a/007") {
            check_file(&mounted.point, key, *size);
        }
    }
}

#[test]
fn a_reader_that_is_killed_while_it_waits_ends_at_once_and_the_file_reads_later() {
    if !can_mount("a_reader_that_is_killed_while_it_waits_ends_at_once_and_the_file_reads_later") {
        return;
    }
    let files = files();
    let cluster = Cluster::of(files.objects());
    let mounted = Mounted::start(&cluster, &packed(&cluster));
    let hang = Rule::from(Fault::Hang).operation(Operation::GetObject).keys("a/003");
    cluster.s3.set_faults(FaultPlan::default().rule(hang)).unwrap();
    let mut reader = std::process::Command::new("cat").arg(mounted.path("a/003")).spawn().unwrap();
    millrace_tests::program::until("the read is under way", Duration::from_secs(10), || {
        seen(&mounted, "read") > 0
    });
    reader.kill().unwrap();
    millrace_tests::program::until("the reader has ended", Duration::from_secs(5), || {
        reader.try_wait().unwrap().is_some()
    });
    cluster.s3.clear_faults();
    check_file(&mounted.point, "a/004", 40_000);
}

#[test]
fn several_readers_of_a_large_file_that_nobody_opened_get_right_bytes() {
    if !can_mount("several_readers_of_a_large_file_that_nobody_opened_get_right_bytes") {
        return;
    }
    let files = Files::new().with("large", 24 * MIB + 5).with("other", 9 * MIB).with_many("a", 20, 9);
    let cluster = Cluster::of(files.objects());
    let mounted = Mounted::start(&cluster, &packed(&cluster));
    let file = File::open(mounted.path("large")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| check_file(&mounted.point, "large", 24 * MIB + 5));
        scope.spawn(|| check_file(&mounted.point, "other", 9 * MIB));
        scope.spawn(|| {
            let mut buffer = vec![0; 70_000];
            for step in (0..300).rev() {
                let count = file.read_at(&mut buffer, step * 80_000).unwrap();
                let whole = &buffer[..count];
                assert!(millrace_s3_server::synthetic::matches("large", step * 80_000, whole), "{step}");
            }
        });
    });
    let mut end = Vec::new();
    (&file).read_to_end(&mut end).unwrap();
    assert_eq!(end.len() as u64, 24 * MIB + 5);
    cluster.assert_quiet();
}
