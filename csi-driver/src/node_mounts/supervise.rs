//! How does a mount process come to serve, and what happens when it dies, hangs, or is not needed any more?

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millrace_daemon::causes::with_causes;
use millrace_store::index_file::IndexFile;
use tokio_util::sync::CancellationToken;

use super::NodeMounts;
use super::plan::MountPlan;
use super::process::ADDRESSES_FILE;
use super::slot::{MountState, Ready, Slot, Usage};
use crate::driver_metrics::RestartReason;
use crate::files;
use crate::mount::error::MountError;
use crate::mount::mountinfo;
use crate::mount::stale::{self, Health};
use crate::mount::{bind, syscalls};

/// Deadline of each step at the mount point; a step takes microseconds unless something is wedged. Guess.
const STEP_DEADLINE: Duration = Duration::from_secs(10);

/// Deadline of one look at a mount that serves. Answered from memory by the mount process; guess.
const LOOK_DEADLINE: Duration = Duration::from_secs(5);

/// Time between two looks: a hung mount is seen within two of them.
const LOOK_INTERVAL: Duration = Duration::from_secs(15);

/// So many looks without an answer in a row, and the process is killed: three minutes and more, so that a machine that
/// was only starved or paused keeps its mounts, yet no pod hangs for ever.
const MOST_SILENT_LOOKS: u32 = 10;

/// First wait before a start after a failed one; doubles each time.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);

/// Longest wait between starts: well within the time that a publish waits.
const MAX_BACKOFF: Duration = Duration::from_secs(15);

/// How a run of a mount process ended.
enum Ended {
    /// Nobody needs it, or the driver stops.
    Stopped,
    /// It could not be started, or ended by itself.
    Died { trouble: String, has_served: bool, reason: RestartReason },
}

/// Keeps a mount process running for as long as somebody needs it, then takes everything of it away.
pub(super) async fn supervise(mounts: NodeMounts, slot: Arc<Slot>, token: CancellationToken) {
    let config = &mounts.inner.config;
    let key = &slot.plan.key;
    let (mut backoff, mut generation) = (FIRST_BACKOFF, 0);
    loop {
        let ended = run(&mounts, &slot, &mut generation, &token).await;
        let Ended::Died { trouble, has_served, reason } = ended else { break };
        config.metrics.count_restart(reason);
        config.mount_metrics.died(&slot.plan);
        tracing::warn!(dataset = slot.plan.dataset, uid = key.uid, version = %key.version, trouble, has_served, "a mount process ended");
        slot.state.send_replace(MountState::Starting(Some(trouble)));
        if has_served {
            backoff = FIRST_BACKOFF;
        }
        tokio::select! {
            () = tokio::time::sleep(backoff) => backoff = (backoff * 2).min(MAX_BACKOFF),
            () = slot.unused_for(config.idle) => if mounts.begin_stop(&slot) { break },
            () = token.cancelled() => break,
        }
    }
    config.mount_metrics.stopped(key);
    let is_orderly = !token.is_cancelled() || slot.is_unused();
    slot.state.send_replace(MountState::Stopping);
    if is_orderly {
        take_away(&mounts, &slot).await;
    }
    mounts.forget(&slot);
}

