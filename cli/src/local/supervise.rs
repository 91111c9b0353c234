//! What happens to a child that dies?

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use millrace_control::warm_up::{self, Phase};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::child::Child;
use super::follow::Follow;
use super::lost_index;
use super::progress::{Progress, warm_up_text};
use super::start::{Children, System};

/// Before a child is started again: at first at once for its readers' sake, then so rarely that it costs nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A child that lived so long died of something new.
const LIVED: Duration = Duration::from_secs(30);

/// Keeps all children alive until told to stop, and shows how far the warm-up is.
///
/// # Errors
/// Where a task of ours panics.
pub async fn supervise(
    system: Arc<System>,
    children: Children,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let Children { workers, mount } = children;
    let mut tasks = JoinSet::new();
    for (at, child) in workers.into_iter().enumerate() {
        let system = Arc::clone(&system);
        tasks.spawn(async move { keep_worker(&system, at, child).await });
    }
    tasks.spawn({
        let system = Arc::clone(&system);
        async move { keep_mount(&system, mount).await }
    });
    tasks.spawn({
        let system = Arc::clone(&system);
        async move { lost_index::keep(&system).await }
    });
    tasks.spawn(async move { show_warm_up(&system).await });
    let ended = loop {
        tokio::select! {
            () = stop.cancelled() => break Ok(()),
            ended = tasks.join_next() => match ended {
                Some(Err(error)) => break Err(anyhow!(error).context("supervise")),
                Some(Ok(())) => {}
                None => break Ok(()),
            },
        }
    };
    // Only after that is nobody left who could start one more.
    tasks.shutdown().await;
    ended
}

async fn keep_worker(system: &System, at: usize, mut child: Child) {
    let mut pause = FIRST_PAUSE;
    loop {
        let why = child.end().await;
        if child.started.elapsed() > LIVED {
            pause = FIRST_PAUSE;
        }
        tracing::warn!(worker = child.name, error = %why, "worker ended, starting it again");
        // Its former ports, so that nobody has to learn new ones; free ones where those are taken.
        let mut former = system.run().workers.get(at).and_then(|worker| worker.addresses.clone());
        child = loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            match start_worker(system, at, former.as_ref()).await {
                Ok(child) => break child,
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "worker not started, trying again");
                    former = None;
                }
            }
        };
        tracing::info!(worker = child.name, "worker serves again");
    }
}

async fn start_worker(
    system: &System,
    at: usize,
    former: Option<&super::addresses::Addresses>,
) -> anyhow::Result<Child> {
    let mut child = system.spawn_worker(at, former)?;
    if let Err(error) = system.await_worker(at, &mut child).await {
        kill(&mut child).await;
        return Err(error);
    }
    // It has kept both, but may have been down when they changed.
    let told = async {
        system.publish_membership().await?;
        let run = system.run();
        let worker = run.workers.get(at).context("no such worker")?;
        if let Some(version) = &run.version {
            system.worker_uses(worker, version).await?;
        }
        anyhow::Ok(())
    };
    if let Err(error) = told.await {
        tracing::warn!(worker = child.name, error = format!("{error:#}"), "worker not told all");
    }
    Ok(child)
}

async fn keep_mount(system: &System, mut child: Child) {
    let mut pause = FIRST_PAUSE;
    loop {
        let why = child.end().await;
        if child.started.elapsed() > LIVED {
            pause = FIRST_PAUSE;
        }
        tracing::warn!(error = %why, "mount ended, mounting again");
        child = loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            match start_mount(system).await {
                Ok(child) => break child,
                Err(error) => tracing::warn!(error = format!("{error:#}"), "not mounted, trying again"),
            }
        };
        tracing::info!(mount_point = %system.plan.mount_point.display(), "mounted again");
    }
}

async fn start_mount(system: &System) -> anyhow::Result<Child> {
    let version = system.run().version.context("no version")?;
    let mut child = system.spawn_mount(&version)?;
    if let Err(error) = system.await_mount(&mut child).await {
        kill(&mut child).await;
        return Err(error.into());
    }
    Ok(child)
}

/// One that is late must not come in the way of its successor.
async fn kill(child: &mut Child) {
    if let Some(process) = child.process.open() {
        process.signal(rustix::process::Signal::KILL);
        child.end().await;
    }
}

/// Shows the warm-up until its end.
async fn show_warm_up(system: &System) {
    let run = system.run();
    let Some(version) = run.version else { return };
    let mut follow = Follow::new(&system.folder, &system.identity.control_key, run.workers.len());
    let mut progress = None;
    loop {
        let states = follow.now();
        if states.iter().all(Option::is_some) {
            let now = warm_up::merge(states.iter().map(Option::as_ref), &version);
            match now.phase {
                Phase::Idle => {}
                Phase::Running => progress.get_or_insert_with(|| Progress::new("warm-up")).warm_up(&now),
                Phase::Done | Phase::Full | Phase::Stopped => {
                    let progress = progress.unwrap_or_else(|| Progress::new("warm-up"));
                    progress.finish(&format!("warm-up {}: {}", end_text(now.phase), warm_up_text(&now, 0)));
                    return;
                }
            }
        }
        follow.changed().await;
    }
}

/// How a warm-up has ended, in words.
pub fn end_text(phase: Phase) -> &'static str {
    match phase {
        Phase::Idle => "not started",
        Phase::Running => "running",
        Phase::Done => "done",
        Phase::Full => "ended, the cache is full",
        Phase::Stopped => "stopped",
    }
}
