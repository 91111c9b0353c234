//! How does a mount process come up, and surely go with its mount?

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::mount::UnmountFlags;
use serde::Deserialize;
use tempfile::TempDir;

use super::cgroup::Cgroup;
use super::child::Program;
use super::metrics_page;
use super::millrace::{Workers, log_filter};
use crate::lab::{Lab, program};

/// For the mount to be there.
const START: Duration = Duration::from_secs(20);

/// Where and how much the mount keeps.
#[derive(Debug, Clone)]
pub struct NodeStore {
    /// The folder.
    pub dir: PathBuf,
    /// Most bytes.
    pub quota_bytes: u64,
}

/// A mount and its process. Both end with this value.
#[derive(Debug)]
pub struct Mounted {
    /// The process.
    pub program: Program,
    /// Address of its admin port.
    pub admin: String,
    point: TempDir,
}

#[derive(Deserialize)]
struct Addresses {
    admin: String,
}

impl Mounted {
    /// Mounts the version that the workers serve.
    ///
    /// # Errors
    /// Where there is no mount in the end, with what the process logged.
    pub fn start(
        lab: &Lab,
        workers: &Workers,
        store: Option<&NodeStore>,
        cgroup: Option<&Cgroup>,
    ) -> Result<Self> {
        Self::start_by(lab, workers, store, |program| match cgroup {
            Some(group) => group.command(program),
            None => Command::new(program),
        })
    }

    /// The same by a command that starts the program it is given.
    ///
    /// # Errors
    /// As [`Mounted::start`].
    pub fn start_by(
        lab: &Lab,
        workers: &Workers,
        store: Option<&NodeStore>,
        command: impl FnOnce(&Path) -> Command,
    ) -> Result<Self> {
        let point = lab.disk_dir("mount")?;
        let dir = workers.dir.path();
        let name = point.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (addresses, log) = (dir.join(format!("{name}.json")), dir.join(format!("{name}.log")));
        let mut command = command(&program("csi-driver")?);
        command
            .args(["mount", "--dataset", "bench", "--version", &workers.made.version, "--log", &log_filter()])
            // One that announces itself is connected to every worker from the start, as in a cluster.
            .args(["--node-name", "bench"])
            .arg("--mount-point")
            .arg(point.path())
            .arg("--membership-file")
            .arg(dir.join("membership.json"))
            .arg("--data-key-file")
            .arg(dir.join("data.key"))
            .arg("--index-dir")
            .arg(dir.join("mount-indexes"))
            .arg("--addresses-file")
            .arg(&addresses)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if let Some(NodeStore { dir, quota_bytes }) = store {
            command.arg("--node-store").arg(dir).args(["--node-store-quota", &quota_bytes.to_string()]);
        }
        let mut mounted = Self {
            program: Program::start("the mount process", &mut command, &log)?,
            admin: String::new(),
            point,
        };
        let look = || serde_json::from_slice::<Addresses>(&std::fs::read(&addresses).ok()?).ok();
        mounted.admin = mounted.program.wait_for("the mount", START, look).context("mount")?.admin;
        Ok(mounted)
    }

    /// Where the files are.
    pub fn path(&self) -> &Path {
        self.point.path()
    }

    /// Sum of a metric's samples whose labels contain `label`.
    ///
    /// # Errors
    /// Where the process does not tell.
    pub fn metric(&self, name: &str, label: &str) -> Result<f64> {
        Ok(metrics_page::sum(&metrics_page::fetch(&self.admin)?, name, label))
    }

    /// READs that the process has seen.
    ///
    /// # Errors
    /// Where the process does not tell.
    pub fn reads(&self) -> Result<f64> {
        self.metric("csi_driver_fuse_requests_total", "opcode=\"read\"")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.program.stop();
        detach(self.point.path());
    }
}

/// Takes a mount away whose process did not.
pub fn detach(point: &Path) {
    if !is_mounted(point) || rustix::mount::unmount(point, UnmountFlags::DETACH).is_ok() {
        return;
    }
    // Another user than root: the helper may.
    let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(point).status();
    if is_mounted(point) {
        eprintln!("  {point:?} stays mounted");
    }
}

/// Whether something is mounted there; asks nobody who may hang.
pub fn is_mounted(point: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    point.to_str().is_some_and(|point| mounts.lines().any(|line| line.split(' ').nth(4) == Some(point)))
}
