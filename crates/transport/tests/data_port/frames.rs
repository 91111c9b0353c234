//! What does a server do with frames that no client of ours would send?

use std::time::Duration;

use millrace_api::crc::crc32c;
use millrace_api::wire::{
    Answer, BatchItem, CRC_BYTES, ErrorCode, FrameHeader, MAX_PLAIN_BODY_BYTES, Read, Request, flags, kind,
};
use millrace_transport::server::Limits;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::double::*;
use crate::hello::{greet, receive};

async fn open(port: &Port) -> TcpStream {
    let (stream, header, _) = greet(port, &key(), 1).await;
    assert_eq!(header.kind, kind::HELLO_OK);
    stream
}

/// Sends a frame with a valid CRC.
async fn send(stream: &mut TcpStream, mut header: FrameHeader, body: &[u8]) {
    header.body_len += CRC_BYTES as u32;
    let mut frame = [&header.encode()[..], body].concat();
    let crc = crc32c(&frame);
    frame.extend_from_slice(&crc.to_le_bytes());
    stream.write_all(&frame).await.unwrap();
}

async fn ask(stream: &mut TcpStream, id: u64, request: Request) {
    let mut out = Vec::new();
    request.encode(id, &mut out);
    stream.write_all(&out).await.unwrap();
}

async fn error(stream: &mut TcpStream) -> (u64, ErrorCode) {
    let (header, body) = receive(stream).await.unwrap();
    match Answer::decode(&header, &body).unwrap() {
        Answer::Error(error) => (header.request, error.code),
        other => panic!("{other:?}"),
    }
}

fn read(file: u32, chunks: std::ops::Range<u32>) -> Request {
    let item = BatchItem { file, content: content(file), chunks };
    Request::Read(Read { version: VERSION, item, epoch: 0, deadline_ms: 5000, flags: 0 })
}

#[tokio::test]
async fn an_unknown_frame_gets_an_error_and_the_connection_lives() {
    let port = Port::start().await;
    let mut stream = open(&port).await;
    let header = FrameHeader { body_len: 70_000, kind: 0x5A, flags: 0xFF, request: 77 };
    send(&mut stream, header, &[1; 70_000]).await;
    assert_eq!(error(&mut stream).await, (77, ErrorCode::Unsupported));
    ask(&mut stream, 78, Request::Ping).await;
    assert_eq!(receive(&mut stream).await.unwrap().0.kind, kind::PONG);
}

#[tokio::test]
async fn a_malformed_body_gets_an_error_and_the_connection_lives() {
    let port = Port::start().await;
    let mut stream = open(&port).await;
    for len in [0, 1, 30, 55] {
        let header = FrameHeader { body_len: len, kind: kind::READ, flags: 0, request: 5 };
        send(&mut stream, header, &vec![0; len as usize]).await;
        assert_eq!(error(&mut stream).await, (5, ErrorCode::BadRequest));
    }
    ask(&mut stream, 6, read(99, 0..1)).await;
    assert_eq!(error(&mut stream).await, (6, ErrorCode::NotFound));
    assert_eq!(port.counters.bad_frames.get(), 4);
}

#[tokio::test]
async fn an_oversized_frame_ends_the_connection_and_no_other() {
    let port = Port::start().await;
    let (mut bad, mut good) = (open(&port).await, open(&port).await);
    let header = FrameHeader { body_len: MAX_PLAIN_BODY_BYTES + 1, kind: kind::READ, flags: 0, request: 5 };
    send(&mut bad, header, &[]).await;
    assert!(timeout(Duration::from_secs(2), receive(&mut bad)).await.unwrap().is_err());
    ask(&mut good, 1, Request::Ping).await;
    assert_eq!(receive(&mut good).await.unwrap().0.kind, kind::PONG);
}

