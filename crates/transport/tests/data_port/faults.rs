//! Do readers come through when workers fail?

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_api::block::CHUNK_BYTES;
use millrace_api::placement::{Membership, PlacementKey};
use millrace_api::wire::ErrorCode;
use millrace_transport::Priority;
use millrace_transport::client::Timing;
use millrace_transport::server::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::double::*;
use crate::reads::until;

/// A TCP relay in front of a worker that can be stopped, like a process under SIGSTOP: what is sent to it stays in its
/// socket, and nothing comes back. It can also flip bits, and pass on in small parts.
struct Relay {
    address: std::net::SocketAddr,
    stopped: watch::Sender<bool>,
    _task: tokio::task::JoinHandle<()>,
}

/// What a relay does to what the worker sends.
#[derive(Clone, Copy)]
struct Damage {
    /// One bit in about so many bytes is flipped.
    flip_every: Option<u64>,
    /// Longest part that is passed on at once.
    part_bytes: usize,
}

const NO_DAMAGE: Damage = Damage { flip_every: None, part_bytes: 65536 };

impl Relay {
    async fn start(to: std::net::SocketAddr) -> Self {
        Self::start_with(to, NO_DAMAGE).await
    }

    async fn start_with(to: std::net::SocketAddr, damage: Damage) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stopped = watch::Sender::new(false);
        let watching = stopped.subscribe();
        let task = tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let far = TcpStream::connect(to).await.unwrap();
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                tokio::spawn(copy(near_read, far_write, watching.clone(), NO_DAMAGE));
                tokio::spawn(copy(far_read, near_write, watching.clone(), damage));
            }
        });
        Self { address, stopped, _task: task }
    }
}

async fn copy(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut stopped: watch::Receiver<bool>,
    damage: Damage,
) {
    let mut buffer = vec![0; damage.part_bytes];
    let mut random =
        u64::from(from.peer_addr().unwrap().port()) << 20 | u64::from(to.peer_addr().unwrap().port());
    let mut next_random = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    let mut until_flip = damage.flip_every.map(|every| next_random() % (2 * every));
    loop {
        if stopped.wait_for(|stopped| !stopped).await.is_err() {
            return;
        }
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(read) => {
                while let (Some(left), Some(every)) = (&mut until_flip, damage.flip_every) {
                    if *left >= read as u64 {
                        *left -= read as u64;
                        break;
                    }
                    buffer[*left as usize] ^= 1 << (next_random() % 8);
                    *left += 1 + next_random() % (2 * every);
                }
                if stopped.wait_for(|stopped| !stopped).await.is_err()
                    || to.write_all(&buffer[..read]).await.is_err()
                {
                    return;
                }
            }
        }
    }
}

async fn three() -> ([Port; 3], Membership) {
    let ports = [Port::start().await, Port::start().await, Port::start().await];
    let membership = membership(1, &ports.each_ref().map(|port| port.address));
    (ports, membership)
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
    read_all(&client, want(file, 100_000, 0..2)).await.unwrap();
    assert!(begin.elapsed() < Duration::from_millis(3500), "{:?}", begin.elapsed());
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
async fn flipped_bits_on_the_way_never_become_wrong_bytes() {
    let port = Port::start().await;
    let relay = Relay::start_with(port.address, Damage { flip_every: Some(20_000), part_bytes: 4096 }).await;
    let timing = Timing { silence: Duration::from_millis(500), connect: Duration::from_millis(500) };
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
