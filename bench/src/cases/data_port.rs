//! What does a worker's data port cost, against a bare sendfile loop that sends the same frames?
//!
//! One receiver, plain and blocking, checks the same CRCs of both; each server is a process of its own.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use millrace_api::block::CHUNK_BYTES;
use millrace_api::crc::crc32c;
use millrace_api::ids::{ContentId, VersionId};
use millrace_api::index::{IndexView, Node};
use millrace_api::keys::{Key, Side};
use millrace_api::wire::{
    BatchItem, ClientHello, DataHead, FrameHeader, HEADER_BYTES, MAX_BODY_BYTES, MAX_FRAME_CHUNKS,
    Read as ReadChunks, Request, ServerHello, VERSION, flags, kind,
};
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::synthetic;
use rustix::net::SendFlags;

use super::Outcome;
use super::scene::{Scene, mb_per_second};
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured};
use crate::rig::child::Program;
use crate::rig::millrace::{Medium, Workers};
use crate::rig::usage::CpuSplit;

/// First argument that makes the program the bare server.
pub const COMMAND: &str = "bare-server";

/// Requests in flight, of 1 MiB each.
const IN_FLIGHT: usize = 8;

/// How often a round reads the whole object.
const PASSES: u64 = 4;

/// Longest wait for a byte.
const SILENCE: Duration = Duration::from_secs(10);

/// What is asked for: chunks of one object.
#[derive(Debug, Clone)]
struct Target {
    version: VersionId,
    file: u32,
    content: ContentId,
    size: u64,
}

/// One object of 1 GiB, held by one worker.
pub fn run(lab: &Lab) -> Result<Outcome> {
    let scene = Scene::start(lab, "bucket=port,objects=1,size=1GiB", FaultPlan::default())?;
    let mut workers = Workers::start(lab, &scene.setup(1, Medium::Memory))?;
    workers.warm_all(lab)?;
    let worker = workers.workers.first().context("there is no worker")?;
    let (key, path) =
        scene.objects.first().map(|(key, _)| (key, PathBuf::from(key))).context("the bucket is empty")?;
    let target = target(workers.dir.path(), &workers.made.version, &path)?;
    let mut port = Port::greet(&worker.addresses.data, &workers.data_key)?;

    let dir = lab.memory_dir("bare")?;
    let file = dir.path().join("object");
    write_object(&file, key, target.size)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(COMMAND).arg(&file).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut bare = Program::start("the bare server", &mut command, &dir.path().join("log"))?;
    let mut bare_port = Port::connect(&bare.first_line()?)?;

    let (mut ours, mut theirs) = (CpuSplit::default(), CpuSplit::default());
    let (pid, bare_pid, own) = (worker.program.pid(), bare.pid(), std::process::id());
    let bytes = PASSES * target.size;
    let mut measured = lab.compare(
        Measured::new("data-port", "MB/s", Bar::AtLeast(Figure::Ratio, 0.90)),
        |_| {
            let took = ours.during(&[("worker", pid), ("receiver", own)], || port.receive(lab, &target))?;
            Ok(mb_per_second(bytes, took))
        },
        |_| {
            let took = theirs.during(&[("bare server", bare_pid), ("receiver", own)], || {
                bare_port.receive(lab, &target)
            })?;
            Ok(mb_per_second(bytes, took))
        },
    )?;
    measured.notes = vec![
        format!("one connection, {IN_FLIGHT} requests of 1 MiB in flight"),
        ours.note("of ours"),
        theirs.note("of the baseline"),
    ];
    Ok(Outcome::Measured(vec![measured]))
}

/// The hidden command: serves `path` until killed, frame by frame, to one client after the other.
///
/// # Errors
/// Where the file cannot be read or a client misbehaves.
pub fn bare_server(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("open {path:?}"))?;
    let mut crcs = Vec::new();
    let (mut reader, mut chunk) = (BufReader::new(&file), vec![0; CHUNK_BYTES as usize]);
    while reader.read_exact(&mut chunk).is_ok() {
        crcs.push(crc32c(&chunk));
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    for stream in listener.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        let mut requests = BufReader::new(&stream);
        let (mut head, mut body, mut prefix) = ([0; HEADER_BYTES], Vec::new(), Vec::new());
        while requests.read_exact(&mut head).is_ok() {
            let header = FrameHeader::decode(&head, MAX_BODY_BYTES)?;
            body.resize(header.body_len as usize, 0);
            requests.read_exact(&mut body)?;
            let Request::Read(read) = Request::decode(&header, &body)? else {
                bail!("a frame that is no read")
            };
            let chunks = read.item.chunks;
            let crcs = crcs.get(chunks.start as usize..chunks.end as usize).context("chunks past the end")?;
            let payload_len = crcs.len() as u32 * CHUNK_BYTES as u32;
            let count = u16::try_from(crcs.len())?;
            prefix.clear();
            DataHead { item: 0, first_chunk: chunks.start, count, payload_len, epoch: 1 }.encode(
                header.request,
                true,
                crcs,
                &mut prefix,
            );
            let mut rest = &prefix[..];
            while !rest.is_empty() {
                rest = &rest[rustix::net::send(&stream, rest, SendFlags::MORE | SendFlags::NOSIGNAL)?..];
            }
            let (mut offset, end) =
                (u64::from(chunks.start) * CHUNK_BYTES, u64::from(chunks.end) * CHUNK_BYTES);
            while offset < end {
                let length = (end - offset) as usize;
                rustix::fs::sendfile(&stream, &file, Some(&mut offset), length)?;
            }
        }
    }
    Ok(())
}

