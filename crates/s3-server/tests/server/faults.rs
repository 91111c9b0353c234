//! Does each fault show as it does with a real server that has it?

use std::time::{Duration, Instant};

use aws_sdk_s3::error::SdkError;
use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::faults::rule::{Fault, Rule};
use millrace_s3_server::outage::OutageMode;
use millrace_s3_server::server::S3Server;
use millrace_s3_server::synthetic;
use millrace_s3_server::target::Operation;
use millrace_s3_server::units::{ByteCount, Span};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{anonymous, get, refusal};

const SIZE: u64 = 1_000_000;

async fn start(rules: impl IntoIterator<Item = Rule>) -> S3Server {
    let objects = InMemory::new();
    objects.put_sized("k", SIZE);
    objects.put_sized("other", SIZE);
    let plan = FaultPlan { rules: rules.into_iter().collect(), ..FaultPlan::default() };
    S3Server::builder().bucket("data", objects).faults(plan).start().await.unwrap()
}

/// Bytes of the body that arrive, and how it ends.
async fn read_raw(server: &S3Server) -> (String, usize, std::io::Result<()>) {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(b"GET /data/k HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let (mut all, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    let end = loop {
        match stream.read(&mut piece).await {
            Ok(0) => break Ok(()),
            Ok(length) => all.extend_from_slice(&piece[..length]),
            Err(err) => break Err(err),
        }
    };
    let head = all.windows(4).position(|window| window == b"\r\n\r\n").map_or(all.len(), |at| at + 4);
    (String::from_utf8_lossy(&all[..head]).into_owned(), all.len() - head, end)
}

#[tokio::test]
async fn slow_down_strikes_the_share_of_requests_that_was_asked_for() {
    let server = start([Rule::from(Fault::SlowDown).probability(0.3)]).await;
    let client = anonymous(&server);
    let mut refused = 0;
    for _ in 0..200 {
        if let Err(err) = client.head_object().bucket("data").key("k").send().await {
            assert_eq!(err.raw_response().unwrap().status().as_u16(), 503);
            refused += 1;
        }
    }
    assert!((40..80).contains(&refused), "{refused}");
    assert_eq!(server.counters().throttles, refused);
    assert_eq!(server.counters().faults, [refused]);
}

#[tokio::test]
async fn any_error_can_befall_any_key_and_operation() {
    let denied =
        |status, code: &str| Fault::Error { status, code: code.to_owned(), message: "<kms & co>".to_owned() };
    let server = start([
        Rule::from(denied(403, "AccessDenied")).keys("k").operation(Operation::GetObject),
        Rule::from(denied(400, "KMS.DisabledException")).keys("oth*"),
    ])
    .await;
    let client = anonymous(&server);
    assert!(client.list_objects_v2().bucket("data").send().await.is_ok());
    assert!(client.head_object().bucket("data").key("k").send().await.is_ok());
    let refused = refusal(client.get_object().bucket("data").key("k").send().await);
    assert_eq!(refused, (403, "AccessDenied".to_owned()));
    let refused = refusal(client.get_object().bucket("data").key("other").send().await);
    assert_eq!(refused, (400, "KMS.DisabledException".to_owned()));
    assert_eq!(server.counters().errors["KMS.DisabledException"], 1);
}

#[tokio::test]
async fn a_truncated_body_ends_where_it_was_cut_under_the_full_length() {
    let server = start([Rule::from(Fault::Truncate { after: ByteCount(300_000) })]).await;
    let (head, length, end) = read_raw(&server).await;
    assert!(
        head.starts_with("HTTP/1.1 200") && head.to_ascii_lowercase().contains("content-length: 1000000"),
        "{head}"
    );
    assert_eq!(length, 300_000);
    assert!(end.is_ok());
    let body = anonymous(&server).get_object().bucket("data").key("k").send().await.unwrap().body;
    assert!(body.collect().await.is_err());
    assert_eq!(server.counters().body_bytes, 600_000);
}

