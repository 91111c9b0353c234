//! What becomes of published targets when their mount process starts again, in the same driver or a later one?
//!
//! Their mounts are dead: each is replaced by one of the new process. A container that starts after that sees the files
//! again; one that ran before keeps the dead mount in its own mount namespace, where nobody can reach it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_daemon::causes::with_causes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::records::Record;
use super::{Publisher, blocking, steps};
use crate::node_mounts::slot::MountState;
use steps::AtTarget;

/// How long a restore waits for a call that works at the target. Longer than any call takes.
const LOCK_WAIT: Duration = Duration::from_secs(180);

/// By which start of its mount process each target is shown.
#[derive(Debug, Default)]
pub struct Shown {
    /// The first and the last. Bounded by the targets that kubelet publishes.
    generations: Mutex<HashMap<PathBuf, (u64, u64)>>,
}

impl Shown {
    /// Notes that a target is shown by this start.
    pub fn note(&self, target: &Path, generation: u64) {
        let mut generations = self.generations.lock();
        generations.entry(target.to_owned()).or_insert((generation, generation)).1 = generation;
    }

    /// Forgets a target.
    pub fn forget(&self, target: &Path) {
        self.generations.lock().remove(target);
    }

    /// Whether a target has been shown by this start from the beginning.
    pub fn is_first(&self, target: &Path, generation: u64) -> bool {
        self.generations.lock().get(target) == Some(&(generation, generation))
    }

    /// Whether a target is shown by this start.
    pub fn is_last(&self, target: &Path, generation: u64) -> bool {
        self.generations.lock().get(target).is_some_and(|(_, last)| *last == generation)
    }
}

impl Publisher {
    /// Starts the mount processes of what a former driver had published. Records that cannot be made good are dropped: of
    /// targets whose folder is gone, or whose key is.
    pub async fn adopt(&self) {
        for record in self.inner.records.all() {
            let publisher = self.clone();
            let key_file = self.inner.config.folders.key_file(&record.plan.key);
            let target = record.target.clone();
            let is_void = blocking(move || {
                // A dead mount is not asked: it would fail, or hang.
                let is_gone = steps::look(&target)? == AtTarget::Free && !target.is_dir();
                let is_void = is_gone || !key_file.exists();
                if is_void {
                    // Kubelet publishes again or unpublishes; either way nothing of ours shall lie there.
                    steps::unmount(&target)?;
                    let removed = publisher.inner.records.remove(&target);
                    removed.map_err(|source| steps::file_error("forget", &target, source))?;
                }
                Ok(is_void)
            })
            .await;
            let target_path = record.target.display();
            match is_void {
                Ok(false) => {}
                Ok(true) => {
                    tracing::info!(%target_path, "a target of the former driver is dropped");
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%target_path, error = with_causes(&error), "a target of the former driver");
                    continue;
                }
            }
            // Its containers have seen another mount before.
            self.inner.shown.note(&record.target, 0);
            let lease = self.inner.mounts.lease(&record.plan, None).await;
            if let Err(error) = lease.slot().add_target(&record.target, record.pod.clone()) {
                // Its folder is made when the process starts, which writes the list too.
                tracing::debug!(%target_path, error = %error, "list the pods");
            }
        }
    }

    /// Shows anew what mount processes that started again have; ends with the driver.
    pub async fn restore_for_ever(self) {
        let token = self.inner.config.tasks.token();
        loop {
            tokio::select! {
                () = self.inner.mounts.served() => self.restore(),
                () = token.cancelled() => return,
            }
        }
    }

    /// Shows anew each target whose mount is not that of the process which serves now.
    fn restore(&self) {
        for record in self.inner.records.all() {
            let slot = self.inner.mounts.get(&record.plan.key);
            let state = slot.map(|slot| slot.state.borrow().clone());
            let Some(MountState::Ready(ready)) = state else { continue };
            if !self.inner.shown.is_last(&record.target, ready.generation) {
                let publisher = self.clone();
                // Each by itself: one that hangs is not to hold up the others.
                self.inner.config.tasks.spawn("restore of a target", async move {
                    publisher.restore_one(record, ready.generation).await;
                });
            }
        }
    }

    async fn restore_one(&self, record: Record, generation: u64) {
        let token = self.inner.config.tasks.token();
        let locked = tokio::select! {
            locked = self.inner.locks.lock(&record.target, Instant::now() + LOCK_WAIT) => locked,
            () = token.cancelled() => return,
        };
        // Another call may have made it good, or taken it away.
        let Some(locked) = locked else { return };
        if self.inner.records.get(&record.target).is_none()
            || self.inner.shown.is_last(&record.target, generation)
        {
            return;
        }
        let (target, publisher) = (record.target.clone(), self.clone());
        let point = self.inner.config.folders.mount_point(&record.plan.key);
        let shown = blocking(move || {
            let (there, wanted) = (steps::look(&target)?, steps::look(&point)?);
            let is_current =
                matches!((there, wanted), (AtTarget::Ours(one), AtTarget::Ours(other)) if one == other);
            if !is_current {
                steps::show(&point, &target)?;
            }
            publisher.inner.shown.note(&target, generation);
            Ok(is_current)
        })
        .await;
        drop(locked);
        let (dataset, target_path) = (&record.plan.dataset, record.target.display());
        match shown {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(dataset, %target_path, pod = ?record.pod, "a pod's mount was replaced: its containers that run see a dead one until they are started again");
            }
            Err(error) => {
                tracing::error!(dataset, %target_path, error = with_causes(&error), "a pod's mount could not be replaced");
            }
        }
    }
}
