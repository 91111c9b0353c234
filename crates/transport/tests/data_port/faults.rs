//! Do readers come through when workers fail?

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_api::block::CHUNK_BYTES;
use millrace_api::placement::{Membership, PlacementKey};
use millrace_api::wire::ErrorCode;
use millrace_transport::Priority;
use millrace_transport::server::Limits;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::double::*;
use crate::reads::until;

async fn three() -> ([Port; 3], Membership) {
    let ports = [Port::start().await, Port::start().await, Port::start().await];
    let membership = membership(1, &ports.each_ref().map(|port| port.address));
    (ports, membership)
}

#[tokio::test]
async fn a_worker_killed_in_the_middle_of_an_answer_is_gone_round() {
    let (ports, membership) = three().await;
    let [owner, ports @ ..] = ports;
    let file = file_owned_by(&membership, 0);
    let size = 40_000_000;
    owner.blocks.put(file, size);
    ports.iter().for_each(|port| port.blocks.put(file, size));
    let client = client(membership);
    let whole = object(file, size as usize);
    let chunks = size.div_ceil(CHUNK_BYTES) as u32;
    let mut stream = client.read(VERSION, want(file, size, 0..chunks), soon(), Priority::Foreground);
    let mut owner = Some(owner);
    let mut count = 0;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.unwrap();
        let start = chunk.index as usize * CHUNK_BYTES as usize;
        assert!(chunk.bytes == whole[start..start + chunk.bytes.len()]);
        count += 1;
        if count == 5 {
            owner.take().unwrap().kill().await;
        }
    }
    assert_eq!(count, chunks);
    assert!(client.counters().asked_again.get() > 0);
    let begin = Instant::now();
    read_all(&client, want(file, size, 0..5)).await.unwrap();
    assert!(begin.elapsed() < Duration::from_millis(500), "known to be dead: {:?}", begin.elapsed());
}

#[tokio::test]
async fn the_only_worker_is_waited_for_while_it_restarts() {
    let port = Port::start().await;
    port.blocks.put(1, 100_000);
    let client = client(membership(1, &[port.address]));
    read_all(&client, want(1, 100_000, 0..2)).await.unwrap();
    let (address, blocks) = port.kill().await;
    let reading = tokio::spawn({
        let client = client.clone();
        async move { read_all(&client, want(1, 100_000, 0..2)).await }
    });
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!reading.is_finished());
    let listener = TcpListener::bind(address).await.unwrap();
    let _again = Port::start_on(listener, key(), Limits::default(), blocks);
    reading.await.unwrap().unwrap();
}

#[tokio::test]
async fn with_no_worker_in_reach_a_read_ends_at_its_deadline_and_says_why() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = client(membership(1, &[address]));
    let begin = Instant::now();
    let error = read_until(&client, want(1, 10, 0..1), begin + Duration::from_millis(600)).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeadlinePassed);
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(2));
    let nobody = crate::double::client(Membership::default());
    let deadline = Instant::now() + Duration::from_millis(50);
    let error = read_until(&nobody, want(1, 10, 0..1), deadline).await.unwrap_err();
    assert!(error.to_string().contains("no worker"), "{error}");
}

#[tokio::test]
async fn a_bad_chunk_is_checked_by_the_same_worker_and_comes_right() {
    let port = Port::start().await;
    port.blocks.put(1, 300_000);
    port.blocks.behave(1, Behaviour { corrupt: Some(2), ..Behaviour::default() });
    let client = client(membership(1, &[port.address]));
    read_all(&client, want(1, 300_000, 0..5)).await.unwrap();
    assert_eq!(client.counters().bad_chunks.get(), 1);
    assert_eq!(client.counters().asked_again.get(), 1);
    assert!(port.blocks.healed.lock().contains(&1), "the worker was told to check");
}

#[tokio::test]
async fn a_worker_that_sends_bad_chunks_again_is_gone_round() {
    let (ports, membership) = three().await;
    let file = file_owned_by(&membership, 0);
    ports.iter().for_each(|port| port.blocks.put(file, 300_000));
    let bad = Behaviour { corrupt_always: Some(2), ..Behaviour::default() };
    ports[0].blocks.behave(file, bad.clone());
    let client = client(membership);
    read_all(&client, want(file, 300_000, 0..5)).await.unwrap();
    assert_eq!(client.counters().bad_chunks.get(), 2);

    ports.iter().for_each(|port| port.blocks.behave(file, bad.clone()));
    let error = read_all(&client, want(file, 300_000, 0..5)).await.unwrap_err();
    assert!(error.to_string().contains("CRC"), "{error}");
}

