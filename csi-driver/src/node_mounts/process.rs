//! How is one mount process started, known to be ready, and ended?

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use millrace_daemon::logging::{LogArgs, LogFormat};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, Command};
use tokio::task::JoinHandle;

use super::plan::{Folders, MountPlan};
use crate::node_cache::GRANT_FILE;
use crate::program::NAME;

/// How often the file that says "ready" is looked for.
const POLL: Duration = Duration::from_millis(20);

/// How long a process that was asked to stop has before it is killed: it unmounts in milliseconds unless it is wedged. Well
/// within what the driver itself has.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// How much of what a process said last is kept, bytes: its parting words are one line.
const TAIL_BYTES: usize = 4096;

/// What every mount process of this node is told.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Where things are.
    pub folders: Folders,
    /// This node.
    pub node: String,
    /// Kubelet's folder of pods.
    pub pods_dir: PathBuf,
    /// How to log.
    pub log: LogArgs,
}

/// A running mount process; killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Open for as long as this process lives; the mount process ends with it.
    _life: Option<ChildStdin>,
    addresses: PathBuf,
    words: Arc<Mutex<Vec<u8>>>,
    relay: JoinHandle<()>,
}

impl Launch {
    /// The arguments of the mount process for `plan`.
    fn arguments(&self, plan: &MountPlan, quota_bytes: u64) -> Vec<OsString> {
        let MountPlan { key, dataset, workers, ownership, cache_quota_bytes: _, mode } = plan;
        let (process, cache) = (self.folders.process(key), self.folders.dataset_cache(&key.uid));
        let format = match self.log.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        let path = PathBuf::into_os_string;
        let mut arguments: Vec<(&str, OsString)> = vec![
            ("--dataset", dataset.into()),
            ("--version", key.version.to_string().into()),
            ("--mount-point", path(self.folders.mount_point(key))),
            ("--workers-service", workers.into()),
            ("--data-key-file", path(self.folders.key_file(key))),
            ("--index-dir", path(cache.join("indexes"))),
            ("--node-store", path(cache.join("store"))),
            ("--node-store-quota", quota_bytes.to_string().into()),
            ("--node-store-quota-file", path(cache.join(GRANT_FILE))),
            ("--kubelet-pods-dir", path(self.pods_dir.clone())),
            ("--uid", ownership.uid.to_string().into()),
            ("--gid", ownership.gid.to_string().into()),
            ("--file-mode", format!("{:04o}", ownership.file_mode).into()),
            ("--dir-mode", format!("{:04o}", ownership.dir_mode).into()),
            ("--mode", mode.name().into()),
            ("--node-name", self.node.clone().into()),
            ("--pods-file", path(process.join(PODS_FILE))),
            ("--addresses-file", path(process.join(ADDRESSES_FILE))),
            ("--admin-address", "127.0.0.1:0".into()),
            ("--log", self.log.log.clone().into()),
            ("--log-format", format.into()),
        ];
        if let Some(context) = &key.context {
            arguments.push(("--selinux-context", context.into()));
        }
        let flat = arguments.into_iter().flat_map(|(name, value)| [OsString::from(name), value]);
        ["mount".into(), "--end-with-stdin".into()].into_iter().chain(flat).collect()
    }

    /// Starts a mount process. The folders and files that it is told of are there.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(&self, plan: &MountPlan, quota_bytes: u64) -> io::Result<Process> {
        let mut command = Command::new(&self.program);
        // By name: the file may be that of a program which is this one only when it is called so.
        command.arg0(NAME).args(self.arguments(plan, quota_bytes));
        // What the driver is told by its environment is not meant for the mount process.
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MILLRACE_"))
        {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let words = Arc::new(Mutex::new(Vec::new()));
        let output = child.stderr.take().ok_or_else(|| io::Error::other("no pipe to the mount process"))?;
        let (output, own) = (File::from(output.into_owned_fd()?), Arc::clone(&words));
        let relay = tokio::task::spawn_blocking(move || relay(output, &own));
        // Taken, for waiting for the child would close it.
        let life = child.stdin.take();
        let addresses = self.folders.process(&plan.key).join(ADDRESSES_FILE);
        Ok(Process { child, _life: life, addresses, words, relay })
    }
}

