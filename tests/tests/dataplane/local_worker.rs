//! Are the tiers of a worker on the same node read where they lie, with right bytes whatever becomes of the worker?

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_s3_server::synthetic;
use millrace_tests::cluster::{Cluster, MIB, Setup};
use millrace_tests::content::{Files, check_file};
use millrace_tests::mounted::{MountSetup, Mounted};
use millrace_tests::program::until;
use millrace_tests::skip::can_mount_as_root;
use tempfile::TempDir;

const WAIT: Duration = Duration::from_secs(20);

const POD: &str = "1d0c9a3e-2f0b-4c58-9f3e-1b0a4c5d6e7f";

/// A worker whose tier lies where kubelet would have it, and a dataset in its store.
struct Node {
    cluster: Cluster,
    files: Files,
    pods: TempDir,
}

impl Node {
    fn new(files: Files) -> Self {
        let pods = tempfile::Builder::new().prefix("millrace-test-pods-").tempdir().unwrap();
        let mut setup = Setup::workers(1);
        setup.worker.tier = Some(tier(pods.path()));
        setup.worker.args = ["--pod-uid", POD].map(str::to_owned).to_vec();
        let cluster = Cluster::start(files.objects(), &setup);
        Self { cluster, files, pods }
    }

    /// Has the worker fetch everything, by a mount that knows nothing of pods.
    fn warm_up(&self) {
        let mounted = Mounted::start(&self.cluster, &MountSetup::default());
        self.files.check(&mounted.point);
        self.cluster.wait_until_kept(0, self.files.bytes());
    }

    fn mount(&self, mode: &str) -> Mounted {
        let setup = MountSetup::keeping(self.cluster.new_dir("store"))
            .arg("--mode", mode)
            .arg("--kubelet-pods-dir", self.pods.path().to_str().unwrap())
            // A mount that announces itself is connected to every worker, and each then says which pod it is.
            .arg("--node-name", "node-7");
        let mounted = Mounted::start(&self.cluster, &setup);
        until("the tier is found", WAIT, || mounted.metric("csi_driver_local_worker_tiers", "") == 1);
        mounted
    }
}

fn tier(pods: &Path) -> PathBuf {
    pods.join(POD).join("volumes/kubernetes.io~empty-dir/tier-0/blocks")
}

fn read_in_place(mounted: &Mounted) -> u64 {
    mounted.metric("csi_driver_node_store_bytes_total", "direction=\"read_from_local_worker\"")
}

fn written(mounted: &Mounted) -> u64 {
    mounted.metric("csi_driver_node_store_bytes_total", "direction=\"written\"")
}

fn files() -> Files {
    Files::new().with("a", 70_000).with("b", 90_000).with("large", 5 * MIB + 77).with("other", 3 * MIB)
}

#[test]
fn what_a_worker_of_the_node_has_is_read_there_and_kept_nowhere_else() {
    let name = "what_a_worker_of_the_node_has_is_read_there_and_kept_nowhere_else";
    if !can_mount_as_root(name) {
        return;
    }
    let node = Node::new(files());
    node.warm_up();
    for mode in ["Files", "Packed"] {
        let mounted = node.mount(mode);
        node.files.check(&mounted.point);
        assert_eq!((mounted.fetched_bytes(), written(&mounted)), (0, 0), "{mode}: a copy was made");
        assert!(read_in_place(&mounted) > 0, "{mode}");
        if mode == "Files" && mounted.metric("csi_driver_passthrough", "state=\"on\"") == 1 {
            let opens = || mounted.metric("csi_driver_opens_total", "how=\"passthrough\"");
            let before = opens();
            check_file(&mounted.point, "large", 5 * MIB + 77);
            assert_eq!(opens(), before + 1, "the kernel reads the worker's file");
        }
    }
    node.cluster.assert_quiet();
}

#[test]
fn readers_see_no_error_when_the_worker_and_its_folder_go_under_them() {
    let name = "readers_see_no_error_when_the_worker_and_its_folder_go_under_them";
    if !can_mount_as_root(name) {
        return;
    }
    let mut node = Node::new(files());
    node.warm_up();
    let mounted = node.mount("Files");
    check_file(&mounted.point, "large", 5 * MIB + 77);
    let open = File::open(mounted.path("large")).unwrap();
    // As kubelet does it after the pod: moved aside, then emptied.
    node.cluster.workers[0].program.kill();
    let aside = node.pods.path().join("deleting");
    std::fs::rename(node.pods.path().join(POD), &aside).unwrap();
    std::fs::remove_dir_all(&aside).unwrap();
    let mut bytes = vec![0; 5 * MIB as usize + 77];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert!(synthetic::matches("large", 0, &bytes), "an open file reads on");
    until("the tier is gone", WAIT, || mounted.metric("csi_driver_local_worker_tiers", "") == 0);
    // The next worker of that name starts empty, in another pod: what is absent comes through it.
    node.cluster.workers[0].restart();
    node.files.check(&mounted.point);
}

#[test]
fn bytes_that_rot_in_a_workers_tier_are_not_shown_to_readers() {
    let name = "bytes_that_rot_in_a_workers_tier_are_not_shown_to_readers";
    if !can_mount_as_root(name) {
        return;
    }
    let node = Node::new(files());
    node.warm_up();
    for shard in std::fs::read_dir(tier(node.pods.path()).join("blocks")).unwrap() {
        for entry in std::fs::read_dir(shard.unwrap().path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|kind| kind == "data") {
                let file = File::options().write(true).open(path).unwrap();
                file.write_all_at(&[0x55; 4096], 20_000).unwrap();
            }
        }
    }
    let mounted = node.mount("Files");
    node.files.check(&mounted.point);
    assert!(mounted.fetched_bytes() > 0, "it came from S3 again");
}
