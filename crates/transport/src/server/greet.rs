//! Does whoever connects hold the key and speak our protocol?

use std::io;
use std::ops::RangeInclusive;

use millrace_api::keys::{KEY_BYTES, Key, Side};
use millrace_api::wire::{
    ClientHello, DecodeFrame, ErrorCode, FrameHeader, HEADER_BYTES, HelloOk, MAX_HELLO_BODY_BYTES, Refused,
    ServerHello, kind,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Why a connection ended in its hello.
#[derive(Debug, thiserror::Error)]
pub(super) enum Greet {
    #[error("exchange hellos")]
    Io(#[source] io::Error),
    #[error("read the client's hello")]
    Decode(#[source] DecodeFrame),
    #[error("the client {name:?} speaks version {version}")]
    Version { name: String, version: u16 },
    #[error("the client {name:?} does not hold this dataset's data key")]
    Key { name: String },
}

/// Exchanges hellos. The caller bounds the time.
pub(super) async fn greet(
    stream: &mut TcpStream,
    key: &Key,
    versions: RangeInclusive<u16>,
    epoch: u64,
    pod_uid: &str,
) -> Result<ClientHello, Greet> {
    let nonce: [u8; KEY_BYTES] = rand::random();
    let mut out = Vec::with_capacity(256);
    ServerHello { oldest: *versions.start(), newest: *versions.end(), features: 0, nonce }.encode(&mut out);
    stream.write_all(&out).await.map_err(Greet::Io)?;

    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).await.map_err(Greet::Io)?;
    let header = FrameHeader::decode(&head, MAX_HELLO_BODY_BYTES).map_err(Greet::Decode)?;
    if header.kind != kind::CLIENT_HELLO {
        return Err(Greet::Decode(DecodeFrame::UnknownKind { kind: header.kind }));
    }
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).await.map_err(Greet::Io)?;
    let hello = ClientHello::decode(&header, &body).map_err(Greet::Decode)?;

    // The key first: a stranger learns nothing more.
    if !key.verify(Side::Client, &nonce, &hello.nonce, &hello.proof) {
        let message = "the proof does not fit this dataset's data key";
        refuse(stream, ErrorCode::WrongKey, message.to_owned()).await?;
        return Err(Greet::Key { name: hello.name });
    }
    if !versions.contains(&hello.version) {
        let message = format!("protocol version {} is not one of {versions:?}", hello.version);
        refuse(stream, ErrorCode::Unsupported, message).await?;
        return Err(Greet::Version { name: hello.name, version: hello.version });
    }
    out.clear();
    let proof = key.prove(Side::Server, &nonce, &hello.nonce);
    HelloOk { features: 0, proof, epoch, pod_uid: pod_uid.to_owned() }.encode(&mut out);
    stream.write_all(&out).await.map_err(Greet::Io)?;
    Ok(hello)
}

async fn refuse(stream: &mut TcpStream, code: ErrorCode, message: String) -> Result<(), Greet> {
    let mut out = Vec::with_capacity(64);
    Refused { code, message }.encode(&mut out);
    stream.write_all(&out).await.map_err(Greet::Io)?;
    stream.shutdown().await.map_err(Greet::Io)
}