/// One life of the process.
async fn run(
    mounts: &NodeMounts,
    slot: &Arc<Slot>,
    generation: &mut u64,
    token: &CancellationToken,
) -> Ended {
    let config = &mounts.inner.config;
    let (plan, idle) = (&slot.plan, config.idle);
    let died = |trouble| Ended::Died { trouble, has_served: false, reason: RestartReason::Start };
    if let Err(trouble) = prepare(mounts, slot).await {
        return died(trouble);
    }
    let (cache, uid, wanted_bytes) = (config.cache.clone(), plan.key.uid.clone(), plan.cache_quota_bytes);
    let share = match blocking(move || Ok(cache.share(&uid, wanted_bytes))).await {
        Ok(share) => share,
        Err(trouble) => return died(trouble),
    };
    let mut process = match config.launch.start(plan, share.quota_bytes()) {
        Ok(process) => process,
        Err(error) => return died(format!("start {:?}: {error}", config.launch.program)),
    };
    // A start may take long, for an index may be large, and it ends by itself: it is not for want of a caller that it is ended.
    let ready = tokio::select! {
        ready = process.ready() => ready,
        () = token.cancelled() => {
            process.stop().await;
            return Ended::Stopped;
        }
    };
    if let Err(status) = ready {
        return died(process.last_words(status).await);
    }
    *generation += 1;
    if let Some(address) = process.admin() {
        config.mount_metrics.serves(plan, address);
    }
    forget_indexes(mounts, plan).await;
    let usage = usage(mounts, plan).await;
    slot.state.send_replace(MountState::Ready(Ready { generation: *generation, usage, is_silent: false }));
    mounts.inner.served.notify_one();
    tracing::info!(dataset = plan.dataset, uid = plan.key.uid, version = %plan.key.version, generation = *generation, "a mount process serves");
    let watched = tokio::select! {
        status = process.ended() => Watched::Ended(status),
        () = watch(mounts, slot) => Watched::Hung,
        () = unneeded(mounts, slot, idle) => Watched::Stop,
        () = token.cancelled() => Watched::Stop,
    };
    match watched {
        Watched::Stop => {
            if !token.is_cancelled() {
                config.mount_metrics.before_stop(&plan.key).await;
            }
            process.stop().await;
            Ended::Stopped
        }
        Watched::Ended(status) => {
            let trouble = process.last_words(status).await;
            Ended::Died { trouble, has_served: true, reason: RestartReason::Died }
        }
        Watched::Hung => {
            process.kill().await;
            let trouble = format!("gave no answer for {:?}, killed", LOOK_INTERVAL * MOST_SILENT_LOOKS);
            Ended::Died { trouble, has_served: true, reason: RestartReason::Hung }
        }
    }
}

enum Watched {
    Ended(std::process::ExitStatus),
    Hung,
    Stop,
}

/// Waits until it is decided that nobody needs the process.
async fn unneeded(mounts: &NodeMounts, slot: &Slot, idle: Duration) {
    loop {
        slot.unused_for(idle).await;
        if mounts.begin_stop(slot) {
            return;
        }
    }
}

/// Makes the folders, and takes away what a former process has left. Answers what is wrong.
async fn prepare(mounts: &NodeMounts, slot: &Arc<Slot>) -> Result<(), String> {
    let folders = mounts.inner.config.launch.folders.clone();
    let slot = Arc::clone(slot);
    blocking(move || {
        let key = &slot.plan.key;
        let (point, process) = (folders.mount_point(key), folders.process(key));
        let cache = folders.dataset_cache(&key.uid);
        clean(&point).map_err(|error| with_causes(&error))?;
        for folder in [&point, &process, &cache.join("indexes"), &cache.join("store")] {
            std::fs::create_dir_all(folder).map_err(|error| format!("create {folder:?}: {error}"))?;
        }
        // The one of a former process would be taken for the new one.
        files::remove(&process.join(ADDRESSES_FILE))
            .map_err(|error| format!("remove {process:?}/{ADDRESSES_FILE}: {error}"))?;
        slot.write_key(&folders.key_file(key)).map_err(|error| format!("write the data key: {error}"))?;
        slot.refresh_pods().map_err(|error| format!("write list of pods: {error}"))
    })
    .await
}

/// Takes away a mount whose process is not there any more, by force: whoever waits in it gets an error.
pub fn clean(point: &Path) -> Result<(), MountError> {
    let failed = |source| MountError::Inspect { point: point.to_owned(), source };
    if let Some(entry) = mountinfo::find(point).map_err(failed)? {
        stale::clean(point, entry.device, STEP_DEADLINE)?;
    }
    bind::detach_all(point, STEP_DEADLINE).map(drop)
}