#[tokio::test]
async fn a_body_may_be_cut_before_its_first_byte() {
    let server = start([Rule::from(Fault::Truncate { after: ByteCount(0) })]).await;
    let (head, length, _) = read_raw(&server).await;
    assert!(head.starts_with("HTTP/1.1 200") && length == 0, "{head} {length}");
}

#[tokio::test]
async fn a_reset_arrives_as_a_reset() {
    let server = start([Rule::from(Fault::Reset { after: ByteCount(300_000) })]).await;
    let (head, _, end) = read_raw(&server).await;
    assert!(head.starts_with("HTTP/1.1 200"));
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    server.set_faults(FaultPlan::default().rule(Fault::Drop)).unwrap();
    let (head, _, end) = read_raw(&server).await;
    assert!(head.is_empty() && end.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_hang_and_a_stall_never_end_and_go_with_their_connection() {
    for fault in [Fault::Hang, Fault::Stall { after: ByteCount(1000) }] {
        let server = start([Rule::from(fault.clone()).keys("k")]).await;
        let waited = tokio::time::timeout(Duration::from_millis(200), read_raw(&server)).await;
        assert!(waited.is_err(), "{fault:?} ended");
        assert_eq!(get(&anonymous(&server), "data", "other").await.len() as u64, SIZE);
        while server.counters().in_flight > 0 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_changed_etag_fails_if_match_unless_that_is_ignored_too() {
    let server = start([]).await;
    let client = anonymous(&server);
    let ask = || client.get_object().bucket("data").key("k").range("bytes=0-99");
    let etag = ask().send().await.unwrap().e_tag().unwrap().to_owned();
    server.set_faults(FaultPlan::default().rule(Fault::ChangedEtag)).unwrap();
    assert_eq!(refusal(ask().if_match(&etag).send().await).0, 412);
    let changed = ask().send().await.unwrap();
    assert_ne!(changed.e_tag(), Some(etag.as_str()));
    assert!(synthetic::matches("k", 0, &changed.body.collect().await.unwrap().to_vec()));
    server.set_faults(FaultPlan::default().rule(Fault::Overwritten).rule(Fault::IfMatchIgnored)).unwrap();
    let changed = ask().if_match(&etag).send().await.unwrap();
    assert_ne!(changed.e_tag(), Some(etag.as_str()));
    assert!(!synthetic::matches("k", 0, &changed.body.collect().await.unwrap().to_vec()));
    server.set_faults(FaultPlan::default().rule(Fault::CorruptBody)).unwrap();
    let corrupt = ask().if_match(&etag).send().await.unwrap();
    assert!(!synthetic::matches("k", 0, &corrupt.body.collect().await.unwrap().to_vec()));
}

#[tokio::test]
async fn a_deleted_object_is_listed_and_not_found() {
    let server = start([Rule::from(Fault::Deleted).keys("k")]).await;
    let client = anonymous(&server);
    assert_eq!(client.list_objects_v2().bucket("data").send().await.unwrap().contents().len(), 2);
    assert_eq!(
        refusal(client.get_object().bucket("data").key("k").send().await),
        (404, "NoSuchKey".to_owned())
    );
    assert_eq!(refusal(client.head_object().bucket("data").key("k").send().await).0, 404);
}

#[tokio::test]
async fn a_wrong_range_is_of_the_right_length_and_says_where_it_is() {
    let server = start([Rule::from(Fault::WrongRange)]).await;
    let client = anonymous(&server);
    let ask = || client.get_object().bucket("data").key("k").range("bytes=1000-1999");
    let wrong = ask().send().await.unwrap();
    assert_eq!(wrong.content_range(), Some("bytes 2000-2999/1000000"));
    assert!(synthetic::matches("k", 2000, &wrong.body.collect().await.unwrap().to_vec()));
    server.set_faults(FaultPlan::default().rule(Fault::RangeIgnored)).unwrap();
    let whole = ask().send().await.unwrap();
    assert_eq!((whole.content_range(), whole.content_length()), (None, Some(SIZE as i64)));
}

#[tokio::test]
async fn a_listing_out_of_order_has_the_same_keys() {
    let objects = InMemory::new();
    (0..1000).for_each(|number| drop(objects.put(format!("{number:04}"), "")));
    let server = S3Server::builder().bucket("data", objects).start().await.unwrap();
    let client = anonymous(&server);
    let list = async || {
        let page = client.list_objects_v2().bucket("data").send().await.unwrap();
        page.contents()
            .iter()
            .map(|object| (object.key().unwrap().to_owned(), object.e_tag().map(str::to_owned)))
            .collect::<Vec<_>>()
    };
    let right = list().await;
    server.set_faults(FaultPlan::default().rule(Fault::ListingOutOfOrder)).unwrap();
    let mut wrong = list().await;
    assert_ne!(right, wrong);
    wrong.sort();
    assert_eq!(right, wrong);
    server.set_faults(FaultPlan::default().rule(Fault::ListingWithoutEtags)).unwrap();
    assert!(list().await.iter().all(|(_, etag)| etag.is_none()));
}

#[tokio::test]
async fn latencies_are_those_of_the_plan() {
    let server = start([]).await;
    let plan = FaultPlan::default()
        .with_first_byte(Duration::from_millis(60))
        .with_list_page(Duration::from_millis(120));
    server
        .set_faults(
            plan.rule(Rule::from(Fault::Delay { by: Span(Duration::from_millis(100)) }).keys("other")),
        )
        .unwrap();
    let client = anonymous(&server);
    // The shortest of a few, since a busy machine only adds.
    let shortest = async |request: &dyn Fn() -> BoxFuture<'static, ()>| {
        let mut shortest = Duration::MAX;
        for _ in 0..4 {
            let start = Instant::now();
            request().await;
            shortest = shortest.min(start.elapsed());
        }
        shortest.as_millis()
    };
    let head = |key: &'static str| {
        let request = client.head_object().bucket("data").key(key).send();
        async { drop(request.await.unwrap()) }.boxed()
    };
    assert!((60..100).contains(&shortest(&|| head("k")).await));
    assert!((160..220).contains(&shortest(&|| head("other")).await));
    let list = || {
        let request = client.list_objects_v2().bucket("data").send();
        async { drop(request.await.unwrap()) }.boxed()
    };
    assert!((120..160).contains(&shortest(&list).await));
}

#[tokio::test]
async fn an_outage_refuses_connections_and_ends_by_itself() {
    let server = start([]).await;
    let client = anonymous(&server);
    assert_eq!(get(&client, "data", "k").await.len() as u64, SIZE);
    server.begin_outage(OutageMode::Refuse, Duration::from_millis(400));
    let mut refused = false;
    loop {
        match client.get_object().bucket("data").key("k").send().await {
            Ok(object) => {
                // The listener closes a moment after the outage begins.
                drop(object.body.collect().await);
                if refused {
                    break;
                }
            }
            Err(err) => {
                assert!(matches!(err, SdkError::DispatchFailure(_)), "{err:?}");
                refused = true;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    let stream = TcpStream::connect(server.address()).await;
    assert!(stream.is_ok());
}

#[tokio::test]
async fn an_outage_of_internal_errors_ends_when_told() {
    let server = start([]).await;
    let client = anonymous(&server);
    server.begin_outage(OutageMode::InternalError, Duration::from_secs(600));
    let refused = refusal(client.get_object().bucket("data").key("k").send().await);
    assert_eq!(refused, (500, "InternalError".to_owned()));
    server.end_outage();
    assert_eq!(get(&client, "data", "k").await.len() as u64, SIZE);
}

#[tokio::test]
async fn a_bad_plan_leaves_the_old_one_in_force() {
    let server = start([Rule::from(Fault::SlowDown)]).await;
    let bad = FaultPlan::default().rule(Rule::from(Fault::SlowDown).probability(7.0));
    assert!(server.set_faults(bad).unwrap_err().to_string().contains("probability"));
    assert_eq!(refusal(anonymous(&server).head_object().bucket("data").key("k").send().await).0, 503);
    server.clear_faults();
    assert_eq!(get(&anonymous(&server), "data", "k").await.len() as u64, SIZE);
}
