//! What do readers see when processes die, stop or are told to end?

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::faults::rule::{Fault, Rule};
use millrace_s3_server::target::Operation;
use millrace_tests::cluster::{Cluster, MIB, Setup};
use millrace_tests::content::{Files, check_file, check_part};
use millrace_tests::mounted::{MountSetup, Mounted, detach, is_mounted};
use millrace_tests::program::until;
use millrace_tests::skip::can_mount;
use rustix::process::Signal;

fn files() -> Files {
    Files::new().with_many("large", 12, 2 * MIB + 5).with_many("small", 60, 40_000)
}

#[test]
fn killed_worker_is_gone_round_and_keeps_its_blocks() {
    if !can_mount("killed_worker_is_gone_round_and_keeps_its_blocks") {
        return;
    }
    let files = files();
    let mut cluster = Cluster::start(files.objects(), &Setup::workers(3));
    let mounted = Mounted::start(&cluster, &MountSetup::default());
    cluster.s3.set_faults(FaultPlan::default().with_rates(None, Some(20_000_000))).unwrap();
    let started = Instant::now();
    let mut victim = cluster.workers.remove(1);
    std::thread::scope(|scope| {
        let (first, second) = files.0.split_at(files.0.len() / 6);
        for part in [first, second] {
            scope.spawn(|| part.iter().for_each(|(key, size)| check_file(&mounted.point, key, *size)));
        }
        until("reading is under way", Duration::from_secs(10), || cluster.s3_bytes() > 5 * MIB);
        victim.program.kill();
    });
    assert!(started.elapsed() < Duration::from_secs(20), "took {:?}", started.elapsed());
    cluster.s3.clear_faults();
    victim.restart();
    cluster.workers.insert(1, victim);
    // What the others have read for it is read once more from S3 at most; what it had is not.
    let again = Mounted::start(&cluster, &MountSetup::default());
    files.check(&again.point);
    assert_eq!(cluster.status(1).epoch, 1, "it remembers the membership");
    let restarted_at = cluster.s3_bytes();
    for number in 0..3 {
        until("all is kept", Duration::from_secs(10), || {
            let version = &cluster.status(number).versions[0];
            version.owned == version.cached
        });
    }
    for number in 0..3 {
        cluster.workers[number].program.kill();
        cluster.workers[number].restart();
    }
    let last = Mounted::start(&cluster, &MountSetup::default());
    files.check(&last.point);
    assert_eq!(cluster.s3_bytes(), restarted_at, "killed workers keep their blocks");
}

/// How long a worker is stopped.
const STOPPED: Duration = Duration::from_secs(30);

#[test]
fn worker_stopped_for_30_s_is_gone_round_and_waited_for_where_it_is_the_only_one() {
    if !can_mount("worker_stopped_for_30_s_is_gone_round_and_waited_for_where_it_is_the_only_one") {
        return;
    }
    let files = files();
    let alone = Cluster::of(files.objects());
    let of_alone = Mounted::start(&alone, &MountSetup::default());
    let cluster = Cluster::start(files.objects(), &Setup::workers(2));
    let mounted = Mounted::start(&cluster, &MountSetup::default());
    check_file(&mounted.point, "small/000", 40_000);
    let started = Instant::now();
    let stopped = [&alone.workers[0].program, &cluster.workers[0].program];
    stopped.iter().for_each(|program| program.signal(Signal::STOP));
    let waiting = std::thread::spawn({
        let point = of_alone.point.clone();
        move || check_file(&point, "large/003", 2 * MIB + 5)
    });
    let mut slow = Vec::new();
    for (key, size) in &files.0 {
        let one = Instant::now();
        check_file(&mounted.point, key, *size);
        if one.elapsed() > Duration::from_millis(500) {
            slow.push((key, one.elapsed()));
        }
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(20), "took {took:?}, slow were {slow:?}");
    std::thread::sleep(STOPPED.saturating_sub(started.elapsed()));
    assert!(!waiting.is_finished(), "nobody else has what it reads");
    stopped.iter().for_each(|program| program.signal(Signal::CONT));
    waiting.join().unwrap();
    files.check(&of_alone.point);
    files.check(&Mounted::start(&cluster, &MountSetup::default()).point);
}

