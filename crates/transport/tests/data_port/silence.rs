//! Do reads go round workers that say nothing, and come back to them?

use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_transport::Priority;
use millrace_transport::client::Timing;
use millrace_transport::server::Limits;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::double::*;
use crate::reads::until;
use crate::relay::Relay;

#[tokio::test]
async fn a_stopped_worker_is_gone_round_and_used_again_when_it_goes_on() {
    let (owner, other) = (Port::start().await, Port::start().await);
    let relay = Relay::start(owner.address).await;
    let membership = membership(1, &[relay.address, other.address]);
    let file = file_owned_by(&membership, 0);
    owner.blocks.put(file, 100_000);
    other.blocks.put(file, 100_000);
    let client = client(membership);
    read_all(&client, want(file, 100_000, 0..2)).await.unwrap();
    assert_eq!(other.blocks.reads.load(Ordering::SeqCst), 0);

    relay.stopped.send_replace(true);
    let begin = Instant::now();
    // On both connections; the silence of one is known to the other before its own requests have waited as long.
    let one = || read_all(&client, want(file, 100_000, 0..2));
    let late = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        tokio::join!(one(), one())
    };
    let ((first, second), (third, fourth)) = tokio::join!(async { tokio::join!(one(), one()) }, late);
    [first, second, third, fourth].into_iter().for_each(Result::unwrap);
    assert!(begin.elapsed() < Duration::from_millis(4500), "{:?}", begin.elapsed());
    let begin = Instant::now();
    read_all(&client, want(file, 100_000, 0..2)).await.unwrap();
    assert!(begin.elapsed() < Duration::from_millis(500), "known to be silent: {:?}", begin.elapsed());
    assert_eq!(client.counters().silent.get(), 1);

    relay.stopped.send_replace(false);
    let by_owner = || owner.blocks.reads.load(Ordering::SeqCst);
    let before = by_owner();
    let begin = Instant::now();
    while by_owner() < before + 2 {
        assert!(begin.elapsed() < Duration::from_secs(5), "the owner is not used again");
        read_all(&client, want(file, 100_000, 0..2)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_client_that_takes_no_bytes_is_dropped() {
    let limits = Limits { stall: Duration::from_millis(300), ..Limits::default() };
    let port = Port::start_with(key(), limits).await;
    port.blocks.put(1, 60 << 20);
    let relay = Relay::start(port.address).await;
    let client = client_with(membership(1, &[relay.address]), key(), Timing::default());
    let mut stream = client.read(VERSION, want(1, 60 << 20, 0..960), soon(), Priority::Foreground);
    assert!(stream.next().await.unwrap().is_ok());
    relay.stopped.send_replace(true);
    until(|| port.counters.stalled.get() == 1).await;
    until(|| port.blocks.active.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn an_idle_worker_that_stops_is_known_before_it_is_needed() {
    let (owner, other) = (Port::start().await, Port::start().await);
    let relay = Relay::start(owner.address).await;
    let membership = membership(1, &[relay.address, other.address]);
    let file = file_owned_by(&membership, 0);
    for port in [&owner, &other] {
        port.blocks.put(file, 10);
    }
    let timing = Timing { ping: Duration::from_millis(300), ..Timing::default() };
    let client = client_with(membership, key(), timing);
    read_all(&client, want(file, 10, 0..1)).await.unwrap();
    // Idle for some pings, and still trusted.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    read_all(&client, want(file, 10, 0..1)).await.unwrap();
    assert_eq!(owner.blocks.reads.load(Ordering::SeqCst), 2);

    relay.stopped.send_replace(true);
    tokio::time::sleep(Duration::from_millis(3200)).await;
    let begin = Instant::now();
    read_all(&client, want(file, 10, 0..1)).await.unwrap();
    assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_connection_that_stays_silent_is_opened_anew() {
    let port = Port::start().await;
    port.blocks.put(1, 10);
    let relay = Relay::start(port.address).await;
    let short = Duration::from_millis(200);
    let timing = Timing { silence: short, connect: short, ping: short, give_up: 3 * short };
    let client = client_with(membership(1, &[relay.address]), key(), timing);
    read_all(&client, want(1, 10, 0..1)).await.unwrap();
    relay.stopped.send_replace(true);
    until(|| client.counters().lost.get() >= 2).await;
    relay.stopped.send_replace(false);
    read_all(&client, want(1, 10, 0..1)).await.unwrap();
}

#[tokio::test]
async fn reads_on_all_connections_to_a_stopped_worker_go_round_it() {
    let (owner, other) = (Port::start().await, Port::start().await);
    let relay = Relay::start(owner.address).await;
    let membership = membership(1, &[relay.address, other.address]);
    let file = file_owned_by(&membership, 0);
    for port in [&owner, &other] {
        port.blocks.put(file, 10);
    }
    let client = client(membership);
    read_all(&client, want(file, 10, 0..1)).await.unwrap();
    owner.blocks.behave(file, Behaviour { hangs: true, ..Behaviour::default() });
    // More than one, so that both connections have some.
    let reads: Vec<_> = (0..8)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { read_all(&client, want(file, 10, 0..1)).await })
        })
        .collect();
    until(|| owner.blocks.active.load(Ordering::SeqCst) == 8).await;
    relay.stopped.send_replace(true);
    let begin = Instant::now();
    for read in reads {
        read.await.unwrap().unwrap();
    }
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_silent_owner_is_gone_round_after_two_seconds_and_then_at_once() {
    // Accepts, never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let alive = Port::start().await;
    let membership = membership(1, &[silent.local_addr().unwrap(), alive.address]);
    let file = file_owned_by(&membership, 0);
    alive.blocks.put(file, 100_000);
    let client = client(membership);
    let begin = Instant::now();
    read_all(&client, want(file, 100_000, 0..2)).await.unwrap();
    let first = begin.elapsed();
    assert!(first > Duration::from_millis(1800) && first < Duration::from_millis(3500), "{first:?}");
    let begin = Instant::now();
    read_all(&client, want(file, 100_000, 0..2)).await.unwrap();
    assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
}
