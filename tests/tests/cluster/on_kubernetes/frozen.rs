//! How does a peer of another build speak on the data port?
//!
//! Written out in bytes: nothing here uses the wire module, so that no change to it changes these peers. The client is of
//! the first build of protocol version 1. The worker is a real one behind a relay that changes what it says of itself.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_api::crc::crc32c;
use millrace_api::keys::{Key, Side};

const SERVER_HELLO: u8 = 0x01;
const CLIENT_HELLO: u8 = 0x02;
const HELLO_OK: u8 = 0x03;
const READ: u8 = 0x10;
const GET_INDEX: u8 = 0x14;
/// The last request that the first build knew.
const PING: u8 = 0x15;
const DATA: u8 = 0x80;
const ERROR: u8 = 0x82;
const MEMBERSHIP: u8 = 0x83;
const INDEX_PART: u8 = 0x84;
const LAST: u8 = 0x80;
const UNSUPPORTED: u16 = 11;

const HEAD: usize = 16;
const CHUNK: usize = 65_536;

/// Longest wait for the other side.
const PATIENCE: Duration = Duration::from_secs(30);

struct Frame {
    head: [u8; HEAD],
    rest: Vec<u8>,
}

impl Frame {
    fn receive(stream: &mut TcpStream) -> io::Result<Self> {
        let mut head = [0; HEAD];
        stream.read_exact(&mut head)?;
        let length = u32::from_le_bytes(head[..4].try_into().unwrap());
        let mut rest = vec![0; length as usize];
        stream.read_exact(&mut rest)?;
        Ok(Self { head, rest })
    }

    /// One without payload.
    fn new(kind: u8, flags: u8, request: u64, body: &[u8]) -> Self {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&(body.len() as u32 + 4).to_le_bytes());
        head[4] = kind;
        head[5] = flags;
        head[8..].copy_from_slice(&request.to_le_bytes());
        let crc = crc32c(&[&head[..], body].concat());
        Self { head, rest: [body, &crc.to_le_bytes()].concat() }
    }

    fn kind(&self) -> u8 {
        self.head[4]
    }

    fn request(&self) -> u64 {
        u64::from_le_bytes(self.head[8..].try_into().unwrap())
    }

    /// Without the checksum; of a frame without payload.
    fn body(&self) -> &[u8] {
        &self.rest[..self.rest.len() - 4]
    }

    fn send(&self, stream: &mut TcpStream) -> io::Result<()> {
        stream.write_all(&[&self.head[..], &self.rest].concat())
    }
}

/// A node of the first build of protocol version 1.
pub struct Client {
    stream: TcpStream,
}

