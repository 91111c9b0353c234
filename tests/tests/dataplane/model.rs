//! Does a mount behave like the listing and the bytes that it was made from, in every mode, whatever readers do?
//!
//! Two versions of a dataset, the first mounted twice, share a node store that holds less than half of it, over a worker that
//! has no room either. Readers open, read, map, list and look at what they like at random, each answer compared with a model
//! made of the listing and the origin's bytes, while the others have the store evict what they read.

mod reader;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace_control::proto;
use millrace_control::proto::make_index_progress::Step;
use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::synthetic::Pattern;
use millrace_tests::cluster::{Cluster, MIB, Setup, source};
use millrace_tests::mounted::{MountSetup, Mounted};
use millrace_tests::skip::{can_mount_as_root, skipped};
use millrace_tests::worker::WorkerSetup;

use crate::stacked::{OnFolder, overlay};
use reader::{Random, Reader, View};

/// What each reader does.
const STEPS: u32 = 2000;

const READERS: u64 = 3;

/// What the node store and the worker may each keep: less than half of the dataset.
const QUOTA: u64 = 12 * MIB;

/// A file of a version.
#[derive(Debug, Clone, Copy)]
struct Body {
    size: u64,
    /// Which of the bytes that its key has had.
    generation: u64,
    /// Whether the origin has these bytes no longer: then a read may fail, but never give others.
    is_lost: bool,
}

/// All files of a version by path.
#[derive(Debug, Clone)]
struct Model(BTreeMap<String, Body>);

impl Model {
    /// Files of all kinds: packed ones and large ones, folders of one file and of many, sizes at which something ends.
    fn new() -> Self {
        let body = |size| Body { size, generation: 0, is_lost: false };
        let mut files = BTreeMap::new();
        for size in [0, 1, 4096, 65_535, 65_536, 65_537, 131_072, MIB - 1, MIB, MIB + 1] {
            files.insert(format!("sizes/{size}"), body(size));
        }
        for number in 0..240 {
            files.insert(format!("small/{:02}/{number:03}.jpg", number % 7), body(1 + number * 397 % 90_000));
        }
        for number in 0..5 {
            files.insert(format!("large/{number}.bin"), body(MIB + number * 777_777));
        }
        files.insert("a/b/c/d/e".to_owned(), body(77_777));
        files.insert("top".to_owned(), body(3 * MIB + 17));
        Self(files)
    }

    /// The next version, in which every ninth file has other bytes, some are gone and some new. What of this one the origin
    /// has no longer is lost from now on.
    fn change(&mut self, objects: &InMemory) -> Self {
        let mut next = self.0.clone();
        for (number, (path, body)) in self.0.iter_mut().enumerate() {
            if number % 9 == 4 {
                let changed = Body { generation: 1, size: body.size + body.size % 3, is_lost: false };
                next.insert(path.clone(), changed);
                objects.put(path, bytes_of(path, changed));
                body.is_lost = true;
            } else if number % 31 == 5 {
                next.remove(path);
                objects.remove(path);
                body.is_lost = true;
            }
        }
        for path in ["new/file", "sizes/2", "small/03/new"] {
            let new = Body { size: 50_000, generation: 2, is_lost: false };
            next.insert(path.to_owned(), new);
            objects.put(path, bytes_of(path, new));
        }
        Self(next)
    }

    fn objects(&self) -> InMemory {
        let objects = InMemory::new();
        self.0.iter().for_each(|(path, body)| drop(objects.put_sized(path, body.size)));
        objects
    }

    fn bytes(&self) -> u64 {
        self.0.values().map(|body| body.size).sum()
    }

    /// The folders; the root is "".
    fn dirs(&self) -> Vec<String> {
        let mut dirs = vec![String::new()];
        for path in self.0.keys() {
            dirs.extend(path.match_indices('/').map(|(at, _)| path[..at].to_owned()));
        }
        dirs.sort_unstable();
        dirs.dedup();
        dirs
    }

    /// The names in a folder; whether each is a folder itself.
    fn children(&self, dir: &str) -> BTreeMap<String, bool> {
        let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let below = self.0.keys().filter_map(|path| path.strip_prefix(&prefix));
        below
            .map(|rest| match rest.split_once('/') {
                Some((name, _)) => (name.to_owned(), true),
                None => (rest.to_owned(), false),
            })
            .collect()
    }
}

fn pattern(path: &str, body: Body) -> Pattern {
    Pattern::new(0, path.as_bytes(), body.generation)
}

fn bytes_of(path: &str, body: Body) -> Vec<u8> {
    let mut bytes = vec![0; body.size as usize];
    pattern(path, body).fill(0, &mut bytes);
    bytes
}

