//! How does a process notice what others did to a store that it has open?

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sidecar::MARK_UNUSED;
use crate::tier::Tier;
use crate::tiers::Tiers;

/// How long bytes of a file that another process removed stay allocated because this one holds it open.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Ends the sweeping thread when dropped, and waits for it, so that a store that was dropped has nothing open.
#[derive(Debug)]
pub(crate) struct Sweeper {
    alive: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.alive = None;
        if let Some(thread) = self.thread.take() {
            // A panic in it has been reported by the hook.
            let _ = thread.join();
        }
    }
}

/// Starts the thread that closes files which were removed by others. `None`, logged, where the system has no thread left.
pub(crate) fn sweep_often(tiers: &Arc<Tiers>) -> Option<Sweeper> {
    let (alive, gone) = sync_channel::<()>(0);
    let tiers: Weak<Tiers> = Arc::downgrade(tiers);
    let run = move || {
        while gone.recv_timeout(SWEEP_EVERY) == Err(RecvTimeoutError::Timeout) {
            let Some(tiers) = tiers.upgrade() else { return };
            tiers.visit(|tier| {
                tier.sweep();
                true
            });
        }
    };
    match std::thread::Builder::new().name("store-sweep".to_owned()).spawn(run) {
        Ok(thread) => Some(Sweeper { alive: Some(alive), thread: Some(thread) }),
        Err(error) => {
            tracing::warn!(error = %error, "start the thread that closes removed store files");
            None
        }
    }
}

impl Tier {
    /// Closes files that lost their names, and the usage record if it did; takes back marks that others gave to files
    /// in use here.
    pub(crate) fn sweep(&self) {
        for (open, is_in_use) in self.open_files.sweep() {
            if !open.is_linked() {
                self.open_files.remove(open.layout.file.content);
            } else if is_in_use && open.reread_mark(MARK_UNUSED).unwrap_or(false) {
                self.set_unused(&open, false);
            }
        }
        let mut usage = self.usage.lock();
        if usage.as_ref().is_some_and(|usage| !usage.is_linked()) {
            // Opened anew, and counted, by the next write.
            *usage = None;
        }
    }
}
