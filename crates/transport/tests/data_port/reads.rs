//! Do reads bring the right bytes, whatever their shape?

use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_api::wire::ErrorCode;
use millrace_transport::Priority;
use proptest::prelude::*;
use tokio::time::Instant;

use crate::double::*;

#[tokio::test]
async fn a_large_object_comes_from_its_file() {
    let port = Port::start().await;
    port.blocks.put(1, 5_000_001);
    let client = client(membership(1, &[port.address]));
    read_all(&client, want(1, 5_000_001, 0..77)).await.unwrap();
    read_all(&client, want(1, 5_000_001, 70..77)).await.unwrap();
    read_all(&client, want(1, 5_000_001, 3..20)).await.unwrap();
    assert_eq!(port.counters.memory_bytes.get(), 0);
    assert_eq!(client.counters().chunks.get(), 77 + 7 + 17);
    assert_eq!(client.counters().requests.get(), 3);
}

#[tokio::test]
async fn chunks_in_flight_come_from_memory() {
    let port = Port::start().await;
    port.blocks.put(1, 3_000_000);
    port.blocks.behave(1, Behaviour { from_memory: true, ..Behaviour::default() });
    let client = client(membership(1, &[port.address]));
    read_all(&client, want(1, 3_000_000, 0..46)).await.unwrap();
    assert_eq!(port.counters.memory_bytes.get(), 3_000_000);
    assert_eq!(port.counters.file_bytes.get(), 0);
}

#[tokio::test]
async fn an_empty_range_and_one_past_the_end_bring_nothing() {
    let port = Port::start().await;
    port.blocks.put(1, 100);
    let client = client(membership(1, &[port.address]));
    for chunks in [0..0, 1..5] {
        let mut stream = client.read(VERSION, want(1, 100, chunks), soon(), Priority::Foreground);
        assert!(stream.next().await.is_none());
    }
    read_all(&client, want(1, 100, 0..1)).await.unwrap();
}

#[tokio::test]
async fn thousands_of_pipelined_reads_all_come() {
    let port = Port::start().await;
    let client = client(membership(1, &[port.address]));
    let size = |file: u32| 1 + u64::from(file) * 97 % 200_000;
    for file in 0..4000 {
        port.blocks.put(file, size(file));
        let from_memory = file % 3 == 0;
        port.blocks.behave(file, Behaviour { from_memory, ..Behaviour::default() });
    }
    let reads = (0..4000).map(|file| {
        let (client, size) = (client.clone(), size(file));
        async move { read_all(&client, want(file, size, 0..size.div_ceil(65536) as u32)).await.unwrap() }
    });
    futures::future::join_all(reads).await;
    assert_eq!(client.counters().asked_again.get(), 0);
}

#[tokio::test]
async fn a_batch_brings_many_objects_in_one_request() {
    let port = Port::start().await;
    for file in 0..300 {
        port.blocks.put(file, 1000 + u64::from(file));
    }
    port.blocks.behave(7, Behaviour { error: Some(ErrorCode::ObjectChanged), ..Behaviour::default() });
    let client = client(membership(1, &[port.address]));
    read_all(&client, want(1, 1001, 0..1)).await.unwrap();
    let wants: Vec<_> = (0..301).map(|file| want(file, 1000 + u64::from(file), 0..1)).collect();
    let mut stream = client.read_batch(VERSION, wants, soon(), Priority::Prefetch);
    let mut ended = vec![None; 301];
    while let Some((number, result)) = stream.next().await {
        let result = match result {
            Ok(chunk) => {
                assert!(chunk.bytes == object(number as u32, 1000 + number));
                Ok(())
            }
            Err(error) => Err(error.code()),
        };
        assert_eq!(ended[number].replace(result), None, "{number} ended twice");
    }
    for (number, end) in ended.into_iter().enumerate() {
        let expected = match number {
            7 => Err(ErrorCode::ObjectChanged),
            300 => Err(ErrorCode::NotFound),
            _ => Ok(()),
        };
        assert_eq!(end, Some(expected), "{number}");
    }
    assert_eq!(client.counters().requests.get(), 2);
}

#[tokio::test]
async fn a_batch_of_more_chunks_than_a_request_holds_is_split() {
    let port = Port::start().await;
    for file in 0..40 {
        port.blocks.put(file, 3_000_000);
    }
    let client = client(membership(1, &[port.address]));
    read_all(&client, want(1, 3_000_000, 0..1)).await.unwrap();
    let wants: Vec<_> = (0..40).map(|file| want(file, 3_000_000, 0..46)).collect();
    let mut stream = client.read_batch(VERSION, wants, soon(), Priority::Prefetch);
    let mut bytes = 0;
    while let Some((_, chunk)) = stream.next().await {
        bytes += chunk.unwrap().bytes.len();
    }
    assert_eq!(bytes, 40 * 3_000_000);
    assert!(client.counters().requests.get() >= 3);
}