#[tokio::test]
async fn a_request_that_is_opened_twice_ends_the_connection() {
    let port = Port::start().await;
    port.blocks.put(1, 10);
    port.blocks.behave(1, Behaviour { hangs: true, ..Behaviour::default() });
    let mut stream = open(&port).await;
    ask(&mut stream, 1, read(1, 0..1)).await;
    ask(&mut stream, 1, read(1, 0..1)).await;
    assert!(timeout(Duration::from_secs(2), receive(&mut stream)).await.unwrap().is_err());
}

#[tokio::test]
async fn a_frame_in_single_bytes_is_put_together() {
    let port = Port::start().await;
    port.blocks.put(1, 10);
    let mut stream = open(&port).await;
    let mut out = Vec::new();
    read(1, 0..1).encode(9, &mut out);
    Request::Ping.encode(10, &mut out);
    for byte in out {
        stream.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut kinds = Vec::new();
    for _ in 0..2 {
        let (header, body) = receive(&mut stream).await.unwrap();
        kinds.push(header.kind);
        if header.kind == kind::DATA {
            assert_eq!((header.request, header.flags), (9, flags::LAST));
            assert_eq!(body[32..], object(1, 10));
        }
    }
    kinds.sort();
    assert_eq!(kinds, [kind::DATA, kind::PONG], "a pong may overtake data");
}

#[tokio::test]
async fn a_waiting_request_is_said_to_be_alive() {
    let limits = Limits { pending: Duration::from_millis(100), ..Limits::default() };
    let port = Port::start_with(key(), limits).await;
    port.blocks.put(1, 10);
    port.blocks.behave(1, Behaviour { delay: Duration::from_millis(450), ..Behaviour::default() });
    let mut stream = open(&port).await;
    ask(&mut stream, 9, read(1, 0..1)).await;
    let mut pending = 0;
    loop {
        let (header, _) = receive(&mut stream).await.unwrap();
        assert_eq!(header.request, 9);
        match header.kind {
            kind::PENDING => pending += 1,
            kind::DATA => break,
            other => panic!("{other:#x}"),
        }
    }
    assert!((2..=5).contains(&pending), "{pending}");
}

#[tokio::test]
async fn a_connection_with_all_its_requests_open_still_hears_pings_and_cancels() {
    let limits = Limits { requests_per_connection: 2, ..Limits::default() };
    let port = Port::start_with(key(), limits).await;
    port.blocks.put(1, 10);
    port.blocks.put(2, 10);
    port.blocks.behave(1, Behaviour { hangs: true, ..Behaviour::default() });
    let mut stream = open(&port).await;
    for id in 1..=4 {
        ask(&mut stream, id, read(1, 0..1)).await;
    }
    ask(&mut stream, 5, read(2, 0..1)).await;
    ask(&mut stream, 6, Request::Ping).await;
    let next = async |stream: &mut TcpStream| loop {
        let (header, _) = timeout(Duration::from_secs(5), receive(stream)).await.unwrap().unwrap();
        if header.kind != kind::PENDING {
            return (header.kind, header.request);
        }
    };
    assert_eq!(next(&mut stream).await, (kind::PONG, 6));
    // Of those that have begun and of those that wait.
    for id in 1..=4 {
        ask(&mut stream, id, Request::Cancel).await;
    }
    assert_eq!(next(&mut stream).await, (kind::DATA, 5));
    // Comes behind the last cancel.
    ask(&mut stream, 7, Request::Ping).await;
    assert_eq!(next(&mut stream).await, (kind::PONG, 7));
    assert_eq!(port.counters.cancelled.get(), 4);
}

#[tokio::test]
async fn a_flood_of_pings_that_nobody_takes_the_answers_of_stops_being_read() {
    let limits = Limits { requests_per_connection: 1, ..Limits::default() };
    let port = Port::start_with(key(), limits).await;
    port.blocks.put(1, 10);
    port.blocks.behave(1, Behaviour { hangs: true, ..Behaviour::default() });
    let mut stream = open(&port).await;
    ask(&mut stream, 1, read(1, 0..1)).await;
    let mut pings = Vec::new();
    (2..2002).for_each(|id| Request::Ping.encode(id, &mut pings));
    // More than all buffers on the way take.
    let flood = async {
        for _ in 0..2_000 {
            stream.write_all(&pings).await.unwrap();
        }
    };
    assert!(timeout(Duration::from_secs(2), flood).await.is_err(), "all of it was taken");
}

#[tokio::test]
async fn requests_past_the_limit_of_a_connection_wait_in_the_socket() {
    let limits = Limits { requests_per_connection: 4, ..Limits::default() };
    let port = Port::start_with(key(), limits).await;
    port.blocks.put(1, 10);
    port.blocks.behave(1, Behaviour { delay: Duration::from_millis(50), ..Behaviour::default() });
    let mut stream = open(&port).await;
    for id in 1..=40 {
        ask(&mut stream, id, read(1, 0..1)).await;
    }
    let mut most = 0;
    let mut answered = 0;
    while answered < 40 {
        most = most.max(port.blocks.active.load(std::sync::atomic::Ordering::SeqCst));
        answered += u32::from(receive(&mut stream).await.unwrap().0.kind == kind::DATA);
    }
    assert!(most <= 4, "{most}");
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let limits = Limits { idle: Duration::from_millis(200), ..Limits::default() };
    let port = Port::start_with(key(), limits).await;
    let mut stream = open(&port).await;
    assert!(timeout(Duration::from_secs(2), receive(&mut stream)).await.unwrap().is_err());
}

#[tokio::test]
async fn the_membership_is_told_when_asked_and_when_an_old_epoch_is_seen() {
    let port = Port::start().await;
    *port.blocks.membership.lock() = std::sync::Arc::new(membership(5, &[port.address]));
    port.blocks.put(1, 10);
    let mut stream = open(&port).await;
    // The hello told epoch 0.
    let (header, body) = receive(&mut stream).await.unwrap();
    let told = Answer::decode(&header, &body).unwrap();
    assert_eq!((header.request, told), (0, Answer::Membership(membership(5, &[port.address]))));
    ask(&mut stream, 1, read(1, 0..1)).await;
    assert_eq!(receive(&mut stream).await.unwrap().0.kind, kind::DATA, "not told twice");
    *port.blocks.membership.lock() = std::sync::Arc::new(membership(6, &[port.address]));
    ask(&mut stream, 2, read(1, 0..1)).await;
    assert_eq!(receive(&mut stream).await.unwrap().0.kind, kind::MEMBERSHIP);
    assert_eq!(receive(&mut stream).await.unwrap().0.kind, kind::DATA);
    ask(&mut stream, 3, Request::GetMembership).await;
    let (header, _) = receive(&mut stream).await.unwrap();
    assert_eq!((header.kind, header.request), (kind::MEMBERSHIP, 3));
}

#[tokio::test]
async fn a_request_with_flipped_bits_ends_the_connection() {
    let port = Port::start().await;
    port.blocks.put(1, 10);
    for bit in [8, 40, 100, 300, 500] {
        let mut stream = open(&port).await;
        let mut out = Vec::new();
        read(1, 0..1).encode(9, &mut out);
        out[bit / 8] ^= 1 << (bit % 8);
        stream.write_all(&out).await.unwrap();
        let answer = timeout(Duration::from_millis(500), receive(&mut stream)).await;
        assert!(!matches!(answer, Ok(Ok((header, _))) if header.kind == kind::DATA), "{bit}");
    }
}

#[tokio::test]
async fn whatever_strangers_with_the_key_send_others_are_served() {
    let port = Port::start().await;
    port.blocks.put(1, 100_000);
    let client = client(membership(1, &[port.address]));
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    for _ in 0..300 {
        let mut stream = open(&port).await;
        let mut out = Vec::new();
        for id in 0..5 {
            read(1, 0..2).encode(id, &mut out);
        }
        for _ in 0..4 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (random >> 33) as usize % out.len();
            out[at] = (random >> 20) as u8;
        }
        stream.write_all(&out).await.unwrap();
    }
    read_all(&client, want(1, 100_000, 0..2)).await.unwrap();
}
