//! What do readers of a mount see while S3 is away?

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

use millrace_tests::cluster::{Cluster, MIB};
use millrace_tests::content::{Files, check_part, forget_pages};
use millrace_tests::mapped::map;
use millrace_tests::mounted::{MountSetup, Mounted};
use millrace_tests::skip::can_mount;

/// Names the file in a process of its own that reads by mmap.
const MAPPED: &str = "MILLRACE_TEST_MAPPED";

#[test]
fn outage_is_waited_for_up_to_the_deadline_and_cached_data_reads_on() {
    let name = "outage_is_waited_for_up_to_the_deadline_and_cached_data_reads_on";
    if let Some(path) = std::env::var_os(MAPPED) {
        let byte = map(path.as_ref())[2_500_000];
        println!("read {byte}");
        return;
    }
    if !can_mount(name) {
        return;
    }
    let cluster = Cluster::of(
        Files::new().with("cached", MIB).with("patient", 3 * MIB).with("late", 3 * MIB).objects(),
    );
    let patient = Mounted::start(&cluster, &MountSetup::default());
    let hasty = Mounted::start(&cluster, &MountSetup::default().arg("--read-deadline-seconds", "1"));
    check_part(&patient.point, "cached", 0, MIB as usize).unwrap();
    cluster.wait_until_kept(0, MIB);

    let outage = Duration::from_secs(30);
    cluster.begin_outage(outage);
    let started = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            check_part(&patient.point, "patient", 2_500_000, 10).unwrap();
            assert!(started.elapsed() > Duration::from_secs(29), "it did wait: {:?}", started.elapsed());
        });
        scope.spawn(|| {
            let error = check_part(&hasty.point, "late", 1_500_000, 10).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
            let waited = started.elapsed();
            // The kernel asks once more for the one page after its read-ahead has failed.
            assert!(waited > Duration::from_millis(900) && waited < Duration::from_secs(4), "{waited:?}");
        });
        scope.spawn(|| {
            // A mapped file has no other way to say it: SIGBUS. The kernel asks up to four times before.
            let own = std::env::current_exe().unwrap();
            let output = Command::new(own)
                .args(["--exact", &format!("outage::{name}"), "--nocapture"])
                .env(MAPPED, hasty.path("late"))
                .output()
                .unwrap();
            assert_eq!(output.status.signal(), Some(rustix::process::Signal::BUS.as_raw()), "{output:?}");
        });
        while started.elapsed() < Duration::from_secs(3) {
            forget_pages(&patient.path("cached"));
            let one = Instant::now();
            check_part(&patient.point, "cached", 0, MIB as usize).unwrap();
            assert!(one.elapsed() < Duration::from_secs(2), "cached data waited {:?}", one.elapsed());
        }
    });
    // All recovers by itself.
    check_part(&hasty.point, "late", 1_500_000, 10).unwrap();
    check_part(&hasty.point, "late", 2_500_000, 10).unwrap();
    assert_eq!(cluster.status(0).degraded.unwrap_or_default().objects, 0);
}

#[test]
fn reader_that_joins_a_fetch_waits_for_its_own_deadline() {
    if !can_mount("reader_that_joins_a_fetch_waits_for_its_own_deadline") {
        return;
    }
    let cluster = Cluster::of(Files::new().with("file", 3 * MIB).objects());
    let mounted = Mounted::start(&cluster, &MountSetup::default().arg("--read-deadline-seconds", "4"));
    cluster.begin_outage(Duration::from_millis(5500));
    let started = Instant::now();
    let direct = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT;
    let read = |offset: u64| {
        let path = mounted.path("file");
        let file: std::fs::File = rustix::fs::open(path, direct, rustix::fs::Mode::empty()).unwrap().into();
        let mut buffer = [0; 4096];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut buffer, offset)?;
        assert!(millrace_s3_server::synthetic::matches("file", offset, &buffer));
        std::io::Result::Ok(())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| read(MIB + 8192).unwrap_err());
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(3500));
            // The same chunk, but another request of the kernel.
            read(MIB + 16_384).unwrap();
            assert!(started.elapsed() > Duration::from_secs(5), "{:?}", started.elapsed());
        });
    });
}
