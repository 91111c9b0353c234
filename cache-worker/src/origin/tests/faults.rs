//! What breaks on the way is taken up again, and bytes of two versions are never mixed.

use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::faults::rule::{Fault, Rule};
use millrace_s3_server::outage::OutageMode;
use millrace_s3_server::units::{ByteCount, Span};

use super::super::error::OriginErrorKind as Kind;
use super::*;

const AFTER: ByteCount = ByteCount(100_000);

async fn survives(fault: Fault, kind: Kind) {
    let (server, objects) = server();
    let rule = Rule::from(fault.clone()).count(2);
    let server = server.faults(FaultPlan::default().rule(rule)).start().await.unwrap();
    let origin = open(config_of(&server));
    read_big(&origin, &objects, 10_000..SIZE - 1).await.unwrap();
    let counted = origin.counters().now();
    assert!(counted.of(kind) >= 2, "{fault:?}: {counted:?}");
    // On a machine that is busy enough a sound answer may be given up too.
    assert_eq!(counted.gets, 3 + counted.of(kind) - 2, "{fault:?}: {counted:?}");
    assert_eq!(counted.retries, counted.gets - 1, "{fault:?}");
    assert!(counted.bytes < SIZE + 2 * AFTER.0, "what had arrived is not fetched again");
    let window = origin.window().now();
    assert_eq!((window.foreground, window.bytes), (0, 0), "{fault:?}");
}

#[tokio::test]
async fn a_truncated_body_is_taken_up_where_it_ended() {
    survives(Fault::Truncate { after: AFTER }, Kind::Truncated).await;
}

#[tokio::test]
async fn a_reset_is_taken_up_where_it_happened() {
    survives(Fault::Reset { after: AFTER }, Kind::Reset).await;
}

#[tokio::test]
async fn a_dropped_connection_is_tried_again() {
    survives(Fault::Drop, Kind::Reset).await;
}

#[tokio::test]
async fn a_hang_is_given_up_and_tried_again() {
    survives(Fault::Hang, Kind::TimedOut).await;
}

#[tokio::test]
async fn a_stalled_body_is_given_up_and_taken_up_again() {
    survives(Fault::Stall { after: AFTER }, Kind::TimedOut).await;
}

#[tokio::test]
async fn a_503_is_tried_again() {
    survives(Fault::SlowDown, Kind::Throttled).await;
}

#[tokio::test]
async fn a_500_is_tried_again() {
    let fault = Fault::Error { status: 500, code: "InternalError".to_owned(), message: String::new() };
    survives(fault, Kind::Unavailable).await;
}

#[tokio::test]
async fn a_wrong_range_or_the_whole_object_is_not_taken_for_the_range() {
    survives(Fault::WrongRange, Kind::WrongRange).await;
    survives(Fault::RangeIgnored, Kind::WrongRange).await;
    for fault in [Fault::WrongRange, Fault::RangeIgnored] {
        let (server, objects) = server();
        let server = server.faults(FaultPlan::default().rule(fault)).start().await.unwrap();
        let err = read_big(&open(config_of(&server)), &objects, 10_000..20_000).await.unwrap_err();
        assert_eq!(err.kind(), Kind::WrongRange, "{err}");
    }
}

#[tokio::test]
async fn a_slow_but_sound_server_is_heard_out() {
    let (server, objects) = server();
    let plan = FaultPlan::default().with_first_byte(Duration::from_millis(1200));
    let server = server.faults(plan).start().await.unwrap();
    let origin = open(config_of(&server));
    read_big(&origin, &objects, 0..1000).await.unwrap();
    assert_eq!(origin.counters().now().of(Kind::TimedOut), 2, "after 500 and 1,000 ms");
}

#[tokio::test]
async fn an_object_that_was_written_again_is_never_read_in_part() {
    for fault in [Fault::ChangedEtag, Fault::Overwritten, Fault::Deleted] {
        for ignores_if_match in [false, true] {
            let (server, objects) = server();
            let mut plan = FaultPlan::default().rule(fault.clone());
            if ignores_if_match {
                plan = plan.rule(Fault::IfMatchIgnored);
            }
            let server = server.faults(plan).start().await.unwrap();
            let origin = open(config_of(&server));
            let kind = if fault == Fault::Deleted { Kind::NoSuchKey } else { Kind::Changed };
            let mut stream =
                origin.get(version(&objects, "big", SIZE), 5..SIZE, Priority::Foreground, within(20));
            let err = stream.next().await.unwrap_err();
            assert_eq!(err.kind(), kind, "{fault:?} {ignores_if_match}: {err}");
            assert_eq!(stream.next().await.unwrap_err().kind(), kind, "the first error is final");
            assert_eq!(origin.counters().now().gets, 1);
        }
    }
}

