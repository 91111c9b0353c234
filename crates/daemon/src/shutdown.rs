//! When does this process end, and do all its tasks end with it?
//!
//! A process ends on SIGTERM or SIGINT, when an essential task fails, or when any task panics. Its tasks see the token
//! cancelled and have [`GRACE`] to finish; those that do not are named.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long tasks have to finish after the token is cancelled. From the requirement that a worker stops within 5 s of
/// SIGTERM; half a second is left for the rest of the process.
pub const GRACE: Duration = Duration::from_millis(4500);

/// The cause of a task's failure.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a process ended otherwise than asked.
#[derive(Debug, thiserror::Error)]
pub enum ShutdownError {
    /// The kernel refused a signal handler.
    #[error("listen for {signal}")]
    Listen {
        /// The signal's name.
        signal: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// An essential task ended with an error.
    #[error("task {task:?}")]
    Task {
        /// The task's name.
        task: &'static str,
        /// What the task says.
        source: Cause,
    },
    /// A task panicked; the log has the place and message.
    #[error("task {task:?} panicked")]
    Panicked {
        /// The task's name.
        task: &'static str,
    },
    /// Tasks still ran at the end of the grace period.
    #[error("tasks {tasks:?} did not stop within {grace:?}")]
    StillRunning {
        /// Their names, sorted.
        tasks: Vec<&'static str>,
        /// How long they had.
        grace: Duration,
    },
}

/// The tasks of a process, and the token that ends them. Clones share both.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    token: CancellationToken,
    tracker: TaskTracker,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// How many tasks of each name run. Bounded by the names in the source.
    running: Mutex<BTreeMap<&'static str, usize>>,
    /// The first failure; later ones are consequences, and logged.
    failure: Mutex<Option<ShutdownError>>,
    failed: Notify,
}

impl Tasks {
    /// Returns no tasks, not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// The token that every task must obey: cancelled when the process is to end.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Runs a task. Its panic ends the process.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_essential(name, async move {
            task.await;
            Ok(())
        });
    }

    /// Runs a task without which the process is of no use: its error or panic ends the process, its success does not.
    pub fn spawn_essential(
        &self,
        name: &'static str,
        task: impl Future<Output = Result<(), Cause>> + Send + 'static,
    ) {
        *self.shared.running.lock().entry(name).or_insert(0) += 1;
        let running = Running { name, shared: self.shared.clone(), ended: false };
        self.tracker.spawn(async move {
            let mut running = running;
            let result = task.await;
            running.ended = true;
            if let Err(source) = result {
                running.shared.fail(ShutdownError::Task { task: name, source });
            }
        });
    }

    /// Waits until the process is to end (a signal, a failed task, or the token cancelled by somebody), cancels the token,
    /// and waits up to [`GRACE`] for the tasks. A second signal ends the wait at once.
    ///
    /// # Errors
    /// The first failure of a task, or [`ShutdownError::StillRunning`].
    pub async fn run_until_stopped(self) -> Result<(), ShutdownError> {
        let mut signals = Signals::listen()?;
        tokio::select! {
            name = signals.next() => tracing::info!(signal = name, "stopping"),
            () = self.shared.failed.notified() => tracing::info!("stopping after a failed task"),
            () = self.token.cancelled() => tracing::info!("stopping"),
        }
        tokio::select! {
            result = self.stop(GRACE) => result,
            name = signals.next() => {
                tracing::warn!(signal = name, "stopping at once");
                Err(ShutdownError::StillRunning { tasks: self.running(), grace: Duration::ZERO })
            }
        }
    }

    /// Cancels the token and waits up to `grace` for the tasks.
    ///
    /// # Errors
    /// The first failure of a task, or [`ShutdownError::StillRunning`].
    pub async fn stop(&self, grace: Duration) -> Result<(), ShutdownError> {
        self.token.cancel();
        self.tracker.close();
        let in_time = tokio::time::timeout(grace, self.tracker.wait()).await.is_ok();
        if let Some(failure) = self.shared.failure.lock().take() {
            return Err(failure);
        }
        if in_time { Ok(()) } else { Err(ShutdownError::StillRunning { tasks: self.running(), grace }) }
    }

    /// The names of the tasks that run, sorted.
    pub fn running(&self) -> Vec<&'static str> {
        self.shared.running.lock().keys().copied().collect()
    }
}

impl Shared {
    fn fail(&self, failure: ShutdownError) {
        let mut first = self.failure.lock();
        if first.is_none() {
            *first = Some(failure);
        } else {
            tracing::error!(error = %failure, "another task failed");
        }
        self.failed.notify_one();
    }
}

/// Counts one task as running; dropped without `ended` while unwinding, it is a panic.
struct Running {
    name: &'static str,
    shared: Arc<Shared>,
    ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut running = self.shared.running.lock();
        if let Some(count) = running.get_mut(self.name) {
            *count -= 1;
            if *count == 0 {
                running.remove(self.name);
            }
        }
        drop(running);
        if !self.ended && std::thread::panicking() {
            self.shared.fail(ShutdownError::Panicked { task: self.name });
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self, ShutdownError> {
        let listen =
            |kind, name| signal(kind).map_err(|source| ShutdownError::Listen { signal: name, source });
        Ok(Self {
            terminate: listen(SignalKind::terminate(), "SIGTERM")?,
            interrupt: listen(SignalKind::interrupt(), "SIGINT")?,
        })
    }

    /// Waits for a signal and returns its name. Cancel safe.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tasks_that_obey_the_token_stop_cleanly() {
        let tasks = Tasks::new();
        let token = tasks.token();
        tasks.spawn("obedient", async move { token.cancelled().await });
        assert_eq!(tasks.running(), ["obedient"]);
        tasks.stop(GRACE).await.unwrap();
        assert!(tasks.running().is_empty());
    }

    #[tokio::test]
    async fn a_task_that_ignores_the_token_is_named() {
        let tasks = Tasks::new();
        tasks.spawn("stubborn", std::future::pending());
        let error = tasks.stop(Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(error.to_string(), "tasks [\"stubborn\"] did not stop within 20ms");
    }

    #[tokio::test]
    async fn a_panicking_task_ends_the_process_and_the_others_are_stopped() {
        let tasks = Tasks::new();
        let token = tasks.token();
        tasks.spawn("other", async move { token.cancelled().await });
        tasks.spawn("broken", async { panic!("for the test") });
        let error = tasks.run_until_stopped().await.unwrap_err();
        assert_eq!(error.to_string(), "task \"broken\" panicked");
    }

    #[tokio::test]
    async fn an_essential_task_that_fails_ends_the_process_with_its_error() {
        let tasks = Tasks::new();
        tasks.spawn_essential("port", async { Err("address in use".into()) });
        let error = tasks.run_until_stopped().await.unwrap_err();
        assert!(
            matches!(&error, ShutdownError::Task { task: "port", source } if source.to_string() == "address in use")
        );
    }

    #[tokio::test]
    async fn sigterm_cancels_the_token() {
        let tasks = Tasks::new();
        let token = tasks.token();
        // The default action of SIGTERM would end the test: the handler must be there before the signal is.
        let _keep = signal(SignalKind::terminate()).unwrap();
        let ready = tokio::spawn(tasks.run_until_stopped());
        tokio::task::yield_now().await;
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
        token.cancelled().await;
        ready.await.unwrap().unwrap();
    }
}
