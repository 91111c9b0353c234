//! How do workers come up and serve one version of a dataset?

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use millrace_api::keys::Key;
use millrace_api::placement::{Membership, Worker as Member};
use millrace_control::client::{Client, client};
use millrace_control::proto;
use millrace_control::proto::make_index_progress::Step;
use serde::Deserialize;
use tempfile::TempDir;

use super::cgroup::Cgroup;
use super::child::Program;
use crate::lab::{Lab, program};

/// For a worker to come up.
const START: Duration = Duration::from_secs(20);

/// For an index to be made: a million keys on two slow cores.
const INDEX: Duration = Duration::from_secs(300);

/// For the other workers to fetch the index.
const SPREAD: Duration = Duration::from_secs(60);

/// Where a worker keeps its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// On the disk.
    Disk,
    /// On a tmpfs.
    Memory,
}

/// What makes room in a worker's full cache, as in a Dataset's `spec.workers.cache.eviction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// Nothing: it admits no more.
    Never,
    /// What was not read for the longest time goes.
    Lru,
}

/// One folder of the dataset.
#[derive(Debug, Clone)]
pub struct Folder {
    /// Where it appears in the mount.
    pub path: String,
    /// The S3 server.
    pub endpoint: String,
    /// Its bucket.
    pub bucket: String,
}

/// What is wanted.
#[derive(Debug)]
pub struct Setup<'a> {
    /// How many workers.
    pub workers: usize,
    /// Where they keep their blocks.
    pub medium: Medium,
    /// How much each may keep, bytes.
    pub quota_bytes: u64,
    /// The dataset.
    pub folders: Vec<Folder>,
    /// A bound on the memory of all workers together.
    pub cgroup: Option<&'a Cgroup>,
}

/// Addresses that a worker wrote.
#[derive(Debug, Clone, Deserialize)]
pub struct Addresses {
    /// Data port.
    pub data: String,
    /// Control port.
    pub control: String,
    /// Admin port.
    pub admin: String,
}

/// A worker that runs.
#[derive(Debug)]
pub struct Worker {
    /// The process.
    pub program: Program,
    /// Where its ports are.
    pub addresses: Addresses,
    /// Steers it.
    pub control: Client,
}

/// Workers that serve a version. Ends them and removes their folders with this value.
#[derive(Debug)]
pub struct Workers {
    /// The processes.
    pub workers: Vec<Worker>,
    /// How the index was made; empty where it has not been.
    pub made: proto::IndexMade,
    /// Where their blocks are.
    pub tiers: TempDir,
    /// Keys, membership, state, logs; also of the mounts.
    pub dir: TempDir,
    /// Key of the data port.
    pub data_key: Key,
    folders: Vec<Folder>,
}

impl Eviction {
    fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Lru => "lru",
        }
    }
}

impl Workers {
    /// Starts workers and makes the index.
    ///
    /// # Errors
    /// Where any step fails; says which.
    pub fn start(lab: &Lab, setup: &Setup<'_>) -> Result<Self> {
        Self::start_with(lab, setup, Eviction::Never)
    }

    /// Starts workers that evict so, and makes the index.
    ///
    /// # Errors
    /// Where any step fails; says which.
    pub fn start_with(lab: &Lab, setup: &Setup<'_>, eviction: Eviction) -> Result<Self> {
        let mut workers = Self::start_processes(lab, setup, eviction, Ipv4Addr::LOCALHOST)?;
        workers.make_index(lab)?;
        Ok(workers)
    }

    /// Starts workers whose data ports are at an address of this host, and makes the index.
    ///
    /// # Errors
    /// Where any step fails; says which.
    pub fn start_at(lab: &Lab, setup: &Setup<'_>, ip: Ipv4Addr) -> Result<Self> {
        let mut workers = Self::start_processes(lab, setup, Eviction::Never, ip)?;
        workers.make_index(lab)?;
        Ok(workers)
    }

    /// Starts workers that know no version yet.
    ///
    /// # Errors
    /// Where one does not start.
    pub fn start_without_index(lab: &Lab, setup: &Setup<'_>) -> Result<Self> {
        Self::start_processes(lab, setup, Eviction::Never, Ipv4Addr::LOCALHOST)
    }

    fn start_processes(lab: &Lab, setup: &Setup<'_>, eviction: Eviction, ip: Ipv4Addr) -> Result<Self> {
        let dir = lab.disk_dir("rig")?;
        let tiers = match setup.medium {
            Medium::Disk => lab.disk_dir("tiers")?,
            Medium::Memory => lab.memory_dir("tiers")?,
        };
        let (data_key, control_key) = (Key::new(rand::random()), Key::new(rand::random()));
        std::fs::write(dir.path().join("data.key"), data_key.to_hex())?;
        std::fs::write(dir.path().join("control.key"), control_key.to_hex())?;
        let mut started = Vec::new();
        for number in 0..setup.workers {
            let name = format!("bench-{number}");
            let mut command = worker_command(setup, ip, &name, dir.path(), tiers.path())?;
            command.args(["--eviction", eviction.name()]);
            let log = dir.path().join(format!("{name}.log"));
            started.push((name.clone(), Program::start(&format!("worker {name}"), &mut command, &log)?));
        }
        let mut workers = Vec::new();
        for (name, mut program) in started {
            let file = dir.path().join(format!("{name}.json"));
            let look = || serde_json::from_slice::<Addresses>(&std::fs::read(&file).ok()?).ok();
            let addresses = program.wait_for("its ports", START, look)?;
            let control = lab.wait(async { client(&addresses.control, control_key.clone()) })?;
            workers.push(Worker { program, addresses, control });
        }
        let membership = membership(&workers);
        std::fs::write(dir.path().join("membership.json"), serde_json::to_string(&membership)?)?;
        for worker in &mut workers {
            let message = proto::Membership::from(&membership);
            lab.wait(worker.control.set_membership(message)).context("tell a worker the membership")?;
        }
        let (made, folders) = (proto::IndexMade::default(), setup.folders.clone());
        Ok(Self { workers, made, tiers, dir, data_key, folders })
    }

