//! What happens where no worker has the index of the version in use any more?

use std::time::Duration;

use anyhow::Context;
use millrace_control::proto;
use rustix::process::Signal;
use tokio::time::Instant;

use super::follow::Follow;
use super::index;
use super::start::System;

/// How long no worker may have the index before it is made again, where all have said so: one may be about to tell that it
/// has it.
const LOST: Duration = Duration::from_secs(2);

/// The same where some say nothing: one of them may have it, and be starting.
const LOST_MAYBE: Duration = Duration::from_secs(30);

/// After a listing that has failed.
const PAUSE: Duration = Duration::from_secs(10);

/// Has the index made again whenever it is lost.
pub async fn keep(system: &System) {
    let mut follow = Follow::new(&system.folder, &system.identity.control_key, system.run().workers.len());
    let mut since = None;
    loop {
        let states = follow.now();
        let patience = system.run().version.and_then(|version| patience(&states, &version));
        let Some(patience) = patience else {
            since = None;
            follow.changed().await;
            continue;
        };
        let until = *since.get_or_insert_with(Instant::now) + patience;
        if Instant::now() < until {
            tokio::select! {
                () = follow.changed() => {}
                () = tokio::time::sleep_until(until) => {}
            }
            continue;
        }
        let first = states.iter().position(Option::is_some);
        tracing::warn!("no worker has the index any more, listing again");
        match make_again(system, first.unwrap_or_default()).await {
            Ok(()) => tracing::info!("the index is there again"),
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "index not made, trying again");
                tokio::time::sleep(PAUSE).await;
            }
        }
        since = None;
    }
}

/// How long to wait for the index before it counts as lost; `None` where it is there, or nobody could make it.
fn patience(states: &[Option<proto::WorkerStatus>], version: &str) -> Option<Duration> {
    let mut known = states.iter().flatten().flat_map(|worker| &worker.versions);
    let is_there = known.any(|known| known.version == version && known.index_ready);
    match states.iter().flatten().count() {
        0 => None,
        _ if is_there => None,
        talking if talking == states.len() => Some(LOST),
        _ => Some(LOST_MAYBE),
    }
}

async fn make_again(system: &System, at: usize) -> anyhow::Result<()> {
    let run = system.run();
    let worker = run.workers.get(at).context("no such worker")?;
    let version = index::make_again(system, worker).await?;
    if run.version.as_ref() == Some(&version.id) {
        return system.use_version(&version.id).await;
    }
    // The bucket has changed meanwhile: what the mount shows can no longer be read, so it is mounted again.
    tracing::warn!(version = version.id, "the buckets have changed since, mounting the version of now");
    system.take_up(&version.id).await?;
    if let Some(mount) = system.run().mount.and_then(|mount| mount.open()) {
        mount.signal(Signal::TERM);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(index_ready: bool) -> Option<proto::WorkerStatus> {
        let version = proto::VersionStatus { version: "v".into(), index_ready, ..Default::default() };
        Some(proto::WorkerStatus { versions: vec![version], ..Default::default() })
    }

    #[test]
    fn an_index_is_lost_where_nobody_has_it_and_later_where_some_are_silent() {
        assert_eq!(patience(&[worker(false), worker(false)], "v"), Some(LOST));
        assert_eq!(patience(&[worker(false), worker(true)], "v"), None);
        assert_eq!(patience(&[worker(false), None], "v"), Some(LOST_MAYBE));
        assert_eq!(patience(&[worker(true), None], "v"), None);
        assert_eq!(patience(&[None, None], "v"), None, "nobody could make it");
        assert_eq!(patience(&[worker(true)], "another"), Some(LOST));
    }
}