/// Takes away the mount and the files of a process that has ended, as far as that goes.
async fn take_away(mounts: &NodeMounts, slot: &Arc<Slot>) {
    let folders = mounts.inner.config.launch.folders.clone();
    let own = Arc::clone(slot);
    let taken = blocking(move || {
        let key = &own.plan.key;
        let (point, process) = (folders.mount_point(key), folders.process(key));
        clean(&point).map_err(|error| with_causes(&error))?;
        let removed = |path: &Path, removed: std::io::Result<()>| {
            removed.map_err(|error| format!("remove {path:?}: {error}"))
        };
        removed(&point, files::remove_folder(&point))?;
        removed(&process, std::fs::remove_dir_all(&process))?;
        let key_file = folders.key_file(key);
        removed(&key_file, files::remove(&key_file))?;
        // Others of the Dataset may be there.
        let parents = [point.parent(), process.parent()];
        parents.into_iter().flatten().for_each(|parent| drop(std::fs::remove_dir(parent)));
        Ok(())
    })
    .await;
    if let Err(trouble) = taken {
        tracing::warn!(
            dataset = slot.plan.dataset,
            uid = slot.plan.key.uid,
            trouble,
            "not all of a mount process could be taken away"
        );
    }
}

/// Looks at the mount again and again; returns when it has been silent for too long.
async fn watch(mounts: &NodeMounts, slot: &Arc<Slot>) {
    let point = mounts.inner.config.launch.folders.mount_point(&slot.plan.key);
    let mut silent_looks = 0;
    while silent_looks < MOST_SILENT_LOOKS {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let point = point.clone();
        let health =
            blocking(move || stale::health(&point, LOOK_DEADLINE).map_err(|error| error.to_string())).await;
        let is_silent = matches!(health, Ok(Health::Silent));
        silent_looks = if is_silent { silent_looks + 1 } else { 0 };
        if silent_looks == 1 {
            tracing::warn!(dataset = slot.plan.dataset, target_path = %point_of(mounts, slot), "a mount gives no answer");
        }
        slot.state.send_if_modified(|state| match state {
            MountState::Ready(ready) if ready.is_silent != is_silent => {
                ready.is_silent = is_silent;
                true
            }
            _ => false,
        });
    }
}

fn point_of(mounts: &NodeMounts, slot: &Slot) -> String {
    mounts.inner.config.launch.folders.mount_point(&slot.plan.key).display().to_string()
}

/// Removes the indexes of versions that are not mounted any more: each refresh of a large dataset leaves one.
async fn forget_indexes(mounts: &NodeMounts, plan: &MountPlan) {
    let dir = mounts.inner.config.launch.folders.dataset_cache(&plan.key.uid).join("indexes");
    let mounted = mounts.versions(&plan.key.uid);
    let forgotten = blocking(move || {
        let known = IndexFile::list(&dir).map_err(|error| with_causes(&error))?;
        let mut unused = known.into_iter().filter(|version| !mounted.contains(version));
        unused.try_for_each(|version| IndexFile::remove(&dir, version)).map_err(|error| with_causes(&error))
    })
    .await;
    if let Err(trouble) = forgotten {
        tracing::warn!(dataset = plan.dataset, trouble, "indexes of former versions stay");
    }
}

/// Asks the mount how large the dataset is: once, for a version never changes.
async fn usage(mounts: &NodeMounts, plan: &MountPlan) -> Usage {
    let point = mounts.inner.config.launch.folders.mount_point(&plan.key);
    let size =
        blocking(move || syscalls::size(&point, LOOK_DEADLINE).map_err(|error| with_causes(&error))).await;
    size.map(|(bytes, inodes)| Usage { bytes, inodes }).unwrap_or_else(|trouble| {
        tracing::warn!(dataset = plan.dataset, trouble, "size of a mount is not known");
        Usage::default()
    })
}

/// Runs what blocks on a thread for it.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let joined = tokio::task::spawn_blocking(call).await;
    joined.unwrap_or_else(|_| Err("a step panicked; the log has the place".to_owned()))
}
