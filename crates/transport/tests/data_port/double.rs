//! A worker of synthesised objects behind a real data port, which can be made to misbehave.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use millrace_api::block::{BlockSize, CHUNK_BYTES, Span, chunk_count};
use millrace_api::crc::crc32c;
use millrace_api::ids::{ContentId, VersionId};
use millrace_api::keys::Key;
use millrace_api::mount::MountSettings;
use millrace_api::placement::{Membership, PlacementKey, Worker};
use millrace_api::wire::ErrorCode;
use millrace_transport::client::{Client, ClientConfig, Timing, Want};
use millrace_transport::server::{
    Answer, AnswerSink, Blocks, IndexSource, Limits, ReadError, ReadRequest, ServerConfig, Sessions, serve,
};
use millrace_transport::{Priority, ServerCounters};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub const VERSION: VersionId = VersionId([0xD5; 16]);

pub fn key() -> Key {
    Key::new([42; 32])
}

pub fn content(file: u32) -> ContentId {
    let mut id = [0xC0; 16];
    id[..4].copy_from_slice(&file.to_le_bytes());
    ContentId(id)
}

/// Bytes of an object, different for each file and offset.
pub fn object(file: u32, size: usize) -> Vec<u8> {
    (0..size).map(|i| (i as u32 ^ (i >> 8) as u32).wrapping_mul(31).wrapping_add(file * 7) as u8).collect()
}

pub fn want(file: u32, size: u64, chunks: Range<u32>) -> Want {
    let span = Span::of_large(content(file), size, BlockSize::default());
    Want { file, span, placement: PlacementKey::of_block(&file.to_le_bytes(), 0), chunks }
}

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// How a worker treats the reads of a file.
#[derive(Debug, Clone, Default)]
pub struct Behaviour {
    /// Waits before each answer.
    pub delay: Duration,
    /// Refuses.
    pub error: Option<ErrorCode>,
    /// Sends wrong bytes for this chunk until it is asked to check.
    pub corrupt: Option<u32>,
    /// Sends wrong bytes for this chunk always.
    pub corrupt_always: Option<u32>,
    /// Answers from memory, chunk by chunk.
    pub from_memory: bool,
    /// Never answers.
    pub hangs: bool,
    /// Answers half and returns.
    pub ends_early: bool,
    /// The file is shorter than it should be.
    pub is_cut: bool,
    /// Panics.
    pub panics: bool,
    /// What the object is, where it is not the synthesised one.
    pub bytes: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
pub struct TestBlocks {
    pub sizes: Mutex<HashMap<u32, u64>>,
    pub behaviour: Mutex<HashMap<u32, Behaviour>>,
    pub healed: Mutex<HashSet<u32>>,
    pub membership: Mutex<Arc<Membership>>,
    pub mount: Mutex<Option<MountSettings>>,
    pub index: Mutex<Option<IndexSource>>,
    pub reads: AtomicU64,
    pub dropped: AtomicU64,
    pub active: AtomicU32,
    /// Bytes that went into sinks from memory.
    pub queued: AtomicU64,
    files: Mutex<HashMap<u32, Arc<std::fs::File>>>,
}

/// Counts reads that end without having returned.
struct Guard<'a>(&'a TestBlocks, bool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::SeqCst);
        if !self.1 {
            self.0.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl TestBlocks {
    pub fn put(&self, file: u32, size: u64) {
        self.sizes.lock().insert(file, size);
    }

    pub fn behave(&self, file: u32, behaviour: Behaviour) {
        self.behaviour.lock().insert(file, behaviour);
    }

    pub fn put_index(&self, bytes: &[u8]) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        *self.index.lock() = Some(IndexSource { file: Arc::new(file), len: bytes.len() as u64 });
    }

    pub fn put_file(&self, number: u32, file: std::fs::File) {
        self.files.lock().insert(number, Arc::new(file));
    }

    /// Drops a file's pages from memory; `false` where they live nowhere else.
    pub fn forget_pages(&self, number: u32) -> bool {
        let file = Arc::clone(&self.files.lock()[&number]);
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let mut byte = [0];
        let mut slices = [std::io::IoSliceMut::new(&mut byte)];
        let probed = rustix::io::preadv2(&file, &mut slices, 0, rustix::io::ReadWriteFlags::NOWAIT);
        probed == Err(rustix::io::Errno::AGAIN)
    }

    fn file(&self, file: u32, bytes: &[u8]) -> Arc<std::fs::File> {
        let make = || {
            let mut temporary = tempfile::tempfile().unwrap();
            temporary.write_all(bytes).unwrap();
            Arc::new(temporary)
        };
        Arc::clone(self.files.lock().entry(file).or_insert_with(make))
    }
}

