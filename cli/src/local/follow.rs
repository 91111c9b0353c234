//! What do the workers say from now on?

use std::time::Duration;

use millrace_api::keys::Key;
use millrace_control::proto;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::ask;
use super::folder::Folder;
use super::run_file::Run;

/// How long a worker that does not answer is left alone: it may be starting.
const ASK_AGAIN: Duration = Duration::from_millis(300);

/// The states of all workers, kept up to date until this is dropped.
#[derive(Debug)]
pub struct Follow {
    seen: watch::Receiver<Vec<Option<proto::WorkerStatus>>>,
    _tasks: JoinSet<()>,
}

impl Follow {
    /// Follows the workers of a running system, also over their restarts.
    pub fn new(folder: &Folder, key: &Key, workers: usize) -> Self {
        let (sender, seen) = watch::channel(vec![None; workers]);
        let mut tasks = JoinSet::new();
        for at in 0..workers {
            let (folder, key, sender) = (folder.clone(), key.clone(), sender.clone());
            tasks.spawn(async move {
                loop {
                    // Whatever goes wrong, the next look may find the worker elsewhere.
                    let _ = follow(&folder, &key, at, &sender).await;
                    put(&sender, at, None);
                    tokio::time::sleep(ASK_AGAIN).await;
                }
            });
        }
        Self { seen, _tasks: tasks }
    }

    /// The states now; `None` for a worker that does not answer.
    pub fn now(&self) -> Vec<Option<proto::WorkerStatus>> {
        self.seen.borrow().clone()
    }

    /// Waits for a change. Cancel safe.
    pub async fn changed(&mut self) {
        // The tasks that hold the other side end with this value only.
        let _ = self.seen.changed().await;
    }
}

async fn follow(
    folder: &Folder,
    key: &Key,
    at: usize,
    sender: &watch::Sender<Vec<Option<proto::WorkerStatus>>>,
) -> anyhow::Result<()> {
    let Some(run) = Run::read(folder)? else { return Ok(()) };
    let Some(worker) = run.workers.get(at) else { return Ok(()) };
    let mut stream = ask::worker(worker, key)?.status(proto::StatusRequest {}).await?.into_inner();
    while let Some(status) = stream.message().await? {
        put(sender, at, Some(status));
    }
    Ok(())
}

fn put(
    sender: &watch::Sender<Vec<Option<proto::WorkerStatus>>>,
    at: usize,
    status: Option<proto::WorkerStatus>,
) {
    sender.send_if_modified(|all| match all.get_mut(at) {
        Some(place) if *place != status => {
            *place = status;
            true
        }
        _ => false,
    });
}
