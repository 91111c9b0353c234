//! How does the system come up, part by part?

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use millrace_api::placement::{Membership, Worker};
use millrace_control::{dataset, proto};
use tokio::time::Instant;

use super::addresses::{self, Addresses, MountAddresses};
use super::child::{Child, ChildError};
use super::folder::{self, Folder};
use super::identity::Identity;
use super::plan::Plan;
use super::process::ProcessId;
use super::programs::Programs;
use super::run_file::{Run, WorkerRun};
use super::{ask, index};

/// For a worker to serve: it opens its stores, which may hold millions of files.
const WORKER_DEADLINE: Duration = Duration::from_secs(60);

/// For the mount: it may have to fetch the index first, for which it takes 120 s itself.
const MOUNT_DEADLINE: Duration = Duration::from_secs(150);

/// For all workers to fetch the index from the one that made it.
const INDEX_DEADLINE: Duration = Duration::from_secs(120);

/// How often they are asked whether they have it.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// A Dataset's running system, as its supervisor sees it.
#[derive(Debug)]
pub struct System {
    /// Where it keeps things.
    pub folder: Folder,
    /// What it is told.
    pub plan: Plan,
    /// Who it is.
    pub identity: Identity,
    programs: Programs,
    run: Mutex<Run>,
    membership: Mutex<Membership>,
    /// Held while the workers are told, so that an older membership never comes after a newer one.
    telling: tokio::sync::Mutex<()>,
}

/// The children of a system that is up.
#[derive(Debug)]
pub struct Children {
    /// In order.
    pub workers: Vec<Child>,
    /// The mount process.
    pub mount: Child,
}

impl System {
    /// A system of which nothing runs yet.
    ///
    /// # Errors
    /// Where its folder cannot be used.
    pub fn new(folder: Folder, plan: Plan, programs: Programs, identity: Identity) -> anyhow::Result<Self> {
        let worker = |name: &String| WorkerRun { name: name.clone(), process: None, addresses: None };
        let run = Run {
            supervisor: ProcessId::of(std::process::id()),
            mount_point: plan.mount_point.clone(),
            version: None,
            workers: plan.workers.iter().map(worker).collect(),
            mount: None,
            mount_admin: None,
        };
        run.write(&folder)?;
        // A membership that is lost begins anew; workers that know a later epoch say so.
        let membership = folder::read_if_there(&folder.membership_file())?
            .and_then(|content| serde_json::from_slice(&content).ok())
            .unwrap_or_default();
        Ok(Self {
            folder,
            plan,
            programs,
            identity,
            run: Mutex::new(run),
            membership: Mutex::new(membership),
            telling: tokio::sync::Mutex::new(()),
        })
    }

    /// Starts everything and waits until the dataset can be read.
    ///
    /// # Errors
    /// What did not come about; what was started stays, for [`super::clean`].
    pub async fn start(&self) -> anyhow::Result<Children> {
        let names = &self.plan.workers;
        eprintln!("starting {} worker{}", names.len(), if names.len() == 1 { "" } else { "s" });
        let mut workers = Vec::new();
        for at in 0..names.len() {
            workers.push(self.spawn_worker(at, None)?);
        }
        for (at, worker) in workers.iter_mut().enumerate() {
            self.await_worker(at, worker).await.map_err(|error| anyhow!("start worker {error}"))?;
        }
        self.publish_membership().await?;
        let version = index::make(self).await?;
        self.take_up(&version.id).await?;
        let mut mount = self.spawn_mount(&version.id)?;
        self.await_mount(&mut mount).await.map_err(|error| anyhow!("start {error}"))?;
        Ok(Children { workers, mount })
    }

    /// Makes a version the one in use, at all workers, and has it warmed where the spec asks for that.
    ///
    /// # Errors
    /// Names the worker that has not its index.
    pub async fn take_up(&self, version: &str) -> anyhow::Result<()> {
        self.update(|run| run.version = Some(version.to_owned()))?;
        self.use_version(version).await?;
        if self.plan.spec.warm_up.when == millrace_api::dataset::spec::WarmUpWhen::Created {
            self.warm(version).await?;
        }
        Ok(())
    }

