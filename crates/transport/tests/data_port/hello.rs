//! Who may connect, and how is everybody else told?

use std::time::Duration;

use millrace_api::keys::{Key, Side};
use millrace_api::wire::{
    ClientHello, ErrorCode, FrameHeader, HEADER_BYTES, HelloOk, MAX_BODY_BYTES, Refused, ServerHello, kind,
};
use millrace_transport::server::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use crate::double::*;
use crate::reads::until;

/// Receives one frame.
pub async fn receive(stream: &mut TcpStream) -> std::io::Result<(FrameHeader, Vec<u8>)> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).await?;
    let header = FrameHeader::decode(&head, MAX_BODY_BYTES).unwrap();
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).await?;
    Ok((header, body))
}

/// Opens a connection by hand; `version` as the client would choose it.
pub async fn greet(port: &Port, key: &Key, version: u16) -> (TcpStream, FrameHeader, Vec<u8>) {
    let mut stream = TcpStream::connect(port.address).await.unwrap();
    let (header, body) = receive(&mut stream).await.unwrap();
    let hello = ServerHello::decode(&header, &body).unwrap();
    let nonce = [7; 32];
    let proof = key.prove(Side::Client, &hello.nonce, &nonce);
    let mut out = Vec::new();
    ClientHello { version, features: 0, nonce, proof, name: "by hand".into(), epoch: 0 }.encode(&mut out);
    stream.write_all(&out).await.unwrap();
    let (header, body) = receive(&mut stream).await.unwrap();
    if header.kind == kind::HELLO_OK {
        let ok = HelloOk::decode(&header, &body).unwrap();
        assert!(key.verify(Side::Server, &hello.nonce, &nonce, &ok.proof));
    }
    (stream, header, body)
}

#[tokio::test]
async fn a_client_with_another_key_is_refused_and_told_so() {
    let port = Port::start().await;
    let (mut stream, header, body) = greet(&port, &Key::new([1; 32]), 1).await;
    assert_eq!(header.kind, kind::REFUSED);
    assert_eq!(Refused::decode(&header, &body).unwrap().code, ErrorCode::WrongKey);
    assert!(receive(&mut stream).await.is_err(), "and closed");
    until(|| port.counters.refused.get() == 1).await;

    let client = client_with(membership(1, &[port.address]), Key::new([1; 32]), Default::default());
    let deadline = Instant::now() + Duration::from_millis(500);
    let error = read_until(&client, want(1, 10, 0..1), deadline).await.unwrap_err();
    assert!(error.to_string().contains("wrong key"), "{error}");
    assert_eq!(port.counters.connections.get(), 0);
}

#[tokio::test]
async fn a_server_with_another_key_is_not_believed() {
    // An impostor that says yes to every proof.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut out = Vec::new();
                ServerHello { oldest: 1, newest: 1, features: 0, nonce: [1; 32] }.encode(&mut out);
                stream.write_all(&out).await.unwrap();
                receive(&mut stream).await.unwrap();
                out.clear();
                HelloOk { features: 0, proof: [0; 32], epoch: 99, pod_uid: String::new() }.encode(&mut out);
                stream.write_all(&out).await.unwrap();
                let _ = receive(&mut stream).await;
            });
        }
    });
    let client = client(membership(1, &[address]));
    let deadline = Instant::now() + Duration::from_millis(500);
    let error = read_until(&client, want(1, 10, 0..1), deadline).await.unwrap_err();
    assert!(error.to_string().contains("does not hold this dataset's data key"), "{error}");
}

#[tokio::test]
async fn a_worker_tells_whoever_holds_the_key_which_pod_it_is() {
    let port = Port::start().await;
    let client = client(membership(1, &[port.address]));
    assert_eq!(client.worker_pods(), [""; 0], "nobody was asked yet");
    let deadline = Instant::now() + Duration::from_secs(10);
    assert!(read_until(&client, want(1, 10, 0..1), deadline).await.is_err(), "it has no such file");
    assert_eq!(client.worker_pods(), ["6e9f-0"]);
    client.set_membership(membership(2, &[]));
    assert_eq!(client.worker_pods(), [""; 0], "it has left");
}