impl Blocks for TestBlocks {
    async fn read(&self, request: ReadRequest, answers: AnswerSink) -> Result<(), ReadError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.active.fetch_add(1, Ordering::SeqCst);
        let mut guard = Guard(self, false);
        let ReadRequest { file, chunks, .. } = request;
        let Some(size) = self.sizes.lock().get(&file).copied() else {
            guard.1 = true;
            return Err(ReadError::new(ErrorCode::NotFound, format!("no file {file}")));
        };
        assert_eq!(request.content, content(file));
        assert!(chunks.end <= chunk_count(size));
        let behaviour = self.behaviour.lock().get(&file).cloned().unwrap_or_default();
        assert!(!behaviour.panics, "as asked for");
        if behaviour.hangs {
            std::future::pending::<()>().await;
        }
        if !behaviour.delay.is_zero() {
            sleep(behaviour.delay).await;
        }
        if let Some(code) = behaviour.error {
            guard.1 = true;
            return Err(ReadError::new(code, format!("file {file} as told")));
        }
        let chunks = if behaviour.ends_early { chunks.start..chunks.start + 1 } else { chunks };
        let mut bytes = behaviour.bytes.clone().unwrap_or_else(|| object(file, size as usize));
        let piece = |chunk: u32| {
            let start = chunk as usize * CHUNK_BYTES as usize;
            start..(start + CHUNK_BYTES as usize).min(size as usize)
        };
        let crcs: Vec<u32> = chunks.clone().map(|chunk| crc32c(&bytes[piece(chunk)])).collect();
        if request.verify {
            self.healed.lock().insert(file);
        }
        let corrupt = if self.healed.lock().contains(&file) { None } else { behaviour.corrupt };
        if let Some(chunk) = corrupt.or(behaviour.corrupt_always) {
            bytes[piece(chunk).start] ^= 1;
        }
        if behaviour.from_memory || behaviour.corrupt.is_some() || behaviour.corrupt_always.is_some() {
            for (chunk, crc) in chunks.zip(crcs) {
                let bytes = Bytes::copy_from_slice(&bytes[piece(chunk)]);
                let len = bytes.len() as u64;
                if answers
                    .send(Answer::Bytes { first_chunk: chunk, chunks: vec![(bytes, crc)] })
                    .await
                    .is_err()
                {
                    return Ok(());
                }
                self.queued.fetch_add(len, Ordering::SeqCst);
            }
        } else {
            if behaviour.is_cut && !request.verify {
                bytes.truncate(size as usize / 2);
            }
            let key = if behaviour.is_cut && !request.verify { u32::MAX - file } else { file };
            let offset = u64::from(chunks.start) * CHUNK_BYTES;
            let len = (u64::from(chunks.end) * CHUNK_BYTES).min(size) - offset;
            let file = self.file(key, &bytes);
            let _ =
                answers.send(Answer::FileRange { file, offset, len, first_chunk: chunks.start, crcs }).await;
        }
        guard.1 = true;
        Ok(())
    }

    fn membership(&self) -> Arc<Membership> {
        Arc::clone(&self.membership.lock())
    }

    fn mount_settings(&self) -> Option<MountSettings> {
        *self.mount.lock()
    }

    async fn index(&self, version: VersionId) -> Option<IndexSource> {
        self.index.lock().clone().filter(|_| version == VERSION)
    }
}