#[tokio::test]
async fn an_object_that_changes_in_the_midst_of_a_read_ends_it() {
    let (server, objects) = server();
    let plan = FaultPlan::default().rule(Rule::from(Fault::Truncate { after: AFTER }).count(1));
    let server = server.faults(plan).start().await.unwrap();
    let origin = open(config_of(&server));
    let mut stream = origin.get(version(&objects, "big", SIZE), 0..SIZE, Priority::Foreground, within(20));
    let first = stream.next().await.unwrap().unwrap();
    objects.put("big", vec![7; SIZE as usize]);
    let mut bytes = first.to_vec();
    let err = loop {
        match stream.next().await {
            Ok(Some(piece)) => bytes.extend_from_slice(&piece),
            Ok(None) => panic!("read to the end"),
            Err(err) => break err,
        }
    };
    assert_eq!(err.kind(), Kind::Changed);
    assert!(synthetic::matches("big", 0, &bytes), "bytes of the old version only");
}

#[tokio::test]
async fn an_object_of_another_size_is_changed_even_without_an_etag() {
    let (server, objects) = server();
    let server = server.start().await.unwrap();
    let origin = open(config_of(&server));
    for size in [4, 6] {
        let object = ObjectVersion { key: "small".to_owned(), etag: String::new(), size };
        assert_eq!(read(&origin, object.clone(), 0..size).await.unwrap_err().kind(), Kind::Changed);
        assert_eq!(read(&origin, object, 1..3).await.unwrap_err().kind(), Kind::Changed);
    }
    let unknown = ObjectVersion { key: "small".to_owned(), etag: String::new(), size: 5 };
    assert_eq!(read(&origin, unknown, 1..3).await.unwrap(), b"el");
    drop(objects);
}

#[tokio::test]
async fn an_outage_is_waited_out_and_reads_go_on_within_seconds() {
    for mode in [OutageMode::Refuse, OutageMode::InternalError] {
        let (server, objects) = server();
        let server = server.start().await.unwrap();
        let origin = open(config_of(&server));
        read_big(&origin, &objects, 0..9).await.unwrap();
        server.begin_outage(mode, Duration::from_secs(2));
        let started = Instant::now();
        read_big(&origin, &objects, 9..SIZE).await.unwrap();
        let took = started.elapsed();
        assert!(took > Duration::from_millis(1500) && took < Duration::from_secs(5), "{mode:?} {took:?}");
        assert!(origin.trouble().is_none(), "over");
    }
}

#[tokio::test]
async fn a_read_ends_at_its_deadline_with_what_kept_it() {
    let (server, objects) = server();
    let plan = FaultPlan::default().rule(Fault::Hang);
    let server = server.faults(plan).start().await.unwrap();
    let origin = open(config_of(&server));
    let started = Instant::now();
    let until = Instant::now() + Duration::from_millis(700);
    let err = read_until(&origin, version(&objects, "big", SIZE), 0..9, until).await.unwrap_err();
    assert_eq!(err.kind(), Kind::TimedOut);
    assert!(started.elapsed() < Duration::from_millis(1200), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_call_that_was_dropped_is_taken_up_by_the_next() {
    let (server, objects) = server();
    let plan =
        FaultPlan::default().rule(Rule::from(Fault::Delay { by: Span(Duration::from_millis(100)) }).count(1));
    let server = server.faults(plan).start().await.unwrap();
    let origin = open(config_of(&server));
    let mut stream = origin.get(version(&objects, "big", SIZE), 0..SIZE, Priority::Foreground, within(20));
    assert!(tokio::time::timeout(Duration::from_millis(20), stream.next()).await.is_err());
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await.unwrap() {
        bytes.extend_from_slice(&piece);
    }
    assert!(bytes.len() as u64 == SIZE && synthetic::matches("big", 0, &bytes));
    assert_eq!(origin.window().now().foreground, 0);
}

#[tokio::test]
async fn random_faults_never_change_a_byte() {
    let (server, objects) = server();
    let plan = FaultPlan { seed: 7, ..FaultPlan::default() }
        .rule(Rule::from(Fault::SlowDown).probability(0.3))
        .rule(Rule::from(Fault::Truncate { after: ByteCount(70_000) }).probability(0.2))
        .rule(Rule::from(Fault::Reset { after: ByteCount(10_000) }).probability(0.1))
        .rule(Rule::from(Fault::Drop).probability(0.1));
    let server = server.faults(plan).start().await.unwrap();
    let origin = open(config_of(&server));
    let reads = (0..64u64).map(|part| {
        let start = part * SIZE / 64;
        read_big(&origin, &objects, start..(start + 200_000).min(SIZE))
    });
    for read in futures::future::join_all(reads).await {
        read.unwrap();
    }
}
