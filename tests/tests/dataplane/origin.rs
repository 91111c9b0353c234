//! What do readers of a mount see when objects change, and when S3 answers badly?

use std::io;
use std::time::{Duration, Instant};

use millrace_control::proto::why_answer::What;
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::faults::rule::{Fault, Rule};
use millrace_s3_server::target::Operation;
use millrace_s3_server::units::{ByteCount, Span};
use millrace_tests::cluster::{Cluster, MIB};
use millrace_tests::content::{Files, check_file, check_part, forget_pages};
use millrace_tests::mounted::{MountSetup, Mounted};
use millrace_tests::skip::can_mount;

fn is_input_output(result: io::Result<()>) -> bool {
    result.is_err_and(|error| error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()))
}

#[test]
fn changed_and_deleted_objects_fail_at_once_and_spoil_nothing_else() {
    if !can_mount("changed_and_deleted_objects_fail_at_once_and_spoil_nothing_else") {
        return;
    }
    let files = Files::new().with_many("pack", 9, 100_000).with("large", 4 * MIB);
    let cluster = Cluster::of(files.objects());
    let mounted = Mounted::start(&cluster, &MountSetup::default());
    // Not from the beginning, so that nothing is read ahead: the block of these bytes alone is cached.
    check_part(&mounted.point, "large", MIB + 300_000, 10).unwrap();
    cluster.wait_until_kept(0, MIB);
    assert!(cluster.s3_bytes() < 2 * MIB);

    cluster.objects.put("large", vec![7; 4 << 20]);
    cluster.objects.put("pack/004", vec![7; 100_000]);
    cluster.objects.remove("pack/005");
    forget_pages(&mounted.path("large"));
    for offset in (0..16).map(|chunk| MIB + chunk * 65_536) {
        check_part(&mounted.point, "large", offset, 65_536).unwrap();
    }
    assert!(is_input_output(check_part(&mounted.point, "large", 3 * MIB, 10)));
    assert!(is_input_output(check_part(&mounted.point, "pack/004", 0, 10)));
    assert!(is_input_output(check_part(&mounted.point, "pack/005", 0, 10)));
    for number in [0, 1, 2, 3, 6, 7, 8] {
        check_file(&mounted.point, &format!("pack/{number:03}"), 100_000);
    }
    let (started, requests) = (Instant::now(), cluster.s3.counters().requests_of(Operation::GetObject));
    for (key, offset) in [("large", 3 * MIB), ("pack/004", 0), ("pack/005", 0)].repeat(10) {
        assert!(is_input_output(check_part(&mounted.point, key, offset, 10)), "{key}");
    }
    assert!(started.elapsed() < Duration::from_secs(3), "30 reads took {:?}", started.elapsed());
    assert_eq!(cluster.s3.counters().requests_of(Operation::GetObject), requests, "S3 is not asked again");

    assert_eq!(cluster.status(0).degraded.unwrap().objects, 3);
    for (path, reason) in [("large", "Changed"), ("pack/004", "Changed"), ("pack/005", "NoSuchKey")] {
        let What::Object(object) = cluster.why(0, path) else { panic!("{path} is an object") };
        assert_eq!(object.last_error.unwrap().reason, reason, "{path}");
    }
    assert!(mounted.metric("csi_driver_read_errors_total", "ObjectChanged") >= 2);
    // The mount process logs one line a second at most, the worker each object once.
    assert!(mounted.program.log().contains("object=\"large\""), "{}", mounted.program.log());
    let log = cluster.workers[0].program.log();
    for object in ["large", "pack/004", "pack/005"] {
        assert_eq!(log.matches(&format!("object={object:?}")).count(), 1, "{object}: {log}");
    }
}

#[test]
fn broken_answers_cost_time_and_never_a_byte() {
    if !can_mount("broken_answers_cost_time_and_never_a_byte") {
        return;
    }
    let files = Files::new().with_many("pack", 40, 100_000).with_many("large", 3, 5 * MIB + 1);
    let cluster = Cluster::of(files.objects());
    let after = |bytes| ByteCount(bytes);
    let plan = FaultPlan { seed: 11, ..FaultPlan::default() }
        .rule(Rule::from(Fault::SlowDown).operation(Operation::GetObject).probability(0.3))
        .rule(Rule::from(Fault::Truncate { after: after(70_000) }).probability(0.1))
        .rule(Rule::from(Fault::Reset { after: after(30_000) }).probability(0.1))
        .rule(Rule::from(Fault::Delay { by: Span(Duration::from_millis(200)) }).probability(0.1));
    cluster.s3.set_faults(plan).unwrap();
    let mounted = Mounted::start(&cluster, &MountSetup::keeping(cluster.new_dir("store")));
    files.check(&mounted.point);
    let faults = cluster.s3.counters().faults;
    assert!(faults.iter().all(|count| *count > 0), "not all faults came: {faults:?}");
    assert_eq!(cluster.status(0).degraded.unwrap_or_default().objects, 0);
}

#[test]
fn answers_that_hang_or_have_another_range_are_asked_for_again() {
    if !can_mount("answers_that_hang_or_have_another_range_are_asked_for_again") {
        return;
    }
    let files = Files::new().with_many("pack", 9, 100_000).with("large", 3 * MIB);
    let cluster = Cluster::of(files.objects());
    let plan = FaultPlan::default()
        .rule(Rule::from(Fault::Hang).operation(Operation::GetObject).keys("pack/*").count(1))
        .rule(Rule::from(Fault::Stall { after: ByteCount(100_000) }).keys("large").count(1))
        .rule(Rule::from(Fault::WrongRange).keys("large").skip(1).count(1));
    cluster.s3.set_faults(plan).unwrap();
    let mounted = Mounted::start(&cluster, &MountSetup::default());
    let started = Instant::now();
    files.check(&mounted.point);
    let (took, faults) = (started.elapsed(), cluster.s3.counters().faults);
    println!("took {took:?}, faults {faults:?}");
    assert!(took < Duration::from_secs(30), "took {took:?}");
    assert_eq!(faults, [1, 1, 1]);
}
