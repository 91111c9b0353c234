//! Can a running server be watched, changed and stopped?

use std::time::{Duration, Instant};

use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::backend::spec::SyntheticSpec;
use millrace_s3_server::counters::Snapshot;
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::server::{S3Server, StartError};
use millrace_s3_server::target::Operation;

use crate::client::{anonymous, get, http, refusal};

#[tokio::test]
async fn counters_show_what_was_asked_for_and_sent() {
    let spec: SyntheticSpec = "objects=3,size=100000".parse().unwrap();
    let server = S3Server::builder().bucket("data", spec).admin().start().await.unwrap();
    let client = anonymous(&server);
    for key in ["f00000000.bin", "f00000001.bin", "f00000001.bin"] {
        get(&client, "data", key).await;
    }
    client.list_objects_v2().bucket("data").send().await.unwrap();
    refusal(client.get_object().bucket("data").key("none").send().await);
    let (status, body) = http(&server.admin_url().unwrap(), "GET", "/counters", "").await;
    assert_eq!(status, 200);
    let counters: Snapshot = serde_json::from_str(&body).unwrap();
    assert_eq!(counters.requests_of(Operation::GetObject), 4);
    assert_eq!(counters.requests_of(Operation::ListObjectsV2), 1);
    assert_eq!(counters.body_bytes, 300_000);
    assert_eq!(
        (counters.get_bytes["data/f00000000.bin"], counters.get_bytes["data/f00000001.bin"]),
        (100_000, 200_000)
    );
    assert_eq!(counters.errors["NoSuchKey"], 1);
    assert!(counters.other_bytes > 0 && counters.connections > 0 && counters.max_in_flight > 0);
    assert_eq!(http(&server.admin_url().unwrap(), "DELETE", "/counters", "").await.0, 200);
    assert_eq!(server.counters().body_bytes, 0);
}

#[tokio::test]
async fn faults_and_outages_are_set_over_the_admin_port() {
    let server =
        S3Server::builder().bucket("data", InMemory::new().with("k", "body")).admin().start().await.unwrap();
    let (client, admin) = (anonymous(&server), server.admin_url().unwrap());
    let yaml = "rules: [{fault: {kind: slowDown}, count: 1}]";
    assert_eq!(http(&admin, "PUT", "/faults", yaml).await.0, 204);
    assert_eq!(refusal(client.head_object().bucket("data").key("k").send().await).0, 503);
    assert_eq!(get(&client, "data", "k").await, b"body");
    let (_, plan) = http(&admin, "GET", "/faults", "").await;
    assert_eq!(FaultPlan::from_yaml(&plan).unwrap(), FaultPlan::from_yaml(yaml).unwrap());
    let (status, message) = http(&admin, "PUT", "/faults", "rules: [{fault: {kind: explode}}]").await;
    assert!(status == 400 && message.contains("explode"), "{message}");
    assert_eq!(http(&admin, "DELETE", "/faults", "").await.0, 200);
    let outage = r#"{"mode": "internalError", "length": "10m"}"#;
    assert_eq!(http(&admin, "PUT", "/outage", outage).await.0, 204);
    assert_eq!(refusal(client.head_object().bucket("data").key("k").send().await).0, 500);
    assert_eq!(http(&admin, "DELETE", "/outage", "").await.0, 200);
    assert_eq!(get(&client, "data", "k").await, b"body");
    assert_eq!(http(&admin, "PUT", "/outage", "{}").await.0, 400);
    assert_eq!(http(&admin, "GET", "/healthz", "").await, (200, "ok".to_owned()));
    assert_eq!(http(&admin, "GET", "/ca.pem", "").await.0, 404);
}

#[tokio::test]
async fn a_server_listens_on_loopback_and_stops_with_its_port() {
    let server = S3Server::builder().bucket("data", InMemory::new().with("k", "body")).start().await.unwrap();
    let (address, client) = (server.address(), anonymous(&server));
    assert!(address.ip().is_loopback());
    assert_eq!(get(&client, "data", "k").await, b"body");
    let start = Instant::now();
    server.shutdown().await;
    assert!(start.elapsed() < Duration::from_secs(2), "an idle connection held the server up");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn what_keeps_a_server_from_starting_is_named() {
    let taken = S3Server::builder().start().await.unwrap();
    let err = S3Server::builder().listen(taken.address()).start().await.unwrap_err();
    assert!(
        matches!(err, StartError::Listen { .. }) && err.to_string().contains(&taken.address().to_string()),
        "{err}"
    );
    for (first, second) in [("UPPER", "two"), ("one", "one")] {
        let twice = S3Server::builder().bucket(first, InMemory::new()).bucket(second, InMemory::new());
        assert!(matches!(twice.start().await.unwrap_err(), StartError::Config(_)));
    }
}
