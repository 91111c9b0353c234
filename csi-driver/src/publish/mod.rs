//! How does a dataset come to a pod's target, and go from there again, whatever died in between?
//!
//! What is to be there is written down first ([`records`]), then made so; each step may be repeated. A call is carried out
//! to its end also when its caller gives up. Calls on one target wait for each other, others do not.

pub mod error;
pub mod locks;
pub mod records;
pub mod refresh;
pub mod request;
pub mod restore;
pub mod settings;
pub mod stats;
pub mod steps;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millrace_daemon::shutdown::Tasks;
use tokio::time::Instant;

use crate::mount::device;
use crate::mount::stale::Health;
use crate::node_mounts::NodeMounts;
use crate::node_mounts::plan::{Folders, MountPlan};
use crate::node_mounts::slot::Lease;
use error::PublishError;
use locks::{Locked, Locks};
use records::{Record, Records};
use request::Publish;
use restore::Shown;
use steps::AtTarget;

/// How long an unpublish waits for another call on its target: kubelet comes again.
const UNPUBLISH_WAIT: Duration = Duration::from_secs(30);

/// What publishing needs.
#[derive(Debug)]
pub struct PublisherConfig {
    /// This node.
    pub node: String,
    /// Where things are.
    pub folders: Folders,
    /// How long a publish waits for workers and the mount process.
    pub wait: Duration,
    /// How often the workers of mounted Datasets are asked for their settings.
    pub refresh: Duration,
    /// The device that FUSE needs.
    pub fuse_device: PathBuf,
    /// Whether the kernel labels files by SELinux.
    pub has_selinux: bool,
    /// The tasks of the process.
    pub tasks: Tasks,
}

/// Publishes datasets at targets. Clones share everything.
#[derive(Debug, Clone)]
pub struct Publisher {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: PublisherConfig,
    mounts: NodeMounts,
    records: Records,
    locks: Locks,
    shown: Shown,
}

impl Publisher {
    /// A publisher that knows the records of a former one.
    pub fn new(config: PublisherConfig, mounts: NodeMounts, records: Records) -> Self {
        Self {
            inner: Arc::new(Inner {
                config,
                mounts,
                records,
                locks: Locks::default(),
                shown: Shown::default(),
            }),
        }
    }

    /// How many targets are published.
    pub fn published(&self) -> usize {
        self.inner.records.len()
    }

    /// Shows a dataset at a target.
    ///
    /// # Errors
    /// [`PublishError`]; then nothing is left of the attempt but what a repetition or an unpublish makes good.
    ///
    /// # Cancel safety
    /// It is carried out all the same.
    pub async fn publish(&self, request: Publish) -> Result<(), PublishError> {
        let publisher = self.clone();
        self.carry_out(async move { publisher.publish_now(request).await }).await
    }

    /// Takes a dataset away from a target.
    ///
    /// # Errors
    /// [`PublishError`]; a repetition goes on where this one stopped.
    ///
    /// # Cancel safety
    /// It is carried out all the same.
    pub async fn unpublish(&self, volume_id: String, target: PathBuf) -> Result<(), PublishError> {
        let publisher = self.clone();
        self.carry_out(async move { publisher.unpublish_now(&volume_id, target).await }).await
    }

