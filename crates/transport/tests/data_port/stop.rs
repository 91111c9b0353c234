//! Does a worker stop without losing what is in flight?

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::double::*;
use crate::reads::until;

#[tokio::test]
async fn answers_in_flight_are_finished() {
    let port = Port::start().await;
    port.blocks.put(1, 20_000_000);
    port.blocks.behave(1, Behaviour { delay: Duration::from_millis(400), ..Behaviour::default() });
    let client = client(membership(1, &[port.address]));
    let reading = tokio::spawn(async move { read_all(&client, want(1, 20_000_000, 0..306)).await });
    until(|| port.blocks.active.load(Ordering::SeqCst) == 1).await;
    port.stopped().await;
    reading.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_stopping_worker_sends_readers_elsewhere() {
    let (owner, other) = (Port::start().await, Port::start().await);
    let membership = membership(1, &[owner.address, other.address]);
    let file = file_owned_by(&membership, 0);
    for port in [&owner, &other] {
        port.blocks.put(file, 10);
    }
    owner.blocks.behave(file, Behaviour { delay: Duration::from_millis(800), ..Behaviour::default() });
    let client = client(membership);
    let slow = tokio::spawn({
        let client = client.clone();
        async move { read_all(&client, want(file, 10, 0..1)).await }
    });
    until(|| owner.blocks.active.load(Ordering::SeqCst) == 1).await;
    owner.shutdown.cancel();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let begin = Instant::now();
    read_all(&client, want(file, 10, 0..1)).await.unwrap();
    assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
    assert_eq!(other.blocks.reads.load(Ordering::SeqCst), 1);
    slow.await.unwrap().unwrap();
    owner.stopped().await;
}

#[tokio::test]
async fn what_hangs_does_not_hold_up_a_stop() {
    let port = Port::start().await;
    port.blocks.put(1, 10);
    port.blocks.behave(1, Behaviour { hangs: true, ..Behaviour::default() });
    let blocks = std::sync::Arc::clone(&port.blocks);
    let client = client(membership(1, &[port.address]));
    let reading = tokio::spawn(async move { read_all(&client, want(1, 10, 0..1)).await });
    until(|| blocks.active.load(Ordering::SeqCst) == 1).await;
    timeout(Duration::from_secs(5), port.stopped()).await.unwrap();
    reading.abort();
    assert_eq!(blocks.active.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn idle_connections_do_not_hold_up_a_stop() {
    let port = Port::start().await;
    port.blocks.put(1, 10);
    let client = client(membership(1, &[port.address]));
    read_all(&client, want(1, 10, 0..1)).await.unwrap();
    timeout(Duration::from_secs(2), port.stopped()).await.unwrap();
}
