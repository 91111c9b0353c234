//! How does a Dataset run in the foreground, from start to end?

use std::sync::Arc;

use anyhow::Context;

use super::clean::clean;
use super::folder::{self, Root};
use super::start::System;
use super::{prepare, summary, supervise};
use crate::args::UpArgs;

/// Runs until Ctrl-C, SIGTERM or `local down`; whatever ends it, nothing is left running or mounted.
///
/// # Errors
/// What is in the way of the start.
pub async fn up(root: &Root, args: &UpArgs, log_filter: &str) -> anyhow::Result<()> {
    let stop = crate::signals::stop()?;
    let (root, owned, log_filter) = (root.clone(), args.clone(), log_filter.to_owned());
    let prepare = move || prepare::prepare(&root, &owned, &log_filter);
    let (system, lock) = tokio::task::spawn_blocking(prepare).await.context("prepare")??;
    let system = Arc::new(system);
    let ended = run(&system, args, &stop).await;
    if stop.is_cancelled() {
        eprintln!("stopping");
    }
    let cleaned = tokio::task::spawn_blocking(move || {
        let cleaned = clean(&system.folder);
        if let Ok(found) = &cleaned {
            tracing::debug!(?found, "stopped");
        }
        lock.release(&system.folder.lock_file());
        cleaned
    });
    let cleaned = cleaned.await.context("stop")?;
    ended.and(cleaned.map(|_| ()))
}

async fn run(
    system: &Arc<System>,
    args: &UpArgs,
    stop: &tokio_util::sync::CancellationToken,
) -> anyhow::Result<()> {
    // Children are written down as they are started, so that a start may be left at any point.
    let children = tokio::select! {
        children = system.start() => children?,
        () = stop.cancelled() => return Ok(()),
    };
    crate::exit::print(&summary::text(system)?)?;
    if let Some(file) = &args.ready_file {
        let run = system.run();
        let ready = serde_json::json!({
            "mount": run.mount_point, "version": run.version, "pid": std::process::id(),
        });
        folder::write_private(file, ready.to_string().as_bytes()).context("--ready-file")?;
    }
    supervise::supervise(Arc::clone(system), children, stop).await
}
