//! How is a program started, and how does it tell that it is ready or has failed?

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context;
use tokio::process::Command;
use tokio::time::Instant;

use super::logs;
use super::process::ProcessId;

/// How often it is looked whether a child has written its addresses: a start takes some 50 ms.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A program that was started by us. It outlives this value, and this process too where that is killed.
#[derive(Debug)]
pub struct Child {
    /// What it is to the user: a worker's name, or `mount`.
    pub name: String,
    /// Its process.
    pub process: ProcessId,
    /// When it was started.
    pub started: Instant,
    child: tokio::process::Child,
    log: PathBuf,
    log_from: u64,
}

/// Why a child does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It has ended.
    #[error("{name}: {said} ({status}; log: {log:?})")]
    Ended {
        /// Which.
        name: String,
        /// How.
        status: String,
        /// Its last words.
        said: String,
        /// Where the rest is.
        log: PathBuf,
    },
    /// It takes too long.
    #[error("{name}: not ready after {after:?}, {said} (log: {log:?})")]
    Late {
        /// Which.
        name: String,
        /// How long it was waited for.
        after: Duration,
        /// Its last words.
        said: String,
        /// Where the rest is.
        log: PathBuf,
    },
}

impl Child {
    /// Starts a program that logs into `log`. In a process group of its own, so that Ctrl-C reaches the supervisor alone, which
    /// ends the others in order.
    ///
    /// # Errors
    /// Names the program.
    pub fn spawn(name: &str, program: &Path, args: &[OsString], log: &Path) -> anyhow::Result<Self> {
        let file = logs::open(log)?;
        let log_from = logs::length(log);
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(file.try_clone().with_context(|| format!("open log {log:?}"))?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {program:?}"))?;
        let pid = child.id().unwrap_or_default();
        // One that has ended already is the process of nobody.
        let process = ProcessId::of(pid).unwrap_or(ProcessId { pid, start_ticks: 0 });
        let started = Instant::now();
        Ok(Self { name: name.to_owned(), process, started, child, log: log.to_owned(), log_from })
    }

    /// Waits until `look` finds what the child writes when it is ready.
    ///
    /// # Errors
    /// Where it ends before that, or is not ready after `deadline`; with its last words.
    pub async fn ready<T>(
        &mut self,
        deadline: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<T, ChildError> {
        let until = Instant::now() + deadline;
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            tokio::select! {
                status = self.child.wait() => return Err(self.ended(&status)),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if Instant::now() >= until {
                let (name, log) = (self.name.clone(), self.log.clone());
                return Err(ChildError::Late { name, after: deadline, said: self.said(), log });
            }
        }
    }

    /// Waits for its end and tells why. Cancel safe.
    pub async fn end(&mut self) -> ChildError {
        let status = self.child.wait().await;
        self.ended(&status)
    }

    fn ended(&self, status: &std::io::Result<ExitStatus>) -> ChildError {
        let status = match status {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        ChildError::Ended { name: self.name.clone(), status, said: self.said(), log: self.log.clone() }
    }

    fn said(&self) -> String {
        let words = logs::last_words(&self.log, self.log_from);
        if words.is_empty() { "no reason given".to_owned() } else { words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, log: &Path) -> Child {
        Child::spawn("x-0", Path::new("/bin/sh"), &["-c".into(), script.into()], log).unwrap()
    }

    #[tokio::test]
    async fn a_child_that_ends_is_told_with_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut child = shell("echo 'cache-worker: listen on data address: in use' >&2; exit 3", &log);
        let error = child.ready(Duration::from_secs(20), || None::<()>).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, ChildError::Ended { .. }));
        assert!(text.contains("x-0: listen on data address: in use (exit status: 3;"), "{text}");
    }

    #[tokio::test]
    async fn a_child_that_is_late_is_told_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = shell("exec sleep 60", &dir.path().join("log"));
        let error = child.ready(Duration::from_millis(50), || None::<()>).await.unwrap_err();
        assert!(matches!(error, ChildError::Late { .. }) && error.to_string().contains("no reason given"));
        assert!(child.process.is_alive());
        child.process.open().unwrap().signal(rustix::process::Signal::KILL);
        assert!(matches!(child.end().await, ChildError::Ended { .. }));
    }
}
