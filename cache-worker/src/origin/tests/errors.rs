//! Every way in which a request is refused has a kind and a message of its own.

use millrace_s3_server::config::BucketConfig;
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::faults::rule::{Fault, Rule};
use millrace_s3_server::region::Redirect;
use millrace_s3_server::target::Operation;

use super::super::PageStart;
use super::super::config::Addressing;
use super::super::error::OriginErrorKind as Kind;
use super::*;

fn error(status: u16, code: &str, message: &str) -> Rule {
    Rule::from(Fault::Error { status, code: code.to_owned(), message: message.to_owned() })
}

#[tokio::test]
async fn ranges_and_whole_objects_are_read() {
    let (server, objects) = server();
    let server = server.start().await.unwrap();
    let origin = open(config_of(&server));
    read_big(&origin, &objects, 0..SIZE).await.unwrap();
    read_big(&origin, &objects, 100_000..100_001).await.unwrap();
    read_big(&origin, &objects, SIZE - 70_000..SIZE).await.unwrap();
    let small = version(&objects, "small", 5);
    assert_eq!(read(&origin, small.clone(), 1..4).await.unwrap(), b"ell");
    assert_eq!(read(&origin, small.clone(), 0..100).await.unwrap(), b"hello", "cut to the object");
    assert_eq!(read(&origin, small, 7..9).await.unwrap(), b"");
    let counted = origin.counters().now();
    assert_eq!((counted.gets, counted.retries), (5, 0));
    assert_eq!(counted.bytes, SIZE + 1 + 70_000 + 3 + 5);
    assert_eq!(origin.window().now().foreground, 0);
}

#[tokio::test]
async fn what_the_server_refuses_is_told_apart_and_not_tried_again() {
    let (server, objects) = server();
    let server = server.start().await.unwrap();
    let origin = open(config_of(&server));
    for (status, code, message, kind) in [
        (403, "AccessDenied", "Access Denied", Kind::AccessDenied),
        (403, "AccessDenied", "not authorized to perform: kms:Decrypt on the resource", Kind::Kms),
        (403, "InvalidAccessKeyId", "", Kind::InvalidAccessKey),
        (403, "SignatureDoesNotMatch", "", Kind::SignatureMismatch),
        (400, "ExpiredToken", "The provided token has expired.", Kind::ExpiredToken),
        (404, "NoSuchBucket", "", Kind::NoSuchBucket),
        (404, "NoSuchKey", "", Kind::NoSuchKey),
        (403, "InvalidObjectState", "", Kind::Archived),
    ] {
        server.set_faults(FaultPlan::default().rule(error(status, code, message))).unwrap();
        let before = origin.counters().now().gets;
        let err = read_big(&origin, &objects, 0..1000).await.unwrap_err();
        assert_eq!(err.kind(), kind, "{err}");
        assert_eq!(origin.counters().now().gets, before + 1, "{code}");
        for part in [server.endpoint().as_str(), "\"data\"", "\"big\"", code] {
            assert!(err.to_string().contains(part), "{err} lacks {part}");
        }
    }
    assert_eq!(origin.counters().now().of(Kind::Kms), 1);
}

#[tokio::test]
async fn a_denied_kms_key_lets_listings_pass() {
    let (server, objects) = server();
    let server = server.start().await.unwrap();
    let denied = error(403, "AccessDenied", "User is not authorized to perform: kms:Decrypt")
        .operation(Operation::GetObject);
    server.set_faults(FaultPlan::default().rule(denied)).unwrap();
    let origin = open(config_of(&server));
    let page = origin.list_page("", &PageStart::First, Priority::WarmUp, within(5)).await.unwrap();
    assert_eq!(page.objects.len(), 2);
    assert_eq!(kind_of_read(&origin, &objects).await, Kind::Kms);
}

