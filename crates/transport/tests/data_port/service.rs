//! Are workers found by the name of their service, also after they have moved?

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use millrace_api::ids::VersionId;
use millrace_api::mount::{Announce, MountSettings, Pod};
use millrace_api::placement::Membership;
use millrace_transport::client::{Client, ClientConfig, GetMountSettings, Timing};
use millrace_transport::server::Limits;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use crate::double::*;
use crate::reads::until;

fn config() -> ClientConfig {
    let (key, name, timing) = (key(), "node-7".into(), Timing::default());
    ClientConfig { key, name, membership: Membership::default(), connections_per_worker: 2, timing }
}

async fn find(service: &str) -> Client {
    Client::bootstrap(config(), service, soon()).await.unwrap()
}

/// An address on which nobody listens.
async fn vacant() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

fn settings(version: VersionId) -> MountSettings {
    let (file_mode, dir_mode) = (0o440, 0o550);
    let mode = millrace_api::mount::MountMode::Files;
    MountSettings { version, node_cache_quota_bytes: 7 << 30, uid: 10, gid: 20, file_mode, dir_mode, mode }
}

fn announce(pods: usize) -> Announce {
    let pod = |number| Pod { namespace: "vision".into(), name: format!("p-{number}"), uid: "u".into() };
    Announce::new("node-7".into(), VERSION, (0..pods).map(pod).collect())
}

#[tokio::test]
async fn all_addresses_of_a_name_are_asked_until_one_knows_the_membership() {
    let (port, ignorant) = (Port::start().await, Port::start().await);
    *port.blocks.membership.lock() = Arc::new(membership(4, &[port.address]));
    // "localhost" may have an address on which nobody listens, too.
    let name = format!("localhost:{}", port.address.port());
    assert_eq!(find(&name).await.membership().borrow().epoch, 4);
    let dead = vacant().await;
    let names = format!("{dead}, {}, {}", ignorant.address, port.address);
    let client = find(&names).await;
    assert_eq!(*client.membership().borrow().workers, membership(4, &[port.address]).workers);
    port.blocks.put(1, 100_000);
    read_all(&client, want(1, 100_000, 0..2)).await.unwrap();
}

#[tokio::test]
async fn a_service_without_workers_is_waited_for_and_then_named_with_its_trouble() {
    let ignorant = Port::start().await;
    let deadline = Instant::now() + Duration::from_millis(400);
    let service = ignorant.address.to_string();
    let error = Client::bootstrap(config(), &service, deadline).await.unwrap_err();
    assert!(error.to_string().contains(&service) && error.trouble.contains("not been told"), "{error}");
    let blocks = Arc::clone(&ignorant.blocks);
    let late = membership(1, &[ignorant.address]);
    tokio::spawn(async move {
        sleep(Duration::from_millis(300)).await;
        *blocks.membership.lock() = Arc::new(late);
    });
    assert_eq!(find(&service).await.membership().borrow().epoch, 1);
    let unknown = Client::bootstrap(config(), "no-such-host.invalid:1", deadline).await.unwrap_err();
    assert!(unknown.to_string().contains("no-such-host"), "{unknown}");
}

#[tokio::test]
async fn the_last_worker_may_come_back_at_another_address_without_a_readers_error() {
    let port = Port::start().await;
    let (later, dead) = (vacant().await, vacant().await);
    port.blocks.put(1, 10_000_000);
    port.blocks.put_index(&[9; 5_000_000]);
    *port.blocks.membership.lock() = Arc::new(membership(1, &[port.address, dead]));
    let client = find(&format!("{},{later}", port.address)).await;
    read_all(&client, want(1, 10_000_000, 0..10)).await.unwrap();

    let (_, blocks) = port.kill().await;
    let reader = tokio::spawn({
        let client = client.clone();
        async move { read_all(&client, want(1, 10_000_000, 0..100)).await }
    });
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let index = tokio::spawn({
        let (client, path) = (client.clone(), path.clone());
        async move { client.fetch_index(VERSION, &path, soon()).await }
    });
    sleep(Duration::from_millis(700)).await;
    assert!(!reader.is_finished() && !index.is_finished(), "both wait");

    // It comes back with what it knew, and is told of its address a moment later.
    let listener = TcpListener::bind(later).await.unwrap();
    let _port = Port::start_on(listener, key(), Limits::default(), Arc::clone(&blocks));
    sleep(Duration::from_millis(700)).await;
    assert!(!reader.is_finished(), "which of two workers it is nobody has told");
    *blocks.membership.lock() = Arc::new(membership(2, &[later]));
    reader.await.unwrap().unwrap();
    assert_eq!(index.await.unwrap().unwrap(), 5_000_000);
    assert_eq!(client.membership().borrow().epoch, 2);
}