/// Where the object is in the index that the worker has made.
fn target(dir: &Path, version: &str, path: &Path) -> Result<Target> {
    let file =
        find_index(dir, version)?.context("the worker's index file is not where it keeps its state")?;
    let bytes = std::fs::read(&file).with_context(|| format!("read {file:?}"))?;
    let view = IndexView::open(&bytes)?;
    let found = view.resolve(path.as_os_str().as_encoded_bytes());
    let Some(Node::File(index)) = found else { bail!("the index has no {path:?}") };
    let span = view.span(index).context("the index has no span of the file")?;
    Ok(Target { version: version.parse()?, file: index.0, content: span.file.content, size: span.size })
}

fn find_index(dir: &Path, version: &str) -> Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            if let Some(found) = find_index(&path, version)? {
                return Ok(Some(found));
            }
        } else if path.file_name().is_some_and(|name| name == format!("{version}.idx").as_str()) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

fn write_object(path: &Path, key: &str, size: u64) -> Result<()> {
    let mut out = File::create(path)?;
    let mut piece = vec![0; 1 << 20];
    for offset in (0..size).step_by(piece.len()) {
        synthetic::fill(key, offset, &mut piece);
        out.write_all(&piece)?;
    }
    Ok(())
}

impl Program {
    /// The first line that it prints.
    fn first_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output()?.read_line(&mut line)?;
        ensure!(!line.is_empty(), "{} ended: {}", self.name(), self.end_of_log());
        Ok(line.trim().to_owned())
    }
}

/// A connection to a data port.
struct Port {
    reader: BufReader<TcpStream>,
    payload: Vec<u8>,
}

impl Port {
    fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        Ok(Self {
            reader: BufReader::new(stream),
            payload: vec![0; usize::from(MAX_FRAME_CHUNKS) * CHUNK_BYTES as usize],
        })
    }

    /// Connects to a worker, which wants to know who comes.
    fn greet(address: &str, key: &Key) -> Result<Self> {
        let mut port = Self::connect(address)?;
        let (header, body) = port.frame()?;
        let hello = ServerHello::decode(&header, &body)?;
        let nonce = rand::random();
        let proof = key.prove(Side::Client, &hello.nonce, &nonce);
        let mut out = Vec::new();
        ClientHello { version: VERSION, features: 0, nonce, proof, name: "bench".to_owned(), epoch: 1 }
            .encode(&mut out);
        port.reader.get_mut().write_all(&out)?;
        let (header, _) = port.frame()?;
        ensure!(header.kind == kind::HELLO_OK, "the worker refuses (frame {:#04x})", header.kind);
        Ok(port)
    }

    /// A frame without payload.
    fn frame(&mut self) -> Result<(FrameHeader, Vec<u8>)> {
        let mut head = [0; HEADER_BYTES];
        self.reader.read_exact(&mut head)?;
        let header = FrameHeader::decode(&head, MAX_BODY_BYTES)?;
        let mut body = vec![0; header.body_len as usize];
        self.reader.read_exact(&mut body)?;
        Ok((header, body))
    }

    /// Asks for all chunks, some requests in flight, checks every CRC, and says how long it took.
    fn receive(&mut self, lab: &Lab, target: &Target) -> Result<Duration> {
        let step = u32::from(MAX_FRAME_CHUNKS);
        let chunks = u32::try_from(target.size.div_ceil(CHUNK_BYTES))?;
        let mut starts = (0..PASSES).flat_map(|_| (0..chunks).step_by(step as usize));
        let (mut frame, mut open, mut asked) = (Vec::new(), 0usize, 0u64);
        let mut received = 0u64;
        let started = Instant::now();
        loop {
            frame.clear();
            while open < IN_FLIGHT
                && let Some(start) = starts.next()
            {
                let item = BatchItem {
                    file: target.file,
                    content: target.content,
                    chunks: start..(start + step).min(chunks),
                };
                let read =
                    ReadChunks { version: target.version, item, epoch: 1, deadline_ms: 10_000, flags: 0 };
                asked += 1;
                Request::Read(read).encode(asked, &mut frame);
                open += 1;
            }
            self.reader.get_mut().write_all(&frame)?;
            if open == 0 {
                break;
            }
            let (bytes, is_last) = self.data()?;
            received += bytes;
            open -= usize::from(is_last);
            lab.check()?;
        }
        let took = started.elapsed();
        ensure!(received == PASSES * target.size, "{received} bytes came");
        Ok(took)
    }

    /// One frame of data, checked: its bytes, and whether its request is done.
    fn data(&mut self) -> Result<(u64, bool)> {
        let mut head = [0; HEADER_BYTES];
        self.reader.read_exact(&mut head)?;
        let header = FrameHeader::decode(&head, MAX_BODY_BYTES)?;
        if header.kind == kind::PENDING {
            std::io::copy(&mut (&mut self.reader).take(header.body_len.into()), &mut std::io::sink())?;
            return Ok((0, false));
        }
        ensure!(header.kind == kind::DATA, "frame {:#04x} in place of data", header.kind);
        let mut before = [0; DataHead::MAX_PREFIX_BYTES];
        self.reader.read_exact(&mut before[..DataHead::BYTES])?;
        let end = DataHead::len_before_payload(&before).context("a data frame without a count")?;
        self.reader.read_exact(&mut before[DataHead::BYTES..end])?;
        let data = DataHead::decode(&header, &before[..end])?;
        let payload = &mut self.payload[..data.payload_len as usize];
        self.reader.read_exact(payload)?;
        for (chunk, crc) in payload.chunks(CHUNK_BYTES as usize).zip(data.crcs(&before)) {
            ensure!(crc32c(chunk) == crc, "wrong CRC after chunk {}", data.first_chunk);
        }
        Ok((data.payload_len.into(), header.flags & flags::LAST != 0))
    }
}
