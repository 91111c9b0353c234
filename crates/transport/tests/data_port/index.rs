//! Does an index come whole, whoever dies meanwhile?

use std::time::Duration;

use millrace_api::ids::VersionId;
use millrace_transport::client::FetchIndex;
use tokio::time::Instant;

use crate::double::*;

fn bytes(len: usize) -> Vec<u8> {
    object(9, len)
}

#[tokio::test]
async fn an_index_of_many_parts_comes_whole() {
    let port = Port::start().await;
    let folder = tempfile::tempdir().unwrap();
    let client = client(membership(1, &[port.address]));
    for len in [0, 1, 1 << 20, (1 << 20) + 1, 30_000_001] {
        let port = Port::start().await;
        port.blocks.put_index(&bytes(len));
        let client = crate::double::client(membership(1, &[port.address]));
        let path = folder.path().join(len.to_string());
        assert_eq!(client.fetch_index(VERSION, &path, soon()).await.unwrap(), len as u64);
        assert!(std::fs::read(&path).unwrap() == bytes(len), "{len}");
    }
    let path = folder.path().join("none");
    let deadline = Instant::now() + Duration::from_millis(300);
    let error = client.fetch_index(VersionId([9; 16]), &path, deadline).await.unwrap_err();
    assert!(error.to_string().contains("unknown version"), "{error}");
}

#[tokio::test]
async fn an_index_is_asked_of_the_worker_that_has_it() {
    let ports = [Port::start().await, Port::start().await, Port::start().await];
    ports[1].blocks.put_index(&bytes(5_000_000));
    let folder = tempfile::tempdir().unwrap();
    let client = client(membership(1, &ports.each_ref().map(|port| port.address)));
    let path = folder.path().join("index");
    assert_eq!(client.fetch_index(VERSION, &path, soon()).await.unwrap(), 5_000_000);
    assert!(std::fs::read(&path).unwrap() == bytes(5_000_000));
}

#[tokio::test]
async fn another_worker_goes_on_where_one_died() {
    let ports = [Port::start().await, Port::start().await];
    let addresses = ports.each_ref().map(|port| port.address);
    let whole = bytes(200_000_000);
    ports.iter().for_each(|port| port.blocks.put_index(&whole));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let client = client(membership(1, &addresses));
    let fetch = tokio::spawn({
        let (client, path) = (client.clone(), path.clone());
        async move { client.fetch_index(VERSION, &path, soon()).await }
    });
    let is_sending = |port: &Port| port.counters.file_bytes.get() > 20 << 20;
    let begin = Instant::now();
    while !ports.iter().any(is_sending) {
        assert!(begin.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut kept = Vec::new();
    for port in ports {
        if is_sending(&port) {
            port.kill().await;
        } else {
            kept.push(port);
        }
    }
    assert_eq!(fetch.await.unwrap().unwrap(), 200_000_000);
    assert!(std::fs::read(&path).unwrap() == whole);
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_named() {
    let client = client(membership(1, &[]));
    let path = std::path::Path::new("/proc/no/such/folder");
    let error = client.fetch_index(VERSION, path, soon()).await.unwrap_err();
    assert!(matches!(error, FetchIndex::Write { .. }));
    assert!(error.to_string().contains("/proc/no/such/folder"));
}