#[tokio::test]
async fn each_file_is_asked_of_its_owner() {
    let ports = [Port::start().await, Port::start().await, Port::start().await];
    let membership = membership(1, &ports.each_ref().map(|port| port.address));
    let client = client(membership.clone());
    for (owner, port) in ports.iter().enumerate() {
        let file = file_owned_by(&membership, owner);
        port.blocks.put(file, 10);
        read_all(&client, want(file, 10, 0..1)).await.unwrap();
        assert_eq!(port.blocks.reads.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn a_foreground_read_overtakes_prefetches() {
    let port = Port::start().await;
    port.blocks.put(1, 60 << 20);
    port.blocks.put(2, 10);
    let client = client(membership(1, &[port.address]));
    read_all(&client, want(2, 10, 0..1)).await.unwrap();
    let mut streams: Vec<_> =
        (0..4).map(|_| client.read(VERSION, want(1, 60 << 20, 0..960), soon(), Priority::Prefetch)).collect();
    let first = streams[0].next().await.unwrap().unwrap();
    assert_eq!(first.bytes.len(), 65536);
    read_all(&client, want(2, 10, 0..1)).await.unwrap();
    assert!(port.counters.file_bytes.get() < 200 << 20, "{}", port.counters.file_bytes.get());
}

#[tokio::test]
async fn a_dropped_stream_cancels_its_read() {
    let port = Port::start().await;
    port.blocks.put(1, 10);
    port.blocks.put(2, 10);
    port.blocks.behave(1, Behaviour { hangs: true, ..Behaviour::default() });
    let client = client(membership(1, &[port.address]));
    read_all(&client, want(2, 10, 0..1)).await.unwrap();
    let stream = client.read(VERSION, want(1, 10, 0..1), soon(), Priority::Foreground);
    until(|| port.blocks.active.load(Ordering::SeqCst) == 1).await;
    drop(stream);
    until(|| port.blocks.dropped.load(Ordering::SeqCst) == 1).await;
    assert_eq!(port.counters.cancelled.get(), 1);
    until(|| port.counters.in_flight.get() == 0).await;
    read_all(&client, want(2, 10, 0..1)).await.unwrap();
}

#[tokio::test]
async fn a_read_ends_at_its_deadline() {
    let port = Port::start().await;
    port.blocks.put(1, 10);
    port.blocks.behave(1, Behaviour { hangs: true, ..Behaviour::default() });
    let client = client(membership(1, &[port.address]));
    let begin = Instant::now();
    let error = read_until(&client, want(1, 10, 0..1), begin + Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeadlinePassed);
    assert!(begin.elapsed() < Duration::from_millis(1500), "{:?}", begin.elapsed());
    until(|| port.blocks.dropped.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn a_slow_origin_is_waited_for_longer_than_silence() {
    let port = Port::start().await;
    port.blocks.put(1, 200_000);
    port.blocks.behave(1, Behaviour { delay: Duration::from_millis(3200), ..Behaviour::default() });
    let client = client(membership(1, &[port.address]));
    read_all(&client, want(1, 200_000, 0..4)).await.unwrap();
    assert_eq!((client.counters().silent.get(), client.counters().asked_again.get()), (0, 0));
    assert!(client.counters().pending.get() >= 4, "{}", client.counters().pending.get());
}

/// Waits for a condition, for at most 10 s.
pub async fn until(condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(10), "the condition never came true");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn any_range_of_any_size_reads_right() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let port = runtime.block_on(Port::start());
    let client = {
        let _guard = runtime.enter();
        client(membership(1, &[port.address]))
    };
    let next = std::sync::atomic::AtomicU32::new(0);
    proptest!(ProptestConfig::with_cases(200), |(size in 1u64..2_500_000, start in 0u32..40, len in 0u32..40, from_memory: bool)| {
        let file = next.fetch_add(1, Ordering::SeqCst);
        port.blocks.put(file, size);
        port.blocks.behave(file, Behaviour { from_memory, ..Behaviour::default() });
        let all = millrace_api::block::chunk_count(size);
        let chunks = start.min(all)..(start + len).min(all);
        runtime.block_on(read_all(&client, want(file, size, chunks))).unwrap();
    });
}