    async fn carry_out<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, PublishError>> + Send + 'static,
    ) -> Result<T, PublishError> {
        let (answer, answers) = tokio::sync::oneshot::channel();
        self.inner.config.tasks.spawn("call on a volume", async move {
            // A caller that gave up does not listen any more.
            let _ = answer.send(call.await);
        });
        answers.await.unwrap_or(Err(PublishError::Stopping))
    }

    async fn publish_now(&self, request: Publish) -> Result<(), PublishError> {
        let wait = self.inner.config.wait;
        let deadline = Instant::now() + wait;
        let target = self.resolve(&request.target).await?;
        let locked = self.lock(&target, deadline, wait).await?;
        if self.is_shown(&locked, &request).await? {
            return Ok(());
        }
        self.require_fuse().await?;
        let plan = self.plan(&target, &request, deadline).await?;
        let lease = self.inner.mounts.lease(&plan, Some(&request.key)).await;
        let stop = self.inner.config.tasks.token();
        let ready = tokio::select! {
            ready = lease.ready(deadline) => ready,
            () = stop.cancelled() => return Err(PublishError::Stopping),
        };
        let dataset = request.dataset.full_name();
        let ready = ready.map_err(|trouble| PublishError::MountProcess { dataset, trouble })?;
        let Publish { volume_id, pod, .. } = request;
        // The plan of the process that runs, which an earlier call may have made.
        let record = Record { target, volume_id, plan: lease.slot().plan.clone(), pod };
        self.show(record, &lease, ready.generation).await?;
        drop(locked);
        Ok(())
    }

    async fn require_fuse(&self) -> Result<(), PublishError> {
        let PublisherConfig { fuse_device, node, .. } = &self.inner.config;
        let device = fuse_device.clone();
        // The kernel may load its module meanwhile.
        let opened = blocking(move || Ok(device::require(&device))).await?;
        opened.map_err(|source| PublishError::NoFuse { node: node.clone(), source })
    }

    /// Whether the target shows the volume already, so that there is nothing to do.
    async fn is_shown(&self, locked: &Locked, request: &Publish) -> Result<bool, PublishError> {
        let target = locked.target().to_owned();
        let record = self.inner.records.get(&target);
        if let Some(other) = record.as_ref().filter(|record| record.volume_id != request.volume_id) {
            return Err(PublishError::OtherVolume { target, other: other.volume_id.clone() });
        }
        blocking(move || match (steps::look(&target)?, record) {
            (AtTarget::Foreign(file_system), _) => Err(PublishError::Foreign { target, file_system }),
            (AtTarget::Ours(_), Some(_)) => Ok(steps::health(&target)? == Health::Answers),
            // What a former driver left without a record, or nothing.
            (AtTarget::Ours(_), None) | (AtTarget::Free, _) => Ok(false),
        })
        .await
    }

    /// What to mount: as before where the target had it already, else as a worker says.
    async fn plan(
        &self,
        target: &Path,
        request: &Publish,
        deadline: Instant,
    ) -> Result<MountPlan, PublishError> {
        if let Some(record) = self.inner.records.get(target) {
            return Ok(record.plan);
        }
        let stop = self.inner.config.tasks.token();
        let settings = tokio::select! {
            settings = settings::ask(&request.dataset, &request.key, &self.inner.config.node, deadline) => settings?,
            () = stop.cancelled() => return Err(PublishError::Stopping),
        };
        // Processes of the Dataset that run are told too.
        self.inner.mounts.set_cache_quota(&request.dataset.uid, settings.node_cache_quota_bytes).await;
        let request::Dataset { uid, workers, .. } = request.dataset.clone();
        // A kernel without SELinux refuses the option.
        let context = request.context.clone().filter(|_| self.inner.config.has_selinux);
        Ok(MountPlan::new(uid, request.dataset.full_name(), workers, context, &settings))
    }

    /// Writes a target down and makes it so.
    async fn show(&self, record: Record, lease: &Lease, generation: u64) -> Result<(), PublishError> {
        let (publisher, slot) = (self.clone(), Arc::clone(lease.slot()));
        blocking(move || {
            let Inner { records, config, .. } = &*publisher.inner;
            let target = record.target.clone();
            let point = config.folders.mount_point(&slot.plan.key);
            steps::require_alive(&point, &target, &slot.plan.dataset)?;
            let failed = |step| move |source| (step, source);
            let pod = record.pod.clone();
            records
                .put(record)
                .map_err(failed("write down"))
                .and_then(|()| slot.add_target(&target, pod).map_err(failed("list the pods")))
                .map_err(|(step, source)| steps::file_error(step, &target, source))
                .and_then(|()| steps::show(&point, &target))
                .map(|()| publisher.inner.shown.note(&target, generation))
                .inspect_err(|_| {
                    // As far as it goes: what stays is made good by the next call.
                    let _ = steps::hide(&target);
                    let _ = slot.remove_target(&target);
                    let _ = records.remove(&target);
                })
        })
        .await
    }

    async fn unpublish_now(&self, volume_id: &str, target: PathBuf) -> Result<(), PublishError> {
        let target = self.resolve(&target).await?;
        let locked = self.lock(&target, Instant::now() + UNPUBLISH_WAIT, UNPUBLISH_WAIT).await?;
        let record = self.inner.records.get(&target);
        if let Some(record) = record.as_ref().filter(|record| record.volume_id != volume_id) {
            // Kubelet knows what it wants gone; the target goes whatever is there.
            tracing::warn!(volume_id, other = record.volume_id, target_path = %target.display(), "unpublish names another volume than is there");
        }
        let publisher = self.clone();
        let done = blocking(move || {
            steps::hide(&target)?;
            let failed = |step| {
                let target = target.clone();
                move |source| steps::file_error(step, &target, source)
            };
            let slot = record.and_then(|record| publisher.inner.mounts.get(&record.plan.key));
            publisher.inner.records.remove(&target).map_err(failed("forget"))?;
            publisher.inner.shown.forget(&target);
            slot.map_or(Ok(()), |slot| slot.remove_target(&target)).map_err(failed("list the pods"))
        })
        .await;
        drop(locked);
        done
    }

    async fn resolve(&self, target: &Path) -> Result<PathBuf, PublishError> {
        let target = target.to_owned();
        blocking(move || steps::resolve(&target)).await
    }

    async fn lock(&self, target: &Path, deadline: Instant, waited: Duration) -> Result<Locked, PublishError> {
        let stop = self.inner.config.tasks.token();
        let locked = tokio::select! {
            locked = self.inner.locks.lock(target, deadline) => locked,
            () = stop.cancelled() => return Err(PublishError::Stopping),
        };
        locked.ok_or_else(|| PublishError::Busy { target: target.to_owned(), waited })
    }
}

/// Runs what blocks on a thread for it.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, PublishError> + Send + 'static,
) -> Result<T, PublishError> {
    // A panic ends the process by way of the task that waits here.
    tokio::task::spawn_blocking(call).await.unwrap_or(Err(PublishError::Stopping))
}