#[tokio::test]
async fn a_missing_bucket_or_key_is_said_by_get_and_list() {
    let (server, objects) = server();
    let server = server.start().await.unwrap();
    let mut config = config_of(&server);
    config.bucket = "nowhere".to_owned();
    let origin = open(config);
    let err = origin.list_page("x/", &PageStart::First, Priority::WarmUp, within(5)).await.unwrap_err();
    assert_eq!(err.kind(), Kind::NoSuchBucket, "{err}");
    assert!(err.to_string().contains("\"nowhere\"") && err.to_string().contains("\"x/\""), "{err}");
    let origin = open(config_of(&server));
    let gone = version(&objects, "small", 5);
    objects.remove("small");
    assert_eq!(read(&origin, gone, 0..5).await.unwrap_err().kind(), Kind::NoSuchKey);
}

#[tokio::test]
async fn an_archived_object_is_told_by_listing_and_get() {
    let (server, objects) = server();
    objects.set_storage_class("big", "DEEP_ARCHIVE");
    let server = server.start().await.unwrap();
    let origin = open(config_of(&server));
    let page = origin.list_page("", &PageStart::First, Priority::WarmUp, within(5)).await.unwrap();
    assert_eq!(page.objects.iter().map(|object| object.is_archived).collect::<Vec<_>>(), [true, false]);
    assert_eq!(kind_of_read(&origin, &objects).await, Kind::Archived);
}

#[tokio::test]
async fn a_bucket_whose_requester_pays_is_read_only_by_who_agrees() {
    let objects = InMemory::new();
    objects.put_sized("big", SIZE);
    let server = S3Server::builder()
        .bucket_config(BucketConfig::new("data", &objects).requester_pays())
        .start()
        .await
        .unwrap();
    let mut config = config_of(&server);
    assert_eq!(kind_of_read(&open(config.clone()), &objects).await, Kind::RequesterPays);
    config.requester_pays = true;
    read_big(&open(config), &objects, 5..9).await.unwrap();
}

#[tokio::test]
async fn names_without_address_and_ports_without_listener_are_waited_for_until_the_deadline() {
    let (server, objects) = server();
    let server = server.start().await.unwrap();
    let mut config = config_of(&server);
    let object = version(&objects, "big", SIZE);
    config.endpoint = Some("http://no-such-host.invalid:9000".to_owned());
    let origin = open(config.clone());
    let err = read_until(&origin, object.clone(), 0..9, within(1)).await.unwrap_err();
    assert_eq!(err.kind(), Kind::Dns, "{err}");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    config.endpoint = Some(format!("http://{free}"));
    let origin = open(config);
    let started = Instant::now();
    let err = read_until(&origin, object, 0..9, within(2)).await.unwrap_err();
    assert_eq!(err.kind(), Kind::Refused, "{err}");
    assert!(started.elapsed() > Duration::from_millis(500), "tried for a while");
    assert!(origin.counters().now().retries >= 3);
    assert_eq!(origin.trouble().map(|trouble| trouble.why.kind()), Some(Kind::Refused));
}

#[tokio::test]
async fn only_a_known_authority_is_trusted() {
    let (server, objects) = server();
    let server = server.tls().start().await.unwrap();
    let mut config = config_of(&server);
    assert!(server.endpoint().starts_with("https://"));
    let folder = tempfile::tempdir().unwrap();
    let other = S3Server::builder().tls().start().await.unwrap();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, other.ca_pem().unwrap()).unwrap();
    config.ca = Some(ca.clone());
    let started = Instant::now();
    assert_eq!(kind_of_read(&open(config.clone()), &objects).await, Kind::Tls);
    assert!(started.elapsed() < Duration::from_secs(5), "not waited out");
    std::fs::write(&ca, server.ca_pem().unwrap()).unwrap();
    read_big(&open(config.clone()), &objects, 0..SIZE).await.unwrap();
    config.ca = Some(folder.path().join("missing"));
    let err = Origin::new(config, Window::new(WindowConfig::default()), Arc::default()).unwrap_err();
    assert!(std::error::Error::source(&err).unwrap().to_string().contains("missing"));
}

#[tokio::test]
async fn both_ways_to_name_a_bucket_work() {
    let (server, objects) = server();
    let server = server.start().await.unwrap();
    let mut config = config_of(&server);
    config.addressing = Addressing::VirtualHosted;
    config.endpoint = Some(format!("http://localhost:{}", server.address().port()));
    read_big(&open(config), &objects, 0..SIZE).await.unwrap();
}

