//! How do an S3 server and some workers come up that serve one version of a dataset?

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millrace_api::keys::Key;
use millrace_api::placement::{Membership, Worker as Member};
use millrace_control::proto;
use millrace_control::proto::make_index_progress::Step;
use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::outage::OutageMode;
use millrace_s3_server::server::S3Server;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::program::until;
use crate::worker::{Worker, WorkerSetup};

/// The bucket of every test.
pub const BUCKET: &str = "data";

/// One MiB.
pub const MIB: u64 = 1 << 20;

/// Blocks are small so that little data has many.
const BLOCK_BYTES: u64 = MIB;

/// Warnings that the machine may earn, not the programs.
const KNOWN: [&str; 3] = [
    // It is too busy to give a process its turn for two seconds.
    "a worker is silent; reads go round it",
    // An ordinary user mounts.
    "only this user sees the mount",
    "kernel read-ahead stays small",
];

/// What is wanted.
#[derive(Debug, Clone)]
pub struct Setup {
    /// How many workers.
    pub workers: usize,
    /// What each is told.
    pub worker: WorkerSetup,
}

impl Default for Setup {
    fn default() -> Self {
        Self { workers: 1, worker: WorkerSetup { quota_bytes: 1 << 30, tier: None, args: Vec::new() } }
    }
}

impl Setup {
    /// So many workers.
    pub fn workers(workers: usize) -> Self {
        Self { workers, ..Self::default() }
    }
}

/// An S3 server in this process, workers in processes of their own, and a version that all serve. Ends and removes all
/// with this value.
#[derive(Debug)]
pub struct Cluster {
    /// The workers.
    pub workers: Vec<Worker>,
    /// The S3 server.
    pub s3: S3Server,
    /// What is in its bucket.
    pub objects: InMemory,
    /// The version.
    pub version: String,
    /// How its index was made.
    pub made: proto::IndexMade,
    /// Key of the control ports.
    pub control_key: Key,
    runtime: Runtime,
    next_dir: AtomicUsize,
    dir: TempDir,
}

impl Cluster {
    /// One worker over `objects`.
    pub fn of(objects: InMemory) -> Self {
        Self::start(objects, &Setup::default())
    }

    /// Workers over `objects`.
    pub fn start(objects: InMemory, setup: &Setup) -> Self {
        let mut cluster = Self::without_index(objects, setup);
        let source = source(&cluster.s3.endpoint());
        cluster.make_index(&[source]);
        cluster
    }

