//! How does a driver run for a test, and surely go with everything it has mounted?

use std::cell::Cell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_api::keys::Key;
use millrace_control::proto::{MountSettings, UseVersionsRequest};
use millrace_csi_driver::csi::proto::identity_client::IdentityClient;
use millrace_csi_driver::csi::proto::node_client::NodeClient;
use millrace_csi_driver::csi::proto::volume_capability::access_mode::Mode;
use millrace_csi_driver::csi::proto::volume_capability::{AccessMode, AccessType, MountVolume};
use millrace_csi_driver::csi::proto::{
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodeUnpublishVolumeRequest, VolumeCapability,
};
use millrace_csi_driver::node_mounts::process::pid_in;
use millrace_tests::cluster::{Cluster, source};
use millrace_tests::look::{get, metrics};
use millrace_tests::mounted::detach;
use millrace_tests::program::{Program, command, path_of, until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// For the driver to come up, on a machine that is busy with other tests.
const START: Duration = Duration::from_secs(30);

/// A driver and its folders. Everything ends with this value.
pub struct Driver {
    pub program: Program,
    pub runtime: Runtime,
    dir: TempDir,
    args: Vec<String>,
    admin: String,
    targets: Cell<usize>,
}

/// A dataset to publish: a volume as the operator makes it.
#[derive(Debug, Clone)]
pub struct Volume {
    pub id: String,
    pub attributes: HashMap<String, String>,
    pub secrets: HashMap<String, String>,
}

impl Volume {
    /// The dataset of a cluster of workers.
    pub fn of(cluster: &Cluster, uid: &str) -> Self {
        let key = std::fs::read_to_string(cluster.data_key_file()).unwrap();
        Self::at(&cluster.workers[0].data, &Key::from_hex(&key).unwrap(), uid)
    }

    /// A dataset whose workers are at an address.
    pub fn at(workers: &str, key: &Key, uid: &str) -> Self {
        let text = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        Self {
            id: uid.to_owned(),
            attributes: text(&[
                ("dataset", "data"),
                ("namespace", "vision"),
                ("uid", uid),
                ("workers", workers),
            ]),
            secrets: text(&[("data.key", &key.to_hex())]),
        }
    }

    /// The request to publish it for a pod.
    pub fn request(&self, target: &Path, pod: &str) -> NodePublishVolumeRequest {
        let mut volume_context = self.attributes.clone();
        for (key, value) in
            [("pod.namespace", "vision"), ("pod.name", pod), ("pod.uid", &format!("uid-of-{pod}"))]
        {
            volume_context.insert(format!("csi.storage.k8s.io/{key}"), value.to_owned());
        }
        NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            target_path: target.to_str().unwrap().to_owned(),
            volume_capability: Some(VolumeCapability {
                access_type: Some(AccessType::Mount(MountVolume::default())),
                access_mode: Some(AccessMode { mode: Mode::MultiNodeReaderOnly.into() }),
            }),
            readonly: true,
            secrets: self.secrets.clone(),
            volume_context,
            ..NodePublishVolumeRequest::default()
        }
    }
}

/// Tells the workers how the dataset is to be mounted.
pub fn set_mount(cluster: &Cluster, mount: MountSettings) {
    for number in 0..cluster.workers.len() {
        let request = UseVersionsRequest {
            versions: vec![cluster.version.clone()],
            sources: vec![source(&cluster.s3.endpoint())],
            mount: Some(mount.clone()),
        };
        cluster.control(number, |mut client| async move { client.use_versions(request).await }).unwrap();
    }
}

impl Driver {
    /// A driver with a folder of its own.
    pub fn start(args: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("millrace-csi-").tempdir().unwrap();
        for folder in ["kubelet/pods", "cache"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let (program, admin) = launch(dir.path(), &args);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self { program, runtime, dir, args, admin, targets: Cell::new(0) }
    }

    /// Starts it again after its end.
    pub fn restart(&mut self) {
        (self.program, self.admin) = launch(self.dir.path(), &self.args);
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn kubelet_dir(&self) -> PathBuf {
        self.dir().join("kubelet")
    }

    pub fn plugin_dir(&self) -> PathBuf {
        self.kubelet_dir().join("plugins/csi.millrace.dev")
    }

    pub fn csi_socket(&self) -> PathBuf {
        self.plugin_dir().join("csi.sock")
    }

    /// A target of a new pod; its parent is there, as kubelet has it.
    pub fn target(&self) -> PathBuf {
        let number = self.targets.replace(self.targets.get() + 1);
        let parent = self.kubelet_dir().join(format!("pods/pod-{number}/volumes/kubernetes.io~csi/pv"));
        std::fs::create_dir_all(&parent).unwrap();
        parent.join("mount")
    }

    pub fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(channel(&self.runtime, &self.csi_socket()))
    }

    pub fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(channel(&self.runtime, &self.csi_socket()))
    }

