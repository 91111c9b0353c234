//! The control port and the admin port.

use millrace_control::proto;
use millrace_control::proto::why_answer::What;
use millrace_s3_server::backend::memory::InMemory;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cluster::{Cluster, MIB, body, make_index, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_lacks_the_index_gets_it_from_a_peer() {
    // The cluster makes the index at its first worker only.
    let cluster = Cluster::with(InMemory::new().with("a", body("a", MIB)), 3, 1 << 30).await;
    for running in &cluster.workers {
        assert!(running.worker.versions.get(&cluster.version).is_some());
    }
    assert!(cluster.read("a").await.unwrap() == body("a", MIB));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_tells_what_is_owned_and_cached() {
    let objects =
        InMemory::new().with("a", body("a", 3 * MIB)).with("b", body("b", 70_000)).with("c", Vec::new());
    let cluster = Cluster::of(objects).await;
    let mut stream = cluster.workers[0].control().status(proto::StatusRequest {}).await.unwrap().into_inner();
    cluster.read("a").await.unwrap();
    cluster.read("b").await.unwrap();
    while let Some(status) = stream.message().await.unwrap() {
        let version = &status.versions[0];
        let (owned, cached) = (version.owned.unwrap(), version.cached.unwrap());
        if cached.objects == 3 {
            assert_eq!((owned.objects, owned.bytes, cached.bytes), (3, 3 * MIB + 70_000, 3 * MIB + 70_000));
            assert_eq!((owned.blocks, cached.blocks), (4, 4));
            let origin = status.origin.unwrap();
            assert!(origin.requests >= 4 && origin.bytes >= owned.bytes);
            break;
        }
    }
    drop(stream);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn why_tells_blocks_owner_and_last_error() {
    let cluster = Cluster::with(InMemory::new().with("d/a", body("d/a", 3 * MIB)), 2, 1 << 30).await;
    cluster.objects.remove("d/a");
    cluster.read("d/a").await.unwrap_err();
    let mut errors = Vec::new();
    for running in &cluster.workers {
        let request = proto::WhyRequest { version: cluster.version.to_string(), path: b"/d/a".to_vec() };
        let answer = running.control().why(request).await.unwrap().into_inner();
        let Some(What::Object(object)) = answer.what else { panic!("{answer:?}") };
        assert_eq!((object.key.as_slice(), object.size, object.blocks.len()), (&b"d/a"[..], 3 * MIB, 3));
        assert!(object.blocks.iter().all(|block| block.owner.starts_with("w-") && block.chunks == 16));
        errors.extend(object.last_error);
    }
    assert!(errors.iter().any(|error| error.reason == "NoSuchKey" && error.path == "d/a"), "{errors:?}");
    let request = proto::WhyRequest { version: cluster.version.to_string(), path: b"none".to_vec() };
    let answer = cluster.workers[0].control().why(request).await.unwrap().into_inner();
    assert_eq!(answer.what, Some(What::Unknown(true)));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_left_out_are_counted_and_told() {
    let objects = InMemory::new().with("a//b", "x").with("ok", "y");
    let cluster = Cluster::of(objects).await;
    let request = proto::WhyRequest { version: cluster.version.to_string(), path: b"a//b".to_vec() };
    let answer = cluster.workers[0].control().why(request).await.unwrap().into_inner();
    let Some(What::LeftOut(left_out)) = answer.what else { panic!("{answer:?}") };
    assert_eq!((left_out.total, left_out.keys[0].key.as_slice()), (1, &b"a//b"[..]));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_does_not_exist_fails_the_index_with_reason_and_cure() {
    let cluster = Cluster::of(InMemory::new().with("a", "x")).await;
    let mut source = crate::cluster::source(&cluster.s3);
    source.bucket = "nope".to_owned();
    let request = proto::MakeIndexRequest { sources: vec![source], block_size_bytes: 0 };
    let mut steps = cluster.workers[0].control().make_index(request).await.unwrap().into_inner();
    let mut failed = None;
    while let Some(step) = steps.message().await.unwrap() {
        if let Some(proto::make_index_progress::Step::Failed(failure)) = step.step {
            failed = Some(failure);
        }
    }
    let failed = failed.expect("a failure is told");
    assert_eq!(failed.reason, "NoSuchBucket");
    assert!(failed.message.contains("nope") && failed.message.contains("check bucket"), "{}", failed.message);
    // Asked again with the right bucket, the same version comes out.
    assert_eq!(make_index(&cluster.workers[0], &cluster.s3, 1 << 20).await.unwrap(), cluster.version);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_readiness_are_told() {
    let cluster = Cluster::of(InMemory::new().with("a", body("a", MIB))).await;
    cluster.read("a").await.unwrap();
    let admin = cluster.workers[0].addresses.admin;
    let ready = get(admin, "/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    let metrics = get(admin, "/metrics").await;
    for name in [
        "cache_worker_read_chunks_total{from=\"miss\"}",
        "cache_worker_origin_requests_total{operation=\"get\"}",
        "cache_worker_origin_bytes_total",
        "cache_worker_origin_window_requests{kind=\"limit\"}",
        "cache_worker_store_used_bytes{tier=\"0\"}",
        "cache_worker_store_written_bytes_total",
        "cache_worker_data_port_connections",
        "millrace_build_info",
    ] {
        assert!(metrics.contains(name), "{name} is missing in {metrics}");
    }
    let running = &cluster.workers[0];
    until("reads are counted", || running.worker.fetcher.store.stats().written_chunks == 16).await;
    cluster.stop().await;
}

pub async fn get(address: std::net::SocketAddr, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}