#[tokio::test]
async fn errors_of_the_object_end_the_read_and_errors_of_a_worker_do_not() {
    let (ports, membership) = three().await;
    let file = file_owned_by(&membership, 0);
    ports.iter().for_each(|port| port.blocks.put(file, 10));
    let client = client(membership);
    for code in ErrorCode::ALL {
        let refuses = Behaviour { error: Some(code), ..Behaviour::default() };
        ports[0].blocks.behave(file, refuses);
        let before = ports[0].blocks.reads.load(Ordering::SeqCst);
        match read_all(&client, want(file, 10, 0..1)).await {
            Ok(()) => assert!(code.is_retryable_elsewhere(), "{code}"),
            Err(error) => {
                assert!(!code.is_retryable_elsewhere(), "{code}");
                assert_eq!(error.code(), code);
            }
        }
        assert_eq!(ports[0].blocks.reads.load(Ordering::SeqCst), before + 1);
    }
}

#[tokio::test]
async fn an_origin_that_no_worker_reaches_ends_the_read_and_a_starting_worker_is_waited_for() {
    let (ports, membership) = three().await;
    let refuses = |code| Behaviour { error: Some(code), ..Behaviour::default() };
    for port in &ports {
        port.blocks.put(1, 10);
        port.blocks.behave(1, refuses(ErrorCode::OriginUnavailable));
        port.blocks.put(2, 10);
        port.blocks.behave(2, refuses(ErrorCode::UnknownVersion));
    }
    let client = client(membership);
    let error = read_all(&client, want(1, 10, 0..1)).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::OriginUnavailable);
    let asked: u64 = ports.iter().map(|port| port.blocks.reads.load(Ordering::SeqCst)).sum();
    assert_eq!(asked, 3, "each once");

    let reading = tokio::spawn(async move { read_all(&client, want(2, 10, 0..1)).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!reading.is_finished());
    ports.iter().for_each(|port| port.blocks.behave(2, Behaviour::default()));
    reading.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_worker_that_leaves_chunks_out_or_panics_does_not_hang_the_reader() {
    let (ports, membership) = three().await;
    let (short, panics) = (file_owned_by(&membership, 0), file_owned_by(&membership, 1));
    for port in &ports {
        port.blocks.put(short, 300_000);
        port.blocks.put(panics, 300_000);
    }
    ports[0].blocks.behave(short, Behaviour { ends_early: true, ..Behaviour::default() });
    ports[1].blocks.behave(panics, Behaviour { panics: true, ..Behaviour::default() });
    let client = client(membership);
    read_all(&client, want(short, 300_000, 0..5)).await.unwrap();
    read_all(&client, want(panics, 300_000, 0..5)).await.unwrap();
}

#[tokio::test]
async fn a_newer_membership_is_learnt_from_an_answer() {
    let (ports, first) = three().await;
    let file = file_owned_by(&first, 0);
    ports.iter().for_each(|port| port.blocks.put(file, 10));
    let client = client(first.clone());
    let mut learnt = client.membership();
    read_all(&client, want(file, 10, 0..1)).await.unwrap();
    assert_eq!(learnt.borrow_and_update().epoch, 1);
    let mut newer = first.clone();
    newer.epoch = 2;
    newer.workers.remove(0);
    *ports[0].blocks.membership.lock() = Arc::new(newer.clone());
    read_all(&client, want(file, 10, 0..1)).await.unwrap();
    learnt.wait_for(|membership| membership.epoch == 2).await.unwrap();
    assert_eq!(**learnt.borrow(), newer);
    let before = ports[0].blocks.reads.load(Ordering::SeqCst);
    read_all(&client, want(file, 10, 0..1)).await.unwrap();
    assert_eq!(ports[0].blocks.reads.load(Ordering::SeqCst), before, "it is no longer asked");
    until(|| ports[0].counters.connections.get() == 0).await;
    client.set_membership(first);
    assert_eq!(client.membership().borrow().epoch, 2, "an older one changes nothing");
}

#[tokio::test]
async fn a_batch_survives_the_death_of_one_of_its_workers() {
    let (ports, membership) = three().await;
    let [first, ports @ ..] = ports;
    for file in 0..200 {
        first.blocks.put(file, 1000);
        ports.iter().for_each(|port| port.blocks.put(file, 1000));
        first.blocks.behave(file, Behaviour { hangs: true, ..Behaviour::default() });
    }
    let client = client(membership.clone());
    let wants = (0..200).map(|file| want(file, 1000, 0..1)).collect();
    let mut stream = client.read_batch(VERSION, wants, soon(), Priority::Prefetch);
    let owned = |file: u32| membership.owner(PlacementKey::of_block(&file.to_le_bytes(), 0)) == Some(0);
    let of_others = (0..200).filter(|file| !owned(*file)).count();
    let mut count = 0;
    let mut first = Some(first);
    while let Some((number, chunk)) = stream.next().await {
        assert!(chunk.unwrap().bytes == object(number as u32, 1000));
        count += 1;
        if count == of_others {
            first.take().unwrap().kill().await;
        }
    }
    assert_eq!(count, 200);
}