    /// Starts the process of a worker and writes that down.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn spawn_worker(&self, at: usize, former: Option<&Addresses>) -> anyhow::Result<Child> {
        let name = self.plan.workers.get(at).context("no such worker")?;
        folder::make_dir(&self.folder.worker_dir(name))?;
        folder::remove(&self.folder.addresses_file(name))?;
        let args = self.plan.worker_args(&self.folder, name, former);
        let child = Child::spawn(name, &self.programs.cache_worker, &args, &self.folder.log_file(name))?;
        self.update(|run| {
            if let Some(worker) = run.workers.get_mut(at) {
                worker.process = Some(child.process);
            }
        })?;
        Ok(child)
    }

    /// Waits until a worker serves and writes down where.
    ///
    /// # Errors
    /// Where it ends, or is late.
    pub async fn await_worker(&self, at: usize, child: &mut Child) -> anyhow::Result<()> {
        let (file, pid) = (self.folder.addresses_file(&child.name), child.process.pid);
        let found: Addresses = child.ready(WORKER_DEADLINE, || addresses::read(&file, pid)).await?;
        self.update(|run| {
            if let Some(worker) = run.workers.get_mut(at) {
                worker.addresses = Some(found);
            }
        })
    }

    /// Starts the mount process and writes that down.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn spawn_mount(&self, version: &str) -> anyhow::Result<Child> {
        folder::remove(&self.folder.mount_addresses_file())?;
        let args = self.plan.mount_args(&self.folder, version);
        let child = Child::spawn("mount", &self.programs.csi_driver, &args, &self.folder.log_file("mount"))?;
        self.update(|run| run.mount = Some(child.process))?;
        Ok(child)
    }

    /// Waits until the dataset is mounted.
    ///
    /// # Errors
    /// Where the process ends, or is late.
    pub async fn await_mount(&self, child: &mut Child) -> Result<(), ChildError> {
        let (file, pid) = (self.folder.mount_addresses_file(), child.process.pid);
        let found: MountAddresses = child.ready(MOUNT_DEADLINE, || addresses::read(&file, pid)).await?;
        if let Err(error) = self.update(|run| run.mount_admin = Some(found.admin)) {
            tracing::warn!(error = format!("{error:#}"), "admin address of the mount not written down");
        }
        Ok(())
    }

    /// Tells everybody who the workers are, in a new epoch where that has changed.
    ///
    /// # Errors
    /// Where it cannot be kept; a worker that cannot be told is started again, and told then.
    pub async fn publish_membership(&self) -> anyhow::Result<()> {
        let _telling = self.telling.lock().await;
        let run = self.run();
        let weight = self.plan.spec.workers.cache.weight();
        let worker = |worker: &WorkerRun| {
            let address = worker.addresses.as_ref()?.data.clone();
            Some(Worker { name: worker.name.clone(), address, weight })
        };
        let workers: Vec<Worker> = run.workers.iter().filter_map(worker).collect();
        let mut wanted = {
            let mut membership = lock(&self.membership);
            if membership.workers != workers || membership.epoch == 0 {
                *membership = Membership { epoch: membership.epoch + 1, workers };
            }
            membership.clone()
        };
        // Twice where a worker remembers a later epoch than we do.
        for _ in 0..2 {
            folder::write_private(&self.folder.membership_file(), &serde_json::to_vec_pretty(&wanted)?)?;
            let latest = self.push(&run, &wanted).await;
            if latest <= wanted.epoch {
                return Ok(());
            }
            wanted.epoch = latest + 1;
            *lock(&self.membership) = wanted.clone();
        }
        bail!(
            "workers know a membership later than epoch {}: is another system up with their state folders?",
            wanted.epoch
        )
    }

    /// Tells the workers, and gives the latest epoch that one of them is in.
    async fn push(&self, run: &Run, membership: &Membership) -> u64 {
        let mut latest = membership.epoch;
        for worker in &run.workers {
            let tell = async {
                let mut client = ask::worker(worker, &self.identity.control_key)?;
                let answer = client.set_membership(proto::Membership::from(membership)).await;
                Ok(answer.map_err(|status| ask::refusal(&status))?.into_inner().epoch)
            };
            match ask::in_time(&worker.name, tell).await {
                Ok(epoch) => latest = latest.max(epoch),
                Err(error) => tracing::warn!(error = format!("{error:#}"), "membership not told"),
            }
        }
        latest
    }

    /// Has all workers use a version, and waits until they have its index.
    ///
    /// # Errors
    /// Names the worker that has not.
    pub async fn use_version(&self, version: &str) -> anyhow::Result<()> {
        let until = Instant::now() + INDEX_DEADLINE;
        let run = self.run();
        for worker in &run.workers {
            while !self.worker_uses(worker, version).await? {
                if Instant::now() >= until {
                    let status = ask::status(worker, &self.identity.control_key).await?;
                    let known = status.versions.into_iter().find(|known| known.version == version);
                    let why = known
                        .and_then(|known| known.failed)
                        .map_or("no reason given".to_owned(), |failed| failed.message);
                    bail!(
                        "worker {}: no index of version {version} after {INDEX_DEADLINE:?}: {why}",
                        worker.name
                    );
                }
                tokio::time::sleep(ASK_EVERY).await;
            }
        }
        Ok(())
    }

    /// Has one worker use a version; false while it fetches the index.
    ///
    /// # Errors
    /// Where it cannot be told.
    pub async fn worker_uses(&self, worker: &WorkerRun, version: &str) -> anyhow::Result<bool> {
        let request = proto::UseVersionsRequest {
            versions: vec![version.to_owned()],
            sources: dataset::sources(&self.plan.spec),
            mount: Some(dataset::mount_settings(&self.plan.spec.mount, version)),
        };
        let tell = async {
            let mut client = ask::worker(worker, &self.identity.control_key)?;
            Ok(client.use_versions(request).await.map_err(|status| ask::refusal(&status))?.into_inner())
        };
        Ok(ask::in_time(&worker.name, tell).await?.fetching.is_empty())
    }

    async fn warm(&self, version: &str) -> anyhow::Result<()> {
        let paths = &self.plan.spec.warm_up.paths;
        let unknown = super::warm::ask_all(&self.run(), &self.identity.control_key, version, paths).await?;
        if !unknown.is_empty() {
            eprintln!("warning: spec.warmUp.paths: {unknown:?} are not in the dataset, so nothing is warmed");
        }
        Ok(())
    }

    /// The processes now.
    pub fn run(&self) -> Run {
        lock(&self.run).clone()
    }

    fn update(&self, change: impl FnOnce(&mut Run)) -> anyhow::Result<()> {
        let mut run = lock(&self.run);
        change(&mut run);
        run.write(&self.folder)
    }
}

/// What is behind it is replaced whole, so that a panic elsewhere leaves it right.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