#[test]
fn killed_mount_ends_its_readers_and_a_new_one_takes_its_place() {
    if !can_mount("killed_mount_ends_its_readers_and_a_new_one_takes_its_place") {
        return;
    }
    let files = files();
    let cluster = Cluster::of(files.objects());
    let setup = MountSetup::keeping(cluster.new_dir("store"));
    let mut mounted = Mounted::start(&cluster, &setup);
    let open = File::open(mounted.path("large/003")).unwrap();
    check_part(&mounted.point, "large/003", 0, 10).unwrap();
    cluster.s3.set_faults(FaultPlan::default().with_rates(None, Some(10_000_000))).unwrap();
    let reader = std::thread::spawn({
        let (files, point) = (files.clone(), mounted.point.clone());
        move || files.0.iter().all(|(key, _)| std::fs::read(point.join(key)).is_ok())
    });
    mounted.wait_until_stored(4 * MIB);
    mounted.program.kill();
    assert!(!reader.join().unwrap(), "a reader of a dead mount gets an error");
    let error = open.read_at(&mut [0; 10], 2 * MIB).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
    cluster.s3.clear_faults();
    let next = mounted.restart(&cluster, &setup);
    files.check(&next.point);
    assert!(next.fetched_bytes() + 3 * MIB < files.bytes(), "it keeps what the other had stored");
    drop(open);
}

/// A program that reads one page, past the page cache: only then the kernel tells when the reader gives up.
fn reader(mounted: &Mounted, key: &str) -> Child {
    Command::new("dd")
        .arg(format!("if={}", mounted.path(key).display()))
        .args(["of=/dev/null", "bs=4096", "count=1", "status=none", "iflag=direct"])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// S3 that never answers, and a reader that waits for it.
fn hanging(cluster: &Cluster, mounted: &Mounted) -> Child {
    let plan = FaultPlan::default().rule(Rule::from(Fault::Hang).operation(Operation::GetObject));
    cluster.s3.set_faults(plan).unwrap();
    let child = reader(mounted, "large/001");
    until("S3 is asked", Duration::from_secs(10), || {
        cluster.s3.counters().requests_of(Operation::GetObject) > 0
    });
    child
}

#[test]
fn reader_killed_in_a_hanging_fetch_ends_at_once() {
    if !can_mount("reader_killed_in_a_hanging_fetch_ends_at_once") {
        return;
    }
    let cluster = Cluster::of(files().objects());
    let mounted = Mounted::start(&cluster, &MountSetup::default());
    let mut child = hanging(&cluster, &mounted);
    let started = Instant::now();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(started.elapsed() < Duration::from_secs(3), "took {:?}", started.elapsed());
    cluster.s3.clear_faults();
    let started = Instant::now();
    check_file(&mounted.point, "small/007", 40_000);
    assert!(started.elapsed() < Duration::from_secs(3), "another file waits {:?}", started.elapsed());
    until("the interruption is counted", Duration::from_secs(5), || {
        mounted.metric("csi_driver_fuse_interrupted_total", "") > 0
    });
}

#[test]
fn mount_and_worker_end_within_5_s_though_a_read_hangs() {
    if !can_mount("mount_and_worker_end_within_5_s_though_a_read_hangs") {
        return;
    }
    let mut cluster = Cluster::of(files().objects());
    let mut mounted = Mounted::start(&cluster, &MountSetup::default());
    let mut child = hanging(&cluster, &mounted);
    let (status, took) = mounted.program.terminate();
    assert!(
        status.success() && took < Duration::from_secs(5),
        "{status} after {took:?}: {}",
        mounted.program.log()
    );
    assert!(!is_mounted(&mounted.point));
    until("the reader ends", Duration::from_secs(5), || child.try_wait().unwrap().is_some());
    let (status, took) = cluster.workers[0].program.terminate();
    assert!(status.success() && took < Duration::from_secs(5), "{status} after {took:?}");
}

#[test]
fn reads_wait_for_the_only_worker_to_come_back() {
    if !can_mount("reads_wait_for_the_only_worker_to_come_back") {
        return;
    }
    let files = files();
    let mut cluster = Cluster::of(files.objects());
    let mounted = Mounted::start(&cluster, &MountSetup::default());
    check_file(&mounted.point, "small/000", 40_000);
    let mut worker = cluster.workers.remove(0);
    worker.program.kill();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| files.check(&mounted.point));
        // Long enough for the reader to have found nobody.
        std::thread::sleep(Duration::from_secs(1));
        assert!(!reading.is_finished(), "the reader waits");
        worker.restart();
    });
}

#[test]
fn mount_process_ends_when_somebody_else_unmounts() {
    if !can_mount("mount_process_ends_when_somebody_else_unmounts") {
        return;
    }
    let cluster = Cluster::of(files().objects());
    let mut mounted = Mounted::start(&cluster, &MountSetup::default());
    check_file(&mounted.point, "small/000", 40_000);
    detach(&mounted.point);
    assert!(mounted.program.wait_for_end(Duration::from_secs(5)).success());
    cluster.assert_quiet();
}
