//! Do the first builds of protocol version 1 and this one understand each other?
//!
//! The peers here are frozen: they are written out in bytes, and use nothing of the wire module, so that no change to it
//! changes them. They know neither mount settings nor announcements.

use std::net::SocketAddr;
use std::time::Duration;

use millrace_api::crc::crc32c;
use millrace_api::keys::Side;
use millrace_api::mount::Announce;
use millrace_transport::client::GetMountSettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use crate::double::*;

const SERVER_HELLO: u8 = 0x01;
const CLIENT_HELLO: u8 = 0x02;
const HELLO_OK: u8 = 0x03;
const READ: u8 = 0x10;
const GET_MEMBERSHIP: u8 = 0x13;
const PING: u8 = 0x15;
const DATA: u8 = 0x80;
const ERROR: u8 = 0x82;
const MEMBERSHIP: u8 = 0x83;
const PONG: u8 = 0x85;
const LAST: u8 = 0x80;
const UNSUPPORTED: u16 = 11;

/// A frame as version 1 has it; what follows the CRC is the payload.
async fn send(stream: &mut TcpStream, kind: u8, flags: u8, request: u64, body: &[u8], payload: &[u8]) {
    let len = (body.len() + 4 + payload.len()) as u32;
    let mut frame = [&len.to_le_bytes()[..], &[kind, flags, 0, 0], &request.to_le_bytes(), body].concat();
    frame.extend_from_slice(&crc32c(&frame).to_le_bytes());
    frame.extend_from_slice(payload);
    stream.write_all(&frame).await.unwrap();
}

/// Kind, flags, request and all that follows the header; `None` at the end of the stream.
async fn receive(stream: &mut TcpStream) -> Option<(u8, u8, u64, Vec<u8>)> {
    let mut head = [0; 16];
    stream.read_exact(&mut head).await.ok()?;
    let len = u32::from_le_bytes(head[..4].try_into().unwrap());
    let mut rest = vec![0; len as usize];
    stream.read_exact(&mut rest).await.ok()?;
    let covered = if head[4] == DATA {
        24 + 4 * usize::from(u16::from_le_bytes([rest[8], rest[9]]))
    } else {
        rest.len() - 4
    };
    let crc = crc32c(&[&head[..], &rest[..covered]].concat());
    assert_eq!(rest[covered..covered + 4], crc.to_le_bytes(), "kind {:#x}", head[4]);
    Some((head[4], head[5], u64::from_le_bytes(head[8..].try_into().unwrap()), rest))
}

