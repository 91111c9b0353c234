//! Does a node of the first build of protocol version 1 read from today's worker?
//!
//! The client is frozen: its frames are written out in bytes, so that no change to the wire module changes them.

use std::net::SocketAddr;

use millrace_api::crc::crc32c;
use millrace_api::index::IndexView;
use millrace_api::keys::Side;
use millrace_s3_server::backend::memory::InMemory;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::cluster::{Cluster, MIB, body, data_key};

const CLIENT_HELLO: u8 = 0x02;
const HELLO_OK: u8 = 0x03;
const READ: u8 = 0x10;
const GET_INDEX: u8 = 0x14;
const DATA: u8 = 0x80;
const MEMBERSHIP: u8 = 0x83;
const INDEX_PART: u8 = 0x84;
const LAST: u8 = 0x80;

async fn send(stream: &mut TcpStream, kind: u8, request: u64, body: &[u8]) {
    let len = (body.len() + 4) as u32;
    let mut frame = [&len.to_le_bytes()[..], &[kind, 0, 0, 0], &request.to_le_bytes(), body].concat();
    frame.extend_from_slice(&crc32c(&frame).to_le_bytes());
    stream.write_all(&frame).await.unwrap();
}

/// Kind, flags and all that follows the header.
async fn receive(stream: &mut TcpStream) -> (u8, u8, Vec<u8>) {
    let mut head = [0; 16];
    stream.read_exact(&mut head).await.unwrap();
    let mut rest = vec![0; u32::from_le_bytes(head[..4].try_into().unwrap()) as usize];
    stream.read_exact(&mut rest).await.unwrap();
    (head[4], head[5], rest)
}

async fn connect(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (_, _, hello) = receive(&mut stream).await;
    assert_eq!(&hello[..8], b"MILLRACE");
    let (server_nonce, nonce): ([u8; 32], _) = (hello[20..52].try_into().unwrap(), [7; 32]);
    let proof = data_key().prove(Side::Client, &server_nonce, &nonce);
    let mut body = [&[1, 0][..], &[0; 8], &nonce, &proof].concat();
    body.extend_from_slice(&[1, 0, 3, 0, b'o', b'l', b'd', 2, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    send(&mut stream, CLIENT_HELLO, 0, &body).await;
    assert_eq!(receive(&mut stream).await.0, HELLO_OK);
    assert_eq!(receive(&mut stream).await.0, MEMBERSHIP, "unasked, since this client has none");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_version_1_gets_the_index_and_reads_an_object() {
    let objects = InMemory::new().with("a", body("a", 70_000)).with("large", body("large", 2 * MIB + 5));
    let cluster = Cluster::of(objects).await;
    let mut stream = connect(cluster.workers[0].addresses.data).await;
    let version = cluster.version.0;

    let part = [&version[..], &[0; 8], &(1u32 << 20).to_le_bytes()].concat();
    send(&mut stream, GET_INDEX, 5, &part).await;
    let (kind, _, index) = receive(&mut stream).await;
    assert_eq!(
        (kind, u64::from_le_bytes(index[..8].try_into().unwrap())),
        (INDEX_PART, index.len() as u64 - 28)
    );
    let view = IndexView::open(&index[28..]).unwrap();
    view.verify().unwrap();

    for (path, len) in [("large", 2 * MIB + 5), ("a", 70_000)] {
        let Some(millrace_api::index::Node::File(file)) = view.resolve(path.as_bytes()) else { panic!() };
        let span = view.span(file).unwrap();
        let chunks = (len as u32).div_ceil(65_536);
        let read = [
            &version[..],
            &file.0.to_le_bytes(),
            &span.file.content.0,
            &0u32.to_le_bytes(),
            &chunks.to_le_bytes(),
            &1u64.to_le_bytes(),
            &10_000u32.to_le_bytes(),
        ]
        .concat();
        send(&mut stream, READ, 6, &read).await;
        let mut got = vec![0; len as usize];
        loop {
            let (kind, flags, rest) = receive(&mut stream).await;
            if kind == DATA {
                let first = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
                let count = usize::from(u16::from_le_bytes([rest[8], rest[9]]));
                let payload = &rest[24 + 4 * count + 4..];
                got[first * 65_536..first * 65_536 + payload.len()].copy_from_slice(payload);
                for (crc, chunk) in rest[24..24 + 4 * count].chunks(4).zip(payload.chunks(65_536)) {
                    assert_eq!(crc, crc32c(chunk).to_le_bytes());
                }
            }
            if flags & LAST != 0 {
                break;
            }
        }
        assert!(got == body(path, len), "{path}");
    }
    drop(stream);
    cluster.stop().await;
}