/// Name of the file that lists the pods.
pub const PODS_FILE: &str = "pods.json";

/// Name of the file by which a mount process says that it serves: `{"admin", "pid"}`.
pub const ADDRESSES_FILE: &str = "addresses.json";

impl Process {
    /// Its process id; `None` after its end.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Where it tells its metrics, once it serves.
    pub fn admin(&self) -> Option<SocketAddr> {
        content_of(&self.addresses)?["admin"].as_str()?.parse().ok()
    }

    /// Waits until it serves, or ends. Cancel safe.
    pub async fn ready(&mut self) -> Result<(), ExitStatus> {
        loop {
            if self.pid().is_some_and(|pid| pid_in(&self.addresses) == Some(pid)) {
                return Ok(());
            }
            tokio::select! {
                // A child that cannot be waited for is as good as gone.
                status = self.child.wait() => return Err(status.unwrap_or_default()),
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }

    /// Waits for its end. Cancel safe.
    pub async fn ended(&mut self) -> ExitStatus {
        self.child.wait().await.unwrap_or_default()
    }

    /// Its last words after its end: the line by which it says what went wrong, or how it ended.
    pub async fn last_words(self, status: ExitStatus) -> String {
        let Self { words, mut relay, .. } = self;
        // A grandchild could keep the pipe open; there is none, but nobody shall wait for it.
        let _ = tokio::time::timeout(Duration::from_secs(1), &mut relay).await;
        let words = String::from_utf8_lossy(&words.lock()).into_owned();
        let prefix = "csi-driver: ";
        match words.lines().rev().find_map(|line| line.strip_prefix(prefix)) {
            Some(line) => line.to_owned(),
            None => format!("the mount process ended ({status})"),
        }
    }

    /// Asks it to end, and kills it where it does not.
    pub async fn stop(mut self) {
        signal(self.pid(), Signal::TERM);
        if tokio::time::timeout(STOP_GRACE, self.child.wait()).await.is_err() {
            self.kill().await;
        }
    }

    /// Kills it and waits for its end.
    pub async fn kill(&mut self) {
        // It has ended by itself otherwise.
        let _ = self.child.kill().await;
    }
}

fn signal(pid: Option<u32>, signal: Signal) {
    if let Some(pid) = pid.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        // It has ended by itself otherwise.
        let _ = kill_process(pid, signal);
    }
}

/// The process that wrote an addresses file.
pub fn pid_in(addresses: &Path) -> Option<u32> {
    u32::try_from(content_of(addresses)?["pid"].as_u64()?).ok()
}

fn content_of(addresses: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(addresses).ok()?).ok()
}

/// Passes on what a mount process logs, whole lines at a time, and keeps the last of it. Blocks until the process ends.
fn relay(mut from: File, words: &Mutex<Vec<u8>>) {
    let (mut buffer, mut line) = (vec![0; 8192], Vec::new());
    loop {
        let read = from.read(&mut buffer).unwrap_or(0);
        line.extend_from_slice(&buffer[..read]);
        let whole = match line.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            // The end, or a line longer than anybody writes.
            None if read == 0 || line.len() > 1 << 16 => line.len(),
            None => continue,
        };
        let lines: Vec<u8> = line.drain(..whole).collect();
        keep_tail(&mut words.lock(), &lines);
        // Nobody is left to tell where standard error is closed.
        let _ = io::stderr().write_all(&lines);
        if read == 0 {
            return;
        }
    }
}

fn keep_tail(tail: &mut Vec<u8>, more: &[u8]) {
    tail.extend_from_slice(more);
    let surplus = tail.len().saturating_sub(TAIL_BYTES);
    tail.drain(..surplus);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_what_was_said_is_kept() {
        let mut tail = Vec::new();
        for _ in 0..1000 {
            keep_tail(&mut tail, b"many words\n");
        }
        keep_tail(&mut tail, b"csi-driver: last\n");
        assert_eq!(tail.len(), TAIL_BYTES);
        assert!(tail.ends_with(b"csi-driver: last\n"));
    }
}