    pub fn publish(&self, volume: &Volume, target: &Path, pod: &str) -> Result<(), Status> {
        self.publish_request(volume.request(target, pod))
    }

    pub fn publish_request(&self, request: NodePublishVolumeRequest) -> Result<(), Status> {
        let mut node = self.node();
        self.runtime.block_on(async { node.node_publish_volume(request).await }).map(drop)
    }

    /// Publishes at a new target.
    pub fn published(&self, volume: &Volume, pod: &str) -> PathBuf {
        let target = self.target();
        self.publish(volume, &target, pod).unwrap();
        target
    }

    pub fn unpublish(&self, volume: &Volume, target: &Path) -> Result<(), Status> {
        let (volume_id, target_path) = (volume.id.clone(), target.to_str().unwrap().to_owned());
        let mut node = self.node();
        let request = NodeUnpublishVolumeRequest { volume_id, target_path };
        self.runtime.block_on(async { node.node_unpublish_volume(request).await }).map(drop)
    }

    pub fn stats(&self, volume: &Volume, path: &Path) -> Result<NodeGetVolumeStatsResponse, Status> {
        let (volume_id, volume_path) = (volume.id.clone(), path.to_str().unwrap().to_owned());
        let mut node = self.node();
        let request =
            NodeGetVolumeStatsRequest { volume_id, volume_path, staging_target_path: String::new() };
        self.runtime
            .block_on(async { node.node_get_volume_stats(request).await })
            .map(|answer| answer.into_inner())
    }

    /// What is wrong with a published target, by its condition.
    pub fn trouble(&self, volume: &Volume, target: &Path) -> Option<String> {
        let condition = self.stats(volume, target).unwrap().volume_condition.unwrap();
        condition.abnormal.then_some(condition.message)
    }

    /// Sum of a metric's samples whose labels contain `label`.
    pub fn metric(&self, name: &str, label: &str) -> u64 {
        metrics(&self.admin).sum(name, label) as u64
    }

    /// All metrics, as a scraper gets them.
    pub fn metrics_text(&self) -> String {
        get(&self.admin, "/metrics")
    }

    /// Folders with the files of the mount processes.
    pub fn processes(&self) -> Vec<PathBuf> {
        processes(self.dir())
    }

    /// The only mount process.
    pub fn mount_pid(&self) -> u32 {
        let processes = self.processes();
        assert_eq!(processes.len(), 1, "{processes:?}");
        pid_in(&processes[0].join("addresses.json")).unwrap()
    }
}

fn processes(dir: &Path) -> Vec<PathBuf> {
    let folders = |dir: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let state = dir.join("kubelet/plugins/csi.millrace.dev/state/processes");
    folders(&state).iter().flat_map(|dataset| folders(dataset)).collect()
}

fn launch(dir: &Path, args: &[String]) -> (Program, String) {
    let addresses = dir.join("addresses.json");
    // The one of an earlier start would be taken for the new one.
    let _ = std::fs::remove_file(&addresses);
    let mut command = command(path_of("csi-driver"));
    command
        .args(["serve", "--node-name", "node-a", "--admin-address", "127.0.0.1:0", "--idle-seconds", "2"])
        .arg("--kubelet-dir")
        .arg(dir.join("kubelet"))
        .arg("--cache-dir")
        .arg(dir.join("cache"))
        .arg("--addresses-file")
        .arg(&addresses)
        .args(args);
    let mut program = Program::start(&mut command, &dir.join("log"));
    let admin = program.wait_for("the driver", START, || {
        let found: serde_json::Value = serde_json::from_slice(&std::fs::read(&addresses).ok()?).ok()?;
        Some(found["admin"].as_str()?.to_owned())
    });
    (program, admin)
}

fn channel(runtime: &Runtime, socket: &Path) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    runtime.block_on(async { endpoint.timeout(Duration::from_secs(120)).connect_lazy() })
}

/// Sends a signal to a mount process.
pub fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Asserts that a call was refused with a code, and gives the message.
pub fn refused(code: Code, answer: Result<(), Status>) -> String {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{}", status.message());
    status.message().to_owned()
}

/// Where something of ours is mounted below a folder, the last mount first.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(dir)).collect();
    below.reverse();
    below
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.program.kill();
        for process in processes(self.dir()) {
            let addresses = process.join("addresses.json");
            let command = |pid| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let is_ours = |pid: &u32| {
                command(*pid)
                    .split(|byte| *byte == 0)
                    .any(|word| word == addresses.as_os_str().as_encoded_bytes())
            };
            if let Some(pid) = pid_in(&addresses).filter(is_ours) {
                signal(pid, Signal::KILL);
                until("the mount process is gone", Duration::from_secs(10), || command(pid).is_empty());
            }
        }
        mounts_below(self.dir()).iter().for_each(|point| detach(point));
    }
}