    /// Lets the first worker make the index, and the others fetch it.
    ///
    /// # Errors
    /// Where the listing fails, or a worker does not get the index.
    pub fn make_index(&mut self, lab: &Lab) -> Result<()> {
        let sources: Vec<proto::Source> = self.folders.iter().map(source).collect();
        let first = self.workers.first_mut().context("there is no worker")?;
        let request = proto::MakeIndexRequest { sources: sources.clone(), block_size_bytes: 0 };
        let made = lab.wait(async {
            tokio::time::timeout(INDEX, async {
                let mut progress = first.control.make_index(request).await?.into_inner();
                while let Some(message) = progress.message().await? {
                    match message.step {
                        Some(Step::Made(made)) => return Ok(made),
                        Some(Step::Failed(failure)) => bail!("{}: {}", failure.reason, failure.message),
                        Some(Step::Listing(_)) | None => lab.check()?,
                    }
                }
                bail!("the worker ended the call")
            })
            .await
            .context("it takes too long")?
        });
        self.made = made.context("make the index")?;
        let deadline = Instant::now() + SPREAD;
        for worker in &mut self.workers {
            loop {
                let versions = vec![self.made.version.clone()];
                let request = proto::UseVersionsRequest { versions, sources: sources.clone(), mount: None };
                let answer =
                    lab.wait(worker.control.use_versions(request)).context("tell a worker the version")?;
                if answer.into_inner().fetching.is_empty() {
                    break;
                }
                lab.check()?;
                ensure!(Instant::now() < deadline, "{} does not get the index", worker.program.name());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    /// Warms everything, and returns when all workers are done.
    ///
    /// # Errors
    /// Where a worker cannot be reached or an object fails.
    pub fn warm_all(&mut self, lab: &Lab) -> Result<()> {
        let version = self.made.version.clone();
        let action = proto::warm_request::Action::Start.into();
        let request = proto::WarmRequest { action, version, paths: Vec::new() };
        for worker in &mut self.workers {
            lab.wait(worker.control.warm(request.clone())).context("start a warm-up")?;
        }
        for worker in &mut self.workers {
            lab.wait(until_warm(lab, &mut worker.control))
                .with_context(|| format!("warm {}", worker.program.name()))?;
        }
        Ok(())
    }

    /// Name and process id of each worker.
    pub fn pids(&self) -> Vec<(&'static str, u32)> {
        self.workers.iter().map(|worker| ("workers", worker.program.pid())).collect()
    }
}

async fn until_warm(lab: &Lab, control: &mut Client) -> Result<()> {
    let mut statuses = control.status(proto::StatusRequest {}).await?.into_inner();
    while let Some(status) = statuses.message().await? {
        lab.check()?;
        let warm_up = status.versions.first().and_then(|version| version.warm_up.clone()).unwrap_or_default();
        ensure!(warm_up.failed == 0, "{} objects failed: {:?}", warm_up.failed, warm_up.failures.last());
        match warm_up.state() {
            proto::WarmUpState::Done => return Ok(()),
            proto::WarmUpState::Full => bail!("the store is full with {} objects missing", warm_up.pending),
            _ => {}
        }
    }
    bail!("the worker ended its status")
}

fn membership(workers: &[Worker]) -> Membership {
    let member = |(number, worker): (usize, &Worker)| Member {
        name: format!("bench-{number}"),
        address: worker.addresses.data.clone(),
        weight: 1,
    };
    Membership { epoch: 1, workers: workers.iter().enumerate().map(member).collect() }
}

fn source(folder: &Folder) -> proto::Source {
    let Folder { path, endpoint, bucket } = folder.clone();
    proto::Source { path, endpoint, bucket, anonymous: true, ..proto::Source::default() }
}

fn worker_command(setup: &Setup<'_>, ip: Ipv4Addr, name: &str, dir: &Path, tiers: &Path) -> Result<Command> {
    let path = program("cache-worker")?;
    let mut command = match setup.cgroup {
        Some(group) => group.command(&path),
        None => Command::new(path),
    };
    let medium = match setup.medium {
        Medium::Disk => "Disk",
        Medium::Memory => "Memory",
    };
    // As kubelet has it: the worker is the pod of its name.
    let tier = tiers.join(name).join("volumes/kubernetes.io~empty-dir/tier-0/blocks");
    let tier = format!("medium={medium},dir={},quota={}", tier.display(), setup.quota_bytes);
    let file = |name: &str| -> PathBuf { dir.join(name) };
    command
        .args(["serve", "--name", name, "--pod-uid", name, "--dataset-uid", "bench", "--log", &log_filter()])
        .args(["--data-address", &format!("{ip}:0")])
        .args(["--control-address", "127.0.0.1:0", "--admin-address", "127.0.0.1:0"])
        .arg("--addresses-file")
        .arg(file(&format!("{name}.json")))
        .arg("--data-key-file")
        .arg(file("data.key"))
        .arg("--control-key-file")
        .arg(file("control.key"))
        .arg("--state-dir")
        .arg(file(&format!("{name}-state")))
        .args(["--tier", &tier])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    Ok(command)
}

/// What the processes log: `MILLRACE_LOG`, or what a human must look at.
pub(super) fn log_filter() -> String {
    std::env::var("MILLRACE_LOG").unwrap_or_else(|_| "warn".to_owned())
}
