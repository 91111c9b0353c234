//! How does a client open a connection that both sides trust?

use std::io;
use std::ops::RangeInclusive;

use millrace_api::keys::{KEY_BYTES, Key, Side};
use millrace_api::wire::{
    self, ClientHello, DecodeFrame, ErrorCode, FrameHeader, HEADER_BYTES, HelloOk, MAX_HELLO_BODY_BYTES,
    Refused, ServerHello, kind, negotiate,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Why a worker cannot be spoken to.
#[derive(Debug, thiserror::Error)]
pub(super) enum Greet {
    #[error("connect")]
    Connect(#[source] io::Error),
    #[error("exchange hellos")]
    Io(#[source] io::Error),
    #[error("understand the hello")]
    Decode(#[source] DecodeFrame),
    #[error("it speaks protocol versions {theirs:?}, this program {ours:?}")]
    Version { ours: RangeInclusive<u16>, theirs: RangeInclusive<u16> },
    #[error("it refuses: {code}: {message}")]
    Refused { code: ErrorCode, message: String },
    #[error("it does not hold this dataset's data key")]
    Key,
    #[error("it did not say hello in time")]
    Silent,
}

/// Protocol versions that this build speaks.
const VERSIONS: RangeInclusive<u16> = wire::OLDEST_VERSION..=wire::VERSION;

/// Connects and exchanges hellos. The caller bounds the time.
pub(super) async fn connect(
    address: &str,
    key: &Key,
    name: &str,
    epoch: u64,
) -> Result<(TcpStream, HelloOk), Greet> {
    let mut stream = TcpStream::connect(address).await.map_err(Greet::Connect)?;
    // Requests are small and somebody waits for each.
    stream.set_nodelay(true).map_err(Greet::Connect)?;
    let (header, body) = hello(&mut stream, kind::SERVER_HELLO).await?;
    let theirs = ServerHello::decode(&header, &body).map_err(Greet::Decode)?;
    let offered = theirs.oldest..=theirs.newest;
    let Some(version) = negotiate(VERSIONS, offered.clone()) else {
        return Err(Greet::Version { ours: VERSIONS, theirs: offered });
    };
    let nonce: [u8; KEY_BYTES] = rand::random();
    let proof = key.prove(Side::Client, &theirs.nonce, &nonce);
    let mut out = Vec::with_capacity(256);
    ClientHello { version, features: 0, nonce, proof, name: name.to_owned(), epoch }.encode(&mut out);
    stream.write_all(&out).await.map_err(Greet::Io)?;
    let (header, body) = hello(&mut stream, kind::HELLO_OK).await?;
    let ok = HelloOk::decode(&header, &body).map_err(Greet::Decode)?;
    if !key.verify(Side::Server, &theirs.nonce, &nonce, &ok.proof) {
        return Err(Greet::Key);
    }
    Ok((stream, ok))
}

async fn hello(stream: &mut TcpStream, expected: u8) -> Result<(FrameHeader, Vec<u8>), Greet> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).await.map_err(Greet::Io)?;
    // A bound before anything is believed: another service on the port may send anything.
    let header = FrameHeader::decode(&head, MAX_HELLO_BODY_BYTES).map_err(Greet::Decode)?;
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).await.map_err(Greet::Io)?;
    match header.kind {
        kind if kind == expected => Ok((header, body)),
        kind::REFUSED => {
            let Refused { code, message } = Refused::decode(&header, &body).map_err(Greet::Decode)?;
            Err(Greet::Refused { code, message })
        }
        kind => Err(Greet::Decode(DecodeFrame::UnknownKind { kind })),
    }
}