#[tokio::test]
async fn neighbouring_versions_speak_and_strange_ones_are_refused() {
    let port = Port::start().await;
    let (_, header, _) = greet(&port, &key(), 1).await;
    assert_eq!(header.kind, kind::HELLO_OK);
    let (_, header, body) = greet(&port, &key(), 2).await;
    assert_eq!(header.kind, kind::REFUSED);
    assert_eq!(Refused::decode(&header, &body).unwrap().code, ErrorCode::Unsupported);

    for (oldest, newest, speaks) in [(1, 2, true), (2, 3, false)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = client(membership(1, &[listener.local_addr().unwrap()]));
        let reading =
            tokio::spawn(
                async move { read_until(&client, want(1, 10, 0..1), soon_enough()).await.unwrap_err() },
            );
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut out = Vec::new();
        ServerHello { oldest, newest, features: u64::MAX, nonce: [1; 32] }.encode(&mut out);
        stream.write_all(&out).await.unwrap();
        match receive(&mut stream).await {
            Ok((header, body)) => {
                assert!(speaks && ClientHello::decode(&header, &body).unwrap().version == 1);
            }
            Err(_) => assert!(!speaks),
        }
        drop((stream, listener));
        let error = reading.await.unwrap();
        assert!(!error.to_string().is_empty());
    }
}

fn soon_enough() -> Instant {
    Instant::now() + Duration::from_millis(400)
}

#[tokio::test]
async fn a_hello_that_comes_byte_by_byte_for_ever_is_cut_off() {
    let limits = Limits { hello: Duration::from_millis(300), ..Limits::default() };
    let port = Port::start_with(key(), limits).await;
    let mut stream = TcpStream::connect(port.address).await.unwrap();
    receive(&mut stream).await.unwrap();
    let mut out = Vec::new();
    let (nonce, proof) = ([0; 32], [0; 32]);
    ClientHello { version: 1, features: 0, nonce, proof, name: "slow".into(), epoch: 0 }.encode(&mut out);
    let begin = Instant::now();
    for byte in out {
        if stream.write_all(&[byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(begin.elapsed() < Duration::from_secs(3));
    until(|| port.counters.refused.get() == 1).await;
}

#[tokio::test]
async fn another_protocol_and_oversized_hellos_are_cut_off() {
    let port = Port::start().await;
    let oversized = FrameHeader { body_len: 1 << 20, kind: kind::CLIENT_HELLO, flags: 0, request: 0 };
    let strange = FrameHeader { body_len: 0, kind: kind::READ, flags: 0, request: 0 };
    for bytes in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &oversized.encode(), &strange.encode()] {
        let mut stream = TcpStream::connect(port.address).await.unwrap();
        receive(&mut stream).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let ended = timeout(Duration::from_secs(2), receive(&mut stream)).await.expect("closed in time");
        assert!(ended.is_err());
    }
    until(|| port.counters.refused.get() == 3).await;
    // And a client that meets another protocol.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client(membership(1, &[listener.local_addr().unwrap()]));
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        }
    });
    let error = read_until(&client, want(1, 10, 0..1), soon_enough()).await.unwrap_err();
    assert!(error.to_string().contains("understand the hello"), "{error}");
}

#[tokio::test]
async fn connections_past_the_limit_are_closed() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let port = Port::start_with(key(), limits).await;
    let first = greet(&port, &key(), 1).await;
    let _second = greet(&port, &key(), 1).await;
    let mut third = TcpStream::connect(port.address).await.unwrap();
    assert!(receive(&mut third).await.is_err());
    drop(first);
    until(|| port.counters.connections.get() == 1).await;
    let (_, header, _) = greet(&port, &key(), 1).await;
    assert_eq!(header.kind, kind::HELLO_OK);
}