/// One running worker.
pub struct Port {
    pub address: SocketAddr,
    pub blocks: Arc<TestBlocks>,
    pub counters: Arc<ServerCounters>,
    pub sessions: Arc<Sessions>,
    pub shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Port {
    pub async fn start() -> Self {
        Self::start_with(key(), Limits::default()).await
    }

    pub async fn start_with(key: Key, limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::start_on(listener, key, limits, Arc::default())
    }

    pub fn start_on(listener: TcpListener, key: Key, limits: Limits, blocks: Arc<TestBlocks>) -> Self {
        let address = listener.local_addr().unwrap();
        let (counters, shutdown) = (Arc::<ServerCounters>::default(), CancellationToken::new());
        let sessions = Arc::<Sessions>::default();
        let config = ServerConfig {
            key,
            limits,
            counters: Arc::clone(&counters),
            sessions: Arc::clone(&sessions),
            pod_uid: "6e9f-0".to_owned(),
        };
        let task = tokio::spawn(serve(listener, config, Arc::clone(&blocks), shutdown.clone()));
        Self { address, blocks, counters, sessions, shutdown, task }
    }

    /// Ends everything at once, as SIGKILL does.
    pub async fn kill(self) -> (SocketAddr, Arc<TestBlocks>) {
        self.task.abort();
        let _ = self.task.await;
        (self.address, self.blocks)
    }

    pub async fn stopped(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

pub fn worker(name: &str, address: impl ToString) -> Worker {
    Worker { name: name.to_owned(), address: address.to_string(), weight: 1 }
}

/// A membership of workers `w0`, `w1`, ... at these addresses.
pub fn membership(epoch: u64, addresses: &[SocketAddr]) -> Membership {
    let workers = addresses.iter().enumerate().map(|(i, address)| worker(&format!("w{i}"), address));
    Membership { epoch, workers: workers.collect() }
}

pub fn client(membership: Membership) -> Client {
    client_with(membership, key(), Timing::default())
}

pub fn client_with(membership: Membership, key: Key, timing: Timing) -> Client {
    Client::new(ClientConfig { key, name: "node-7".into(), membership, connections_per_worker: 2, timing })
}

/// A file whose owner is `owner`, and its hash order.
pub fn file_owned_by(membership: &Membership, owner: usize) -> u32 {
    let owned = |file: &u32| membership.owner(PlacementKey::of_block(&file.to_le_bytes(), 0)) == Some(owner);
    (1..).find(owned).unwrap()
}

/// Reads chunks and compares them with the object.
pub async fn read_all(client: &Client, want: Want) -> Result<(), millrace_transport::client::ReadError> {
    read_until(client, want, soon()).await
}

pub async fn read_until(
    client: &Client,
    want: Want,
    deadline: Instant,
) -> Result<(), millrace_transport::client::ReadError> {
    let (file, size, chunks) = (want.file, want.span.size, want.chunks.clone());
    let mut stream = client.read(VERSION, want, deadline, Priority::Foreground);
    let whole = object(file, size as usize);
    let mut got = vec![false; chunk_count(size) as usize];
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        let start = chunk.index as usize * CHUNK_BYTES as usize;
        let end = (start + CHUNK_BYTES as usize).min(whole.len());
        assert!(chunk.bytes == whole[start..end], "chunk {} of file {file}", chunk.index);
        assert_eq!(chunk.crc, crc32c(&chunk.bytes));
        assert!(!std::mem::replace(&mut got[chunk.index as usize], true), "chunk {} came twice", chunk.index);
    }
    let expected = |(i, got): (usize, &bool)| *got == chunks.contains(&(i as u32));
    assert!(got.iter().enumerate().all(expected), "not exactly {chunks:?}: {got:?}");
    Ok(())
}