#[tokio::test]
async fn a_bucket_of_another_region_is_found_by_either_kind_of_answer() {
    for redirect in [Redirect::Permanent, Redirect::Malformed] {
        let objects = InMemory::new();
        objects.put_sized("big", SIZE);
        let keys = millrace_s3_server::auth::Credentials::new("AKIDEXAMPLE", "secret");
        let server = S3Server::builder()
            .bucket_config(BucketConfig::new("data", &objects).in_region("eu-west-1"))
            .access(millrace_s3_server::auth::Access::signed(keys))
            .redirect(redirect)
            .start()
            .await
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        super::credentials::put_keys(folder.path(), "AKIDEXAMPLE", "secret");
        let mut config = config_of(&server);
        config.credentials = CredentialsConfig::Folder(folder.path().to_owned());
        let origin = open(config);
        read_big(&origin, &objects, 0..SIZE).await.unwrap();
        assert_eq!(origin.counters().now().of(Kind::Region), 1, "{redirect:?}");
        read_big(&origin, &objects, 0..SIZE).await.unwrap();
        assert_eq!(origin.counters().now().of(Kind::Region), 1, "learned: {redirect:?}");
    }
}

#[tokio::test]
async fn awkward_keys_are_listed_and_read() {
    let keys =
        ["a", "a/b", "a//b", "/lead", "./x/../y", "sp ace+plus%41", "ctl\u{1}\n", "ümlaut/日本", "q?x=y&z#f"];
    let objects = keys.iter().fold(InMemory::new(), |objects, key| objects.with(key, *key));
    let server = S3Server::builder().bucket("data", &objects).start().await.unwrap();
    let origin = open(config_of(&server));
    let page = origin.list_page("", &PageStart::First, Priority::WarmUp, within(5)).await.unwrap();
    let listed: Vec<_> = page.objects.iter().map(|object| object.key.clone()).collect();
    assert_eq!(listed, objects.keys());
    for key in keys {
        let size = key.len() as u64;
        let bytes = read(&origin, version(&objects, key, size), 0..size).await;
        assert_eq!(bytes.unwrap(), key.as_bytes(), "{key:?}");
    }
}

#[tokio::test]
async fn a_redirect_that_names_no_region_is_an_error() {
    let (server, objects) = server();
    let plan = FaultPlan::default().rule(error(301, "PermanentRedirect", "elsewhere"));
    let server = server.faults(plan).start().await.unwrap();
    assert_eq!(kind_of_read(&open(config_of(&server)), &objects).await, Kind::Region);
}

#[tokio::test]
async fn a_server_that_does_not_speak_s3_is_not_expected() {
    for body in [
        "<html><body>It works!</body></html>",
        "",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
    ] {
        let canned = super::canned::serve(|_| body.to_owned()).await;
        let origin = open(OriginConfig::at(&canned.endpoint, "data", CredentialsConfig::Anonymous));
        let page = origin.list_page("", &PageStart::First, Priority::WarmUp, within(5)).await;
        // An empty answer to a listing is one without keys.
        match page {
            Ok(page) => assert!(body.is_empty() && page.objects.is_empty(), "{body}"),
            Err(err) => assert_eq!(err.kind(), Kind::Unexpected, "{body}: {err}"),
        }
    }
}

#[tokio::test]
async fn a_server_that_takes_no_connection_is_given_up_after_the_connect_deadline() {
    let (server, objects) = server();
    let server = server.start().await.unwrap();
    let full = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let address = full.local_addr().unwrap();
    // The queue takes one more than its length; what comes after that is not answered.
    let _queued: Vec<_> = (0..3)
        .filter_map(|_| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(100)).ok())
        .collect();
    let mut config = config_of(&server);
    config.endpoint = Some(format!("http://{address}"));
    config.deadlines = Deadlines { connect: Duration::from_millis(200), ..Deadlines::default() };
    let origin = open(config);
    let err = read_until(&origin, version(&objects, "big", SIZE), 0..9, within(2)).await.unwrap_err();
    assert_eq!(err.kind(), Kind::Unreachable, "{err}");
}
