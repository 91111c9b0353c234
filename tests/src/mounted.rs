//! How does a mount process run on a folder of its own, and surely go with its mount?

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::mount::UnmountFlags;

use crate::cluster::Cluster;
use crate::look::metrics;
use crate::program::{Program, command, path_of, until};
use crate::skip::is_root;

/// For the mount to be there, on a machine that is busy with other tests.
const START: Duration = Duration::from_secs(30);

/// What a mount is told.
#[derive(Debug, Clone, Default)]
pub struct MountSetup {
    /// Folder of the node store; none where it is switched off.
    pub node_store: Option<PathBuf>,
    /// Further arguments, in place of those of the same name.
    pub args: Vec<(String, String)>,
}

impl MountSetup {
    /// Keeps what is read in `dir`.
    pub fn keeping(dir: impl Into<PathBuf>) -> Self {
        Self { node_store: Some(dir.into()), args: Vec::new() }
    }

    /// With an argument more.
    pub fn arg(mut self, name: &str, value: impl Into<String>) -> Self {
        self.args.push((name.to_owned(), value.into()));
        self
    }
}

/// A mount and its process. Both end with this value.
#[derive(Debug)]
pub struct Mounted {
    /// The process.
    pub program: Program,
    /// Where the files are.
    pub point: PathBuf,
    /// Its admin port.
    pub admin: String,
    dir: PathBuf,
}

impl Mounted {
    /// Mounts the cluster's version on a new folder.
    pub fn start(cluster: &Cluster, setup: &MountSetup) -> Self {
        let dir = cluster.new_dir("mount");
        let point = dir.join("point");
        std::fs::create_dir(&point).unwrap();
        Self::at(cluster, &dir, &point, setup)
    }

    /// Mounts once more on the folder of a mount whose process has ended.
    pub fn restart(self, cluster: &Cluster, setup: &MountSetup) -> Self {
        let (dir, point) = (self.dir.clone(), self.point.clone());
        let mut before = self;
        before.program.kill();
        // Its mount is left as it is: dead.
        before.point = PathBuf::new();
        drop(before);
        Self::at(cluster, &dir, &point, setup)
    }

    fn at(cluster: &Cluster, dir: &Path, point: &Path, setup: &MountSetup) -> Self {
        let addresses = dir.join("addresses.json");
        // The one of an earlier start would be taken for the new one.
        let _ = std::fs::remove_file(&addresses);
        let program = Program::start(&mut mount(cluster, point, dir, setup), &dir.join("log"));
        let mut mounted =
            Self { program, point: point.to_owned(), admin: String::new(), dir: dir.to_owned() };
        mounted.admin = mounted.program.wait_for("the mount", START, || {
            let found: serde_json::Value = serde_json::from_slice(&std::fs::read(&addresses).ok()?).ok()?;
            Some(found["admin"].as_str()?.to_owned())
        });
        mounted
    }

    /// A path in the mount.
    pub fn path(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    /// Sum of a metric's samples whose labels contain `label`.
    pub fn metric(&self, name: &str, label: &str) -> u64 {
        metrics(&self.admin).sum(name, label) as u64
    }

    /// Waits until so many bytes are in the node store.
    pub fn wait_until_stored(&self, bytes: u64) {
        until("the node store has all", Duration::from_secs(20), || {
            self.metric("csi_driver_node_store_bytes_total", "direction=\"written\"") >= bytes
        });
    }

    /// Bytes that came from workers.
    pub fn fetched_bytes(&self) -> u64 {
        self.metric("csi_driver_fetched_bytes_total", "")
    }
}

/// The command of a mount process.
pub fn mount(cluster: &Cluster, point: &Path, dir: &Path, setup: &MountSetup) -> Command {
    let path = |path: PathBuf| path.into_os_string();
    let mut values: Vec<(&str, OsString)> = vec![
        ("--dataset", "data".into()),
        ("--log", "info".into()),
        ("--version", cluster.version.clone().into()),
        ("--mount-point", point.into()),
        ("--membership-file", path(cluster.membership_file())),
        ("--data-key-file", path(cluster.data_key_file())),
        ("--index-dir", path(dir.join("indexes"))),
        ("--addresses-file", path(dir.join("addresses.json"))),
    ];
    if let Some(store) = &setup.node_store {
        values.extend([("--node-store", store.into()), ("--node-store-quota", "1Gi".into())]);
    }
    for (name, value) in &setup.args {
        values.retain(|(known, _)| known != name);
        values.push((name, value.into()));
    }
    let mut command = command(path_of("csi-driver"));
    command.arg("mount");
    for (name, value) in values {
        command.arg(name).arg(value);
    }
    command
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.program.kill();
        if !self.point.as_os_str().is_empty() {
            detach(&self.point);
        }
    }
}

/// Whether something is mounted on a folder.
pub fn is_mounted(point: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    point.to_str().is_some_and(|point| mounts.lines().any(|line| line.split(' ').nth(4) == Some(point)))
}

/// Takes away whatever is mounted on a folder.
pub fn detach(point: &Path) {
    while is_mounted(point) {
        let is_done = match is_root() {
            true => rustix::mount::unmount(point, UnmountFlags::DETACH).is_ok(),
            false => {
                Command::new("fusermount3").args(["-u", "-z"]).arg(point).status().is_ok_and(|s| s.success())
            }
        };
        if !is_done {
            eprintln!("{point:?} stays mounted");
            return;
        }
    }
}
