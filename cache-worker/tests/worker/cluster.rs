//! Some workers of one dataset, an S3 server behind them and a client before them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millrace_api::ids::VersionId;
use millrace_api::index::{FileIndex, Node};
use millrace_api::keys::Key;
use millrace_api::placement::{Membership, Worker as Member};
use millrace_cache_worker::config::Config;
use millrace_cache_worker::serve::{Addresses, start};
use millrace_cache_worker::versions::Version;
use millrace_cache_worker::worker::Worker;
use millrace_control::client::Client as Control;
use millrace_control::proto;
use millrace_daemon::shutdown::Tasks;
use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::server::S3Server;
use millrace_store::{Eviction, Medium, TierConfig};
use millrace_transport::Priority;
use millrace_transport::client::{Client, ClientConfig, ReadError, Timing, Want};
use tempfile::TempDir;
use tokio::time::Instant;

pub const BUCKET: &str = "data";
pub const MIB: u64 = 1 << 20;

/// Bytes that say where they are from.
pub fn body(key: &str, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    millrace_s3_server::synthetic::fill(key, 0, &mut bytes);
    bytes
}

pub fn data_key() -> Key {
    Key::new([1; 32])
}

pub fn control_key() -> Key {
    Key::new([2; 32])
}

pub fn config(name: &str, dir: &Path, quota_bytes: u64) -> Config {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let tier = TierConfig { dir: dir.join("tier"), medium: Medium::Disk, quota_bytes };
    Config {
        name: name.to_owned(),
        dataset_uid: "uid".to_owned(),
        pod_uid: String::new(),
        data_address: any,
        control_address: any,
        admin_address: any,
        addresses_file: None,
        data_key: data_key(),
        control_key: control_key(),
        state_dir: dir.join("state"),
        tiers: vec![tier],
        eviction: Eviction::Never,
        free_space_floor_bytes: 0,
        credentials_dir: None,
        profile: None,
        memory_limit_bytes: Some(512 * MIB),
        sources_file: None,
    }
}

/// One worker in this process.
pub struct Running {
    pub worker: Arc<Worker>,
    pub addresses: Addresses,
    pub dir: Arc<TempDir>,
    tasks: Tasks,
    name: String,
}

impl Running {
    pub async fn start(config: &Config, dir: Arc<TempDir>) -> Self {
        let tasks = Tasks::new();
        let serving = start(config, &tasks).await.unwrap();
        Self { worker: serving.worker, addresses: serving.addresses, dir, tasks, name: config.name.clone() }
    }

    pub fn control(&self) -> Control {
        millrace_control::client::client(&self.addresses.control.to_string(), control_key()).unwrap()
    }

    /// Ends all tasks; the folder stays.
    pub async fn stop(self) -> Arc<TempDir> {
        self.tasks.token().cancel();
        self.tasks.stop(Duration::from_secs(5)).await.unwrap();
        self.dir
    }
}

/// Workers with a membership, and a version that all of them serve.
pub struct Cluster {
    pub s3: S3Server,
    pub objects: InMemory,
    pub workers: Vec<Running>,
    pub version: VersionId,
    pub client: Client,
}

impl Cluster {
    /// One worker over `objects`.
    pub async fn of(objects: InMemory) -> Self {
        Self::with(objects, 1, 1 << 30).await
    }

    pub async fn with(objects: InMemory, workers: usize, quota_bytes: u64) -> Self {
        let s3 = S3Server::builder().bucket(BUCKET, &objects).start().await.unwrap();
        let mut running = Vec::new();
        for number in 0..workers {
            let dir = Arc::new(tempfile::tempdir().unwrap());
            running.push(Running::start(&config(&format!("w-{number}"), dir.path(), quota_bytes), dir).await);
        }
        let membership = membership(1, &running);
        for worker in &running {
            worker.control().set_membership(proto::Membership::from(&membership)).await.unwrap();
        }
        let version = make_index(&running[0], &s3, 1 << 20).await.unwrap();
        let sources = vec![source(&s3)];
        for worker in &running {
            use_version(worker, version, sources.clone()).await;
        }
        let client = client(membership);
        s3.reset_counters();
        Self { s3, objects, workers: running, version, client }
    }

    pub fn served(&self) -> Arc<Version> {
        self.workers[0].worker.versions.get(&self.version).unwrap()
    }

    /// Reads a whole file through the client.
    pub async fn read(&self, path: &str) -> Result<Vec<u8>, ReadError> {
        self.read_within(path, Duration::from_secs(20)).await
    }