/// Lists the bucket once more, and returns the version; the one before stays served.
fn index_again(cluster: &Cluster) -> String {
    let sources = vec![source(&cluster.s3.endpoint())];
    let request = proto::MakeIndexRequest { sources, block_size_bytes: MIB };
    let made = cluster.control(0, |mut client| async move {
        let mut steps = client.make_index(request).await?.into_inner();
        let mut last = None;
        while let Some(message) = steps.message().await? {
            last = message.step;
        }
        Ok::<_, tonic::Status>(last)
    });
    match made.unwrap() {
        Some(Step::Made(made)) => made.version,
        other => panic!("no index: {other:?}"),
    }
}

/// The seed of this run: that of the environment, to see a failure again, or another one each time.
fn seed() -> u64 {
    let given = std::env::var("MILLRACE_TEST_SEED").ok().and_then(|text| text.parse().ok());
    given
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64)
}

/// Runs the readers against mounts made by `setup`; returns the mounts for a look at what they did.
fn run(name: &str, cluster: &mut Cluster, mut first: Model, setup: &MountSetup) -> Vec<Mounted> {
    let seed = seed();
    println!("{name}: MILLRACE_TEST_SEED={seed}");
    assert!(first.bytes() > 2 * QUOTA, "{} bytes are no strain", first.bytes());
    let setup = setup.clone().arg("--node-store-quota", QUOTA.to_string());
    let setup = setup.arg("--read-deadline-seconds", "20");
    let mut mounts = vec![Mounted::start(cluster, &setup), Mounted::start(cluster, &setup)];
    let second = first.change(&cluster.objects);
    cluster.version = index_again(cluster);
    mounts.push(Mounted::start(cluster, &setup));
    let models = [&first, &first, &second];
    let views: Vec<View<'_>> =
        models.iter().zip(&mounts).map(|(model, mounted)| View::new(model, &mounted.point)).collect();
    std::thread::scope(|scope| {
        for number in 0..READERS {
            let views = &views;
            scope.spawn(move || {
                let mut reader = Reader::new(views, Random(seed ^ (number << 32)));
                for step in 0..STEPS {
                    reader.step(&format!("{name}, seed {seed}, reader {number}, step {step}"));
                }
            });
        }
    });
    let evicted: u64 =
        mounts.iter().map(|mounted| mounted.metric("csi_driver_node_store_evictions_total", "")).sum();
    assert!(evicted > 10, "{evicted} evictions are no strain");
    mounts
}

fn cluster(model: &Model) -> Cluster {
    let worker = WorkerSetup { quota_bytes: QUOTA, tier: None, args: Vec::new() };
    Cluster::start(model.objects(), &Setup { workers: 1, worker })
}

fn opens(mounts: &[Mounted], how: &str) -> u64 {
    mounts.iter().map(|mounted| mounted.metric("csi_driver_opens_total", &format!("how=\"{how}\""))).sum()
}

#[test]
fn packed_mode_behaves_like_the_model() {
    let name = "packed_mode_behaves_like_the_model";
    if !can_mount_as_root(name) {
        return;
    }
    let model = Model::new();
    let mut cluster = cluster(&model);
    let setup = MountSetup::keeping(cluster.new_dir("store")).arg("--mode", "Packed");
    let mounts = run(name, &mut cluster, model, &setup);
    for mounted in &mounts {
        assert_eq!(mounted.metric("csi_driver_fuse_requests_total", "opcode=\"release\""), 0);
    }
}

#[test]
fn files_mode_behaves_like_the_model() {
    let name = "files_mode_behaves_like_the_model";
    if !can_mount_as_root(name) {
        return;
    }
    let model = Model::new();
    let mut cluster = cluster(&model);
    let setup = MountSetup::keeping(cluster.new_dir("store")).arg("--mode", "Files");
    let mounts = run(name, &mut cluster, model, &setup);
    if mounts[0].metric("csi_driver_passthrough", "state=\"on\"") == 0 {
        return skipped(name, "the kernel takes no files of the node store here");
    }
    assert!(opens(&mounts, "passthrough") > 0, "nothing passed through");
    for mounted in &mounts {
        millrace_tests::program::until("all is closed", Duration::from_secs(10), || {
            mounted.metric("csi_driver_open_files", "") == 0
        });
    }
}

#[test]
fn files_mode_without_passthrough_behaves_like_the_model() {
    let name = "files_mode_without_passthrough_behaves_like_the_model";
    if !can_mount_as_root(name) {
        return;
    }
    let model = Model::new();
    let mut cluster = cluster(&model);
    // The kernel takes no files of a stacked file system.
    let (layers, store) = (cluster.new_dir("layers"), cluster.new_dir("store"));
    if !overlay(&layers, &cluster.new_dir("lower"), &store) {
        return;
    }
    let _mount = OnFolder(store.clone());
    let setup = MountSetup::keeping(store).arg("--mode", "Files");
    let mounts = run(name, &mut cluster, model, &setup);
    assert_eq!(mounts[0].metric("csi_driver_passthrough", "state=\"off\""), 1);
}