impl Client {
    /// Connects, choosing a version; the worker's words where it refuses.
    pub fn connect(address: &str, key: &Key, version: u16) -> Result<Self, String> {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let hello = Frame::receive(&mut stream).unwrap().rest;
        assert_eq!(&hello[..8], b"MILLRACE");
        let oldest = u16::from_le_bytes([hello[8], hello[9]]);
        assert!(oldest <= 1, "version 1 is no longer spoken: {oldest} is the oldest");
        let (server_nonce, nonce): ([u8; 32], _) = (hello[20..52].try_into().unwrap(), [7; 32]);
        let proof = key.prove(Side::Client, &server_nonce, &nonce);
        let mut body = [&version.to_le_bytes()[..], &[0; 8], &nonce, &proof].concat();
        body.extend_from_slice(&[1, 0, 3, 0, b'o', b'l', b'd', 2, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        Frame::new(CLIENT_HELLO, 0, 0, &body).send(&mut stream).unwrap();
        let answer = Frame::receive(&mut stream).map_err(|error| error.to_string())?;
        if answer.kind() != HELLO_OK {
            return Err(String::from_utf8_lossy(answer.body()).into_owned());
        }
        assert!(key.verify(Side::Server, &server_nonce, &nonce, answer.rest[8..40].try_into().unwrap()));
        Ok(Self { stream })
    }

    /// The index of a version, part by part.
    pub fn index(&mut self, version: &[u8; 16]) -> Vec<u8> {
        let mut index = Vec::new();
        loop {
            let part = [&version[..], &(index.len() as u64).to_le_bytes(), &(1u32 << 20).to_le_bytes()];
            Frame::new(GET_INDEX, 0, 5, &part.concat()).send(&mut self.stream).unwrap();
            let answer = self.answer(5);
            assert_eq!(answer.kind(), INDEX_PART, "{:?}", String::from_utf8_lossy(&answer.rest));
            let total = u64::from_le_bytes(answer.rest[..8].try_into().unwrap());
            index.extend_from_slice(&answer.rest[28..]);
            if index.len() as u64 >= total {
                return index;
            }
        }
    }

    /// A whole object, every checksum compared.
    pub fn read(&mut self, version: &[u8; 16], file: u32, content: &[u8; 16], length: usize) -> Vec<u8> {
        let chunks = length.div_ceil(CHUNK) as u32;
        let body = [
            &version[..],
            &file.to_le_bytes(),
            content,
            &0u32.to_le_bytes(),
            &chunks.to_le_bytes(),
            &1u64.to_le_bytes(),
            &30_000u32.to_le_bytes(),
        ];
        Frame::new(READ, 0, 6, &body.concat()).send(&mut self.stream).unwrap();
        let mut got = vec![0; length];
        loop {
            let answer = self.answer(6);
            let rest = &answer.rest;
            assert_ne!(answer.kind(), ERROR, "{:?}", String::from_utf8_lossy(rest));
            if answer.kind() == DATA {
                let first = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
                let count = usize::from(u16::from_le_bytes([rest[8], rest[9]]));
                let payload = &rest[24 + 4 * count + 4..];
                got[first * CHUNK..first * CHUNK + payload.len()].copy_from_slice(payload);
                for (crc, chunk) in rest[24..24 + 4 * count].chunks(4).zip(payload.chunks(CHUNK)) {
                    assert_eq!(crc, crc32c(chunk).to_le_bytes());
                }
            }
            if answer.head[5] & LAST != 0 {
                return got;
            }
        }
    }

    /// The next frame of a request; those that come unasked are passed over.
    fn answer(&mut self, request: u64) -> Frame {
        loop {
            let frame = Frame::receive(&mut self.stream).unwrap();
            if frame.request() == request {
                return frame;
            }
        }
    }
}

/// What a worker behind a relay says of itself.
#[derive(Debug, Clone, Copy)]
pub enum Build {
    /// It speaks these protocol versions.
    Versions(u16, u16),
    /// It knows no request that the first build of version 1 did not know.
    First,
}

/// A worker of another build.
pub struct Relay {
    address: SocketAddr,
    build: Arc<Mutex<Build>>,
    frames_of_data: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Relay {
    /// Starts one before the data port of a real worker, at an address that pods reach.
    pub fn start(at: IpAddr, worker: String, build: Build) -> Self {
        let listener = TcpListener::bind((at, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (frames_of_data, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, over) = (frames_of_data.clone(), is_over.clone());
        let build = Arc::new(Mutex::new(build));
        let current = build.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(client) = client else { return };
                let Ok(worker) = TcpStream::connect(&worker) else { continue };
                let build = *current.lock().unwrap();
                relay(client, worker, build, address, count.clone());
            }
        });
        Self { address, build, frames_of_data, is_over }
    }

    /// Puts a worker of another build in its place, for connections that are made from now on.
    pub fn replace(&self, build: Build) {
        *self.build.lock().unwrap() = build;
    }

    /// Host and port.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Frames with bytes of objects that have gone through.
    pub fn frames_of_data(&self) -> u64 {
        self.frames_of_data.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // So that it looks.
        let _ = TcpStream::connect(self.address);
    }
}

fn relay(client: TcpStream, worker: TcpStream, build: Build, own: SocketAddr, count: Arc<AtomicU64>) {
    let (mut from_client, mut to_worker) = (client.try_clone().unwrap(), worker.try_clone().unwrap());
    let to_client = Arc::new(Mutex::new(client));
    let answers = to_client.clone();
    std::thread::spawn(move || {
        while let Ok(frame) = Frame::receive(&mut from_client) {
            let is_unknown = matches!(build, Build::First) && (PING + 1..0x80).contains(&frame.kind());
            let sent = if is_unknown {
                let body =
                    [&[0xFF; 4][..], &UNSUPPORTED.to_le_bytes(), &[1, 0, 0, 0, 0, 0, 0, 0], &[2, 0], b"no"];
                let refusal = Frame::new(ERROR, LAST, frame.request(), &body.concat());
                refusal.send(&mut answers.lock().unwrap())
            } else {
                frame.send(&mut to_worker)
            };
            if sent.is_err() {
                break;
            }
        }
        let _ = to_worker.shutdown(Shutdown::Both);
    });
    let mut from_worker = worker;
    std::thread::spawn(move || {
        while let Ok(frame) = Frame::receive(&mut from_worker) {
            count.fetch_add(u64::from(frame.kind() == DATA), Ordering::Relaxed);
            if changed(frame, build, own).send(&mut to_client.lock().unwrap()).is_err() {
                break;
            }
        }
        let _ = to_client.lock().unwrap().shutdown(Shutdown::Both);
    });
}

/// What a worker of the build would have said, and that it is found at the relay.
fn changed(frame: Frame, build: Build, own: SocketAddr) -> Frame {
    match (frame.kind(), build) {
        (SERVER_HELLO, Build::Versions(oldest, newest)) => {
            let mut body = frame.body().to_vec();
            body[8..10].copy_from_slice(&oldest.to_le_bytes());
            body[10..12].copy_from_slice(&newest.to_le_bytes());
            Frame::new(frame.kind(), frame.head[5], frame.request(), &body)
        }
        (MEMBERSHIP, _) => {
            let body = with_address(frame.body(), &own.to_string());
            Frame::new(frame.kind(), frame.head[5], frame.request(), &body)
        }
        _ => frame,
    }
}

/// Epoch `u64`, count `u16`, then name and address of each worker, each behind its length `u16`, and its weight `u32`.
fn with_address(body: &[u8], address: &str) -> Vec<u8> {
    let (mut new, mut rest) = (body[..10].to_vec(), &body[10..]);
    for _ in 0..u16::from_le_bytes([body[8], body[9]]) {
        let name = 2 + usize::from(u16::from_le_bytes([rest[0], rest[1]]));
        new.extend_from_slice(&rest[..name]);
        rest = &rest[name..];
        new.extend_from_slice(&(address.len() as u16).to_le_bytes());
        new.extend_from_slice(address.as_bytes());
        rest = &rest[2 + usize::from(u16::from_le_bytes([rest[0], rest[1]]))..];
        new.extend_from_slice(&rest[..4]);
        rest = &rest[4..];
    }
    new.extend_from_slice(rest);
    new
}