    pub async fn read_within(&self, path: &str, deadline: Duration) -> Result<Vec<u8>, ReadError> {
        read(&self.client, &self.served(), path, Instant::now() + deadline).await
    }

    pub async fn read_chunks(&self, path: &str, chunks: std::ops::Range<u32>) -> Result<Vec<u8>, ReadError> {
        let want = want(&self.served(), path, chunks);
        read_want(&self.client, self.version, want, Instant::now() + Duration::from_secs(20)).await
    }

    pub async fn stop(self) {
        for worker in self.workers {
            worker.stop().await;
        }
        self.s3.shutdown().await;
    }
}

pub fn membership(epoch: u64, workers: &[Running]) -> Membership {
    let member = |running: &Running| Member {
        name: running.name.clone(),
        address: running.addresses.data.to_string(),
        weight: 1,
    };
    Membership { epoch, workers: workers.iter().map(member).collect() }
}

pub fn client(membership: Membership) -> Client {
    Client::new(ClientConfig {
        key: data_key(),
        name: "test".to_owned(),
        membership,
        connections_per_worker: 2,
        timing: Timing::default(),
    })
}

pub fn source(s3: &S3Server) -> proto::Source {
    proto::Source {
        endpoint: s3.endpoint(),
        bucket: BUCKET.to_owned(),
        anonymous: true,
        ..Default::default()
    }
}

pub async fn make_index(
    worker: &Running,
    s3: &S3Server,
    block_size_bytes: u64,
) -> Result<VersionId, proto::Failure> {
    let request = proto::MakeIndexRequest { sources: vec![source(s3)], block_size_bytes };
    let mut steps = worker.control().make_index(request).await.unwrap().into_inner();
    while let Some(step) = steps.message().await.unwrap() {
        match step.step.unwrap() {
            proto::make_index_progress::Step::Listing(_) => {}
            proto::make_index_progress::Step::Made(made) => return Ok(made.version.parse().unwrap()),
            proto::make_index_progress::Step::Failed(failed) => return Err(failed),
        }
    }
    panic!("the stream ended without a result");
}

/// Takes the version into use and waits until the worker has its index.
pub async fn use_version(worker: &Running, version: VersionId, sources: Vec<proto::Source>) {
    let request = proto::UseVersionsRequest { versions: vec![version.to_string()], sources, mount: None };
    worker.control().use_versions(request).await.unwrap();
    let mut status = worker.control().status(proto::StatusRequest {}).await.unwrap().into_inner();
    while let Some(now) = status.message().await.unwrap() {
        if now.versions.iter().any(|one| one.index_ready && one.version == version.to_string()) {
            return;
        }
    }
    panic!("the worker stopped before it had the index");
}

pub fn file(version: &Version, path: &str) -> FileIndex {
    match version.view().resolve(path.as_bytes()) {
        Some(Node::File(file)) => file,
        other => panic!("{path:?} is {other:?}"),
    }
}

pub fn want(version: &Version, path: &str, chunks: std::ops::Range<u32>) -> Want {
    let object = version.object(file(version, path)).unwrap();
    let placement = object.placement(object.span.block_of(chunks.start).index);
    Want { file: object.file.0, span: object.span, placement, chunks }
}

/// Reads a file block by block, as a mount does.
pub async fn read(
    client: &Client,
    version: &Version,
    path: &str,
    deadline: Instant,
) -> Result<Vec<u8>, ReadError> {
    let object = version.object(file(version, path)).unwrap();
    let mut bytes = Vec::new();
    for block in 0..object.span.file.blocks() {
        let chunks = object.span.chunks_in_block(block);
        if !chunks.is_empty() {
            bytes.extend(read_want(client, version.id, want(version, path, chunks), deadline).await?);
        }
    }
    Ok(bytes)
}

pub async fn read_want(
    client: &Client,
    version: VersionId,
    want: Want,
    deadline: Instant,
) -> Result<Vec<u8>, ReadError> {
    let mut chunks = std::collections::BTreeMap::new();
    let mut stream = client.read(version, want, deadline, Priority::Foreground);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        chunks.insert(chunk.index, chunk.bytes);
    }
    Ok(chunks.into_values().collect::<Vec<_>>().concat())
}

/// Waits for something that the worker does by itself.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !is_so() {
        assert!(Instant::now() < deadline, "not within 15 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