/// Opens a connection as a client of version 1.
async fn connect(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (kind, _, _, hello) = receive(&mut stream).await.unwrap();
    assert_eq!((kind, &hello[..8]), (SERVER_HELLO, &b"MILLRACE"[..]));
    let oldest = u16::from_le_bytes([hello[8], hello[9]]);
    let newest = u16::from_le_bytes([hello[10], hello[11]]);
    assert!((oldest..=newest).contains(&1), "version 1 is no longer spoken: {oldest} to {newest}");
    let (server_nonce, nonce): ([u8; 32], _) = (hello[20..52].try_into().unwrap(), [7; 32]);
    let proof = key().prove(Side::Client, &server_nonce, &nonce);
    let mut body = [&[1, 0][..], &[0; 8], &nonce, &proof].concat();
    body.extend_from_slice(&[1, 0, 3, 0]);
    body.extend_from_slice(b"old");
    body.extend_from_slice(&[2, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    send(&mut stream, CLIENT_HELLO, 0, 0, &body, &[]).await;
    let (kind, _, _, ok) = receive(&mut stream).await.unwrap();
    assert_eq!(kind, HELLO_OK);
    assert!(key().verify(Side::Server, &server_nonce, &nonce, ok[8..40].try_into().unwrap()));
    stream
}

/// The frame's own bytes, not only its meaning: read chunks 1 to 3 of file 9 within 5 s.
fn read_body() -> Vec<u8> {
    let content = [&[9, 0, 0, 0][..], &[0xC0; 12]].concat();
    let end = [1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x88, 0x13, 0, 0];
    [&[0xD5; 16][..], &[9, 0, 0, 0], &content, &end].concat()
}

#[tokio::test]
async fn a_client_of_version_1_reads_from_todays_worker() {
    let port = Port::start().await;
    port.blocks.put(9, 150_000);
    *port.blocks.membership.lock() = std::sync::Arc::new(membership(6, &[port.address]));
    let mut stream = connect(port.address).await;
    // The membership comes unasked, since this client has none.
    let (kind, _, request, body) = receive(&mut stream).await.unwrap();
    let address = port.address.to_string();
    let expected = [
        &[6, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0][..],
        b"w0",
        &(address.len() as u16).to_le_bytes(),
        address.as_bytes(),
        &[1, 0, 0, 0],
    ]
    .concat();
    assert_eq!((kind, request, &body[..expected.len()]), (MEMBERSHIP, 0, &expected[..]));

    send(&mut stream, READ, 0, 77, &read_body(), &[]).await;
    let (whole, mut got) = (object(9, 150_000), Vec::new());
    loop {
        let (kind, flags, request, rest) = receive(&mut stream).await.unwrap();
        assert_eq!((kind, request, &rest[..4]), (DATA, 77, &[0; 4][..]));
        let first = u32::from_le_bytes(rest[4..8].try_into().unwrap());
        assert_eq!(first as usize, 1 + got.len() / 65_536);
        let count = usize::from(u16::from_le_bytes([rest[8], rest[9]]));
        let payload = &rest[24 + 4 * count + 4..];
        assert_eq!(u32::from_le_bytes(rest[12..16].try_into().unwrap()) as usize, payload.len());
        for (crc, chunk) in rest[24..24 + 4 * count].chunks(4).zip(payload.chunks(65_536)) {
            assert_eq!(crc, crc32c(chunk).to_le_bytes());
        }
        got.extend_from_slice(payload);
        if flags & LAST != 0 {
            break;
        }
    }
    assert!(got == whole[65_536..]);

    send(&mut stream, PING, 0, 5, &[], &[]).await;
    let (kind, _, request, _) = receive(&mut stream).await.unwrap();
    assert_eq!((kind, request), (PONG, 5));
}

/// A worker of version 1 with file 9, which refuses what it does not know.
async fn serve(listener: TcpListener, unknown: tokio::sync::mpsc::UnboundedSender<u8>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let unknown = unknown.clone();
        tokio::spawn(async move {
            let nonce = [3; 32];
            let hello = [&b"MILLRACE"[..], &[1, 0, 1, 0], &[0; 8], &nonce].concat();
            send(&mut stream, SERVER_HELLO, 0, 0, &hello, &[]).await;
            let (_, _, _, theirs) = receive(&mut stream).await.unwrap();
            assert_eq!(theirs[..2], [1, 0], "the version chosen");
            let theirs: [u8; 32] = theirs[10..42].try_into().unwrap();
            let proof = key().prove(Side::Server, &nonce, &theirs);
            let ok = [&[0; 8][..], &proof, &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
            send(&mut stream, HELLO_OK, 0, 0, &ok, &[]).await;
            while let Some((kind, _, request, body)) = receive(&mut stream).await {
                match kind {
                    READ => {
                        let first = u32::from_le_bytes(body[36..40].try_into().unwrap());
                        let end = u32::from_le_bytes(body[40..44].try_into().unwrap());
                        let whole = object(9, 150_000);
                        let bytes = &whole[first as usize * 65_536..(end as usize * 65_536).min(150_000)];
                        let mut head = [&[0; 4][..], &first.to_le_bytes()].concat();
                        head.extend_from_slice(&((end - first) as u16).to_le_bytes());
                        head.extend_from_slice(&[0; 2]);
                        head.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                        head.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
                        for chunk in bytes.chunks(65_536) {
                            head.extend_from_slice(&crc32c(chunk).to_le_bytes());
                        }
                        send(&mut stream, DATA, LAST, request, &head, bytes).await;
                    }
                    PING => send(&mut stream, PONG, LAST, request, &[1, 0, 0, 0, 0, 0, 0, 0], &[]).await,
                    GET_MEMBERSHIP => panic!("the client has this epoch"),
                    kind => {
                        let _ = unknown.send(kind);
                        let code = UNSUPPORTED.to_le_bytes();
                        let body =
                            [&[0xFF; 4][..], &code, &[1, 0, 0, 0, 0, 0, 0, 0], &[2, 0], b"no"].concat();
                        send(&mut stream, ERROR, LAST, request, &body, &[]).await;
                    }
                }
            }
        });
    }
}

#[tokio::test]
async fn todays_client_reads_from_a_worker_of_version_1_and_does_without_what_it_lacks() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, mut unknown) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(serve(listener, sender));
    let client = client(membership(1, &[address]));
    client.announce(Announce::new("node-7".into(), VERSION, Vec::new()));
    assert_eq!(timeout(Duration::from_secs(10), unknown.recv()).await.unwrap(), Some(0x17));
    read_all(&client, want(9, 150_000, 0..3)).await.unwrap();
    let begin = Instant::now();
    let settings = client.mount_settings(Instant::now() + Duration::from_secs(60)).await;
    assert_eq!(settings, Err(GetMountSettings::Unsupported));
    assert!(begin.elapsed() < Duration::from_secs(5), "nothing is gained by asking on");
    read_all(&client, want(9, 150_000, 1..2)).await.unwrap();
    assert_eq!(client.counters().lost.get(), 0, "the connection goes on");
}