#[tokio::test]
async fn the_only_worker_is_found_at_another_address_though_nobody_tells_of_it() {
    let port = Port::start().await;
    let later = vacant().await;
    port.blocks.put(1, 10_000_000);
    *port.blocks.membership.lock() = Arc::new(membership(3, &[port.address]));
    let client = find(&format!("{},{later}", port.address)).await;
    read_all(&client, want(1, 10_000_000, 0..10)).await.unwrap();

    let (_, blocks) = port.kill().await;
    let listener = TcpListener::bind(later).await.unwrap();
    let _port = Port::start_on(listener, key(), Limits::default(), Arc::clone(&blocks));
    read_all(&client, want(1, 10_000_000, 0..100)).await.unwrap();
    let known = client.membership().borrow().clone();
    assert_eq!((known.epoch, &*known.workers[0].address), (3, &*later.to_string()));
    // Whoever steers is back.
    *blocks.membership.lock() = Arc::new(membership(4, &[later]));
    read_all(&client, want(1, 10_000_000, 0..100)).await.unwrap();
    until(|| client.membership().borrow().epoch == 4).await;
}

#[tokio::test]
async fn mount_settings_are_waited_for_until_there_is_a_version() {
    let ports = [Port::start().await, Port::start().await];
    let membership = membership(1, &[vacant().await, ports[0].address, ports[1].address]);
    let client = client(membership);
    let deadline = Instant::now() + Duration::from_millis(800);
    assert_eq!(client.mount_settings(deadline).await, Err(GetMountSettings::NotIndexed));
    *ports[1].blocks.mount.lock() = Some(settings(VERSION));
    assert_eq!(client.mount_settings(soon()).await, Ok(settings(VERSION)));
    let client = crate::double::client(crate::double::membership(1, &[vacant().await]));
    let error = client.mount_settings(Instant::now() + Duration::from_millis(400)).await.unwrap_err();
    assert!(error.to_string().contains("\"w0\""), "{error}");
}

#[tokio::test]
async fn every_worker_hears_who_mounts_until_the_mount_ends() {
    let ports = [Port::start().await, Port::start().await, Port::start().await];
    let client = client(membership(1, &[ports[0].address, ports[1].address]));
    client.announce(announce(2));
    let heard = |port: &Port| {
        let now = port.sessions.now();
        now.first().map(|session| (now.len(), session.node.clone(), session.pods.len(), session.pod_count))
    };
    for port in &ports[..2] {
        until(|| heard(port) == Some((1, "node-7".to_owned(), 2, 2))).await;
    }
    client.announce(announce(300));
    for port in &ports[..2] {
        until(|| heard(port) == Some((1, "node-7".to_owned(), 256, 300))).await;
    }
    // A worker that joins hears it, too; one that leaves forgets it.
    client.set_membership(membership(2, &[ports[0].address, ports[2].address]));
    until(|| heard(&ports[2]).is_some() && heard(&ports[1]).is_none()).await;
    let left = membership(3, &[ports[0].address]);
    client.set_membership(left);
    until(|| heard(&ports[2]).is_none()).await;
    drop(client);
    until(|| ports.iter().all(|port| heard(port).is_none())).await;
}

#[tokio::test]
async fn a_worker_that_restarts_is_told_again() {
    let port = Port::start().await;
    let client = client(membership(1, &[port.address]));
    client.announce(announce(1));
    until(|| port.sessions.now().len() == 1).await;
    let (address, blocks) = port.kill().await;
    let listener = TcpListener::bind(address).await.unwrap();
    let port = Port::start_on(listener, key(), Limits::default(), blocks);
    until(|| port.sessions.now().len() == 1).await;
}