    /// Workers that know no version yet.
    pub fn without_index(objects: InMemory, setup: &Setup) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let s3 = runtime.block_on(S3Server::builder().bucket(BUCKET, &objects).start()).unwrap();
        let dir = tempfile::Builder::new().prefix("millrace-test-").tempdir().unwrap();
        let (data_key, control_key) = (Key::new([1; 32]), Key::new([2; 32]));
        std::fs::write(dir.path().join("data.key"), data_key.to_hex()).unwrap();
        let worker = |number| {
            let name = format!("w-{number}");
            Worker::start(&name, &dir.path().join(&name), &data_key, &control_key, setup.worker.clone())
        };
        let workers: Vec<Worker> = (0..setup.workers).map(worker).collect();
        let (version, made, next_dir) = (String::new(), proto::IndexMade::default(), AtomicUsize::new(0));
        let cluster = Self { workers, s3, objects, version, made, control_key, runtime, next_dir, dir };
        let membership = cluster.tell_membership(1);
        std::fs::write(cluster.membership_file(), serde_json::to_string(&membership).unwrap()).unwrap();
        cluster
    }

    /// Tells the workers, as they are now, to all of them; a file of before stays as it is.
    pub fn tell_membership(&self, epoch: u64) -> Membership {
        let member =
            |worker: &Worker| Member { name: worker.name.clone(), address: worker.data.clone(), weight: 1 };
        let membership = Membership { epoch, workers: self.workers.iter().map(member).collect() };
        for number in 0..self.workers.len() {
            let message = proto::Membership::from(&membership);
            self.control(number, |mut client| async move { client.set_membership(message).await }).unwrap();
        }
        membership
    }

    /// Lets the first worker list the sources; waits until all workers have the index.
    pub fn make_index(&mut self, sources: &[proto::Source]) {
        let request = proto::MakeIndexRequest { sources: sources.to_vec(), block_size_bytes: BLOCK_BYTES };
        let step = self.control(0, |mut client| async move {
            let mut steps = client.make_index(request).await?.into_inner();
            let mut last = None;
            while let Some(message) = steps.message().await? {
                last = message.step;
            }
            Ok::<_, tonic::Status>(last)
        });
        self.made = match step.unwrap() {
            Some(Step::Made(made)) => made,
            other => panic!("no index: {other:?}"),
        };
        self.version = self.made.version.clone();
        for number in 0..self.workers.len() {
            until("the worker has the index", Duration::from_secs(20), || {
                let request = proto::UseVersionsRequest {
                    versions: vec![self.version.clone()],
                    sources: sources.to_vec(),
                    mount: None,
                };
                let answer =
                    self.control(number, |mut client| async move { client.use_versions(request).await });
                answer.unwrap().into_inner().fetching.is_empty()
            });
        }
        self.s3.reset_counters();
    }

    /// Calls a worker's control port.
    pub fn control<F: Future>(
        &self,
        number: usize,
        call: impl FnOnce(millrace_control::client::Client) -> F,
    ) -> F::Output {
        self.runtime.block_on(async { call(self.workers[number].client(&self.control_key)).await })
    }

    /// The first message of a worker's status.
    pub fn status(&self, number: usize) -> proto::WorkerStatus {
        let status = self.control(number, |mut client| async move {
            client.status(proto::StatusRequest {}).await?.into_inner().message().await
        });
        status.unwrap().unwrap()
    }

    /// What a worker knows about a path.
    pub fn why(&self, number: usize, path: &str) -> proto::why_answer::What {
        let request = proto::WhyRequest { version: self.version.clone(), path: path.as_bytes().to_vec() };
        let answer = self.control(number, |mut client| async move { client.why(request).await });
        answer.unwrap().into_inner().what.unwrap()
    }

    /// Takes S3 away for a time; returns once it is.
    pub fn begin_outage(&self, length: Duration) {
        self.s3.begin_outage(OutageMode::Refuse, length);
        until("S3 is away", Duration::from_secs(5), || TcpStream::connect(self.s3.address()).is_err());
    }

    /// Bytes of objects that S3 has sent since the index was made.
    pub fn s3_bytes(&self) -> u64 {
        self.s3.counters().body_bytes
    }

    /// Fails the test where a process of the cluster has logged a warning or an error that is not listed.
    pub fn assert_quiet(&self) {
        let folders = std::fs::read_dir(self.dir()).unwrap().map(|entry| entry.unwrap().path());
        for log in folders.map(|dir| dir.join("log")).filter(|log| log.exists()) {
            let text = std::fs::read_to_string(&log).unwrap();
            let is_loud = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
            let loud =
                text.lines().filter(is_loud).find(|line| !KNOWN.iter().any(|known| line.contains(known)));
            assert_eq!(loud, None, "in {log:?}");
        }
    }

    /// Waits until a worker's store has taken so many bytes.
    pub fn wait_until_kept(&self, number: usize, bytes: u64) {
        until("the worker keeps all", Duration::from_secs(20), || {
            self.workers[number].metric("cache_worker_store_written_bytes_total", "") as u64 >= bytes
        });
    }

    /// A new empty folder, removed with the cluster.
    pub fn new_dir(&self, name: &str) -> PathBuf {
        let dir = self.dir.path().join(format!("{name}-{}", self.next_dir.fetch_add(1, Ordering::Relaxed)));
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    /// The file that tells mounts who serves.
    pub fn membership_file(&self) -> PathBuf {
        self.dir.path().join("membership.json")
    }

    /// The file with the key of the data port.
    pub fn data_key_file(&self) -> PathBuf {
        self.dir.path().join("data.key")
    }

    /// The folder of everything.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// The source that is the whole bucket.
pub fn source(endpoint: &str) -> proto::Source {
    let endpoint = endpoint.to_owned();
    proto::Source { endpoint, bucket: BUCKET.to_owned(), anonymous: true, ..proto::Source::default() }
}
