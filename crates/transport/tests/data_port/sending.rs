//! Do the right bytes come out of files, memory and networks that do not behave?

use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_api::block::CHUNK_BYTES;
use millrace_transport::Priority;
use millrace_transport::client::Timing;
use millrace_transport::server::Limits;
use tokio::time::Instant;

use crate::double::*;
use crate::relay::{Damage, Relay};

#[tokio::test]
async fn a_store_file_that_was_cut_is_refused_by_the_reader_and_checked_by_the_worker() {
    let port = Port::start().await;
    port.blocks.put(1, 900_000);
    port.blocks.behave(1, Behaviour { is_cut: true, ..Behaviour::default() });
    let client = client(membership(1, &[port.address]));
    read_all(&client, want(1, 900_000, 0..14)).await.unwrap();
    assert_eq!(port.counters.unreadable.get(), 1);
    assert!(client.counters().bad_chunks.get() >= 7);
    assert_eq!(client.counters().lost.get(), 0, "the connection lives");
}

#[tokio::test]
async fn what_waits_in_memory_for_a_slow_client_is_bounded() {
    let limits = Limits { queued_bytes: 1 << 20, ..Limits::default() };
    let port = Port::start_with(key(), limits).await;
    port.blocks.put(1, 60 << 20);
    port.blocks.put(2, 10);
    port.blocks.behave(1, Behaviour { from_memory: true, ..Behaviour::default() });
    let relay = Relay::start(port.address).await;
    let client = client(membership(1, &[relay.address]));
    read_all(&client, want(2, 10, 0..1)).await.unwrap();
    let mut streams: Vec<_> = (0..8)
        .map(|_| client.read(VERSION, want(1, 60 << 20, 0..960), soon(), Priority::Foreground))
        .collect();
    assert!(streams[0].next().await.unwrap().is_ok());
    relay.stopped.send_replace(true);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (queued, sent) = (port.blocks.queued.load(Ordering::SeqCst), port.counters.memory_bytes.get());
    assert!(queued <= sent + (1 << 20), "{queued} queued, {sent} sent");
}

#[tokio::test]
async fn pages_that_are_not_in_memory_are_brought_in_first() {
    let port = Port::start().await;
    port.blocks.put(1, 9_000_000);
    let client = client(membership(1, &[port.address]));
    read_all(&client, want(1, 9_000_000, 0..138)).await.unwrap();
    assert_eq!(port.counters.paged_in.get(), 0);
    if !port.blocks.forget_pages(1) {
        eprintln!("skipped: the temporary folder is in memory");
        return;
    }
    read_all(&client, want(1, 9_000_000, 0..138)).await.unwrap();
    assert!(port.counters.paged_in.get() > 0);
}

#[tokio::test]
async fn a_file_that_sendfile_refuses_is_copied() {
    // The file system of /proc has no splice for this one.
    let bytes = std::fs::read("/proc/self/cmdline").unwrap();
    let port = Port::start().await;
    port.blocks.put(1, bytes.len() as u64);
    port.blocks.put_file(1, std::fs::File::open("/proc/self/cmdline").unwrap());
    let client = client(membership(1, &[port.address]));
    port.blocks.behave(1, Behaviour { bytes: Some(bytes.clone()), ..Behaviour::default() });
    let mut stream = client.read(VERSION, want(1, bytes.len() as u64, 0..1), soon(), Priority::Foreground);
    assert_eq!(stream.next().await.unwrap().unwrap().bytes, bytes);
}

#[tokio::test]
async fn frames_in_small_parts_are_put_together() {
    let port = Port::start().await;
    for (file, part_bytes) in [(1, 1), (2, 39), (3, 1000), (4, 5000)] {
        let relay = Relay::start_with(port.address, Damage { flip_every: None, part_bytes }).await;
        let client = client(membership(1, &[relay.address]));
        let size = 40_000 * part_bytes.min(60) as u64;
        port.blocks.put(file, size);
        read_all(&client, want(file, size, 0..size.div_ceil(CHUNK_BYTES) as u32)).await.unwrap();
    }
}

#[tokio::test]
async fn flipped_bits_on_the_way_never_become_wrong_bytes() {
    let port = Port::start().await;
    let relay = Relay::start_with(port.address, Damage { flip_every: Some(20_000), part_bytes: 4096 }).await;
    let half = Duration::from_millis(500);
    let timing = Timing { silence: half, connect: half, ..Timing::default() };
    let client = client_with(membership(1, &[relay.address]), key(), timing);
    for file in 0..60 {
        port.blocks.put(file, 3000 + 997 * u64::from(file));
        let size = 3000 + 997 * u64::from(file);
        // Ends right or with an error, which with this many flips is no shame; `read_until` compares each chunk.
        let deadline = Instant::now() + Duration::from_millis(300);
        let _ = read_until(&client, want(file, size, 0..1), deadline).await;
    }
    assert!(client.counters().chunks.get() > 10, "{:?}", client.counters());
    assert!(client.counters().bad_chunks.get() > 0, "{:?}", client.counters());
}
