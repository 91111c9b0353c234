//! How many accelerators does a mount feed from a node store that the page cache cannot hold, against ext4?

mod cold;
mod emulator;
mod search;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_workload::caches;
use millrace_workload::generate::DataSet;
use millrace_workload::train::profile::Model;
use millrace_workload::tree::{MAX_FILES, Tree};
use tempfile::TempDir;

use self::emulator::{Emulator, Job};
use self::search::{Crossing, crossing};
use super::Outcome;
use super::scene::QUOTA;
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured};
use crate::reading::compare_files;
use crate::rig::cgroup::Cgroup;
use crate::rig::metrics_page;
use crate::rig::millrace::{Folder, Medium, Setup, Workers};
use crate::rig::mounted::{Mounted, NodeStore};
use crate::rig::origin::{Bucket, Origin};
use crate::rig::usage::CpuSplit;
use crate::stats::median;

pub use cold::run as cold;

/// Memory of reader and mount process together, page cache included, bytes.
const LIMIT: u64 = 1 << 30;

/// The data set: what MLPerf Storage asks for, five times the memory, bytes.
const DATA: u64 = 5 * LIMIT;

/// Computation of a probe, seconds: the shortest whose AU moves by less than the noise of the machine.
const PROBE_SECONDS: f64 = 3.5;

/// Threads that compare.
const COMPARERS: usize = 4;

const BUCKET: &str = "train";

/// 115 kB images, a file each.
pub fn resnet50_raw(lab: &Lab) -> Result<Outcome> {
    warm(lab, "train-resnet50-raw", Job { model: Model::Resnet50Raw, scale: 1.0 })
}

/// Volumes of 9.2 MB: a sixteenth of the published size, times unchanged, since the disk feeds one of the whole size at most.
pub fn unet3d(lab: &Lab) -> Result<Outcome> {
    warm(lab, "train-unet3d", Job { model: Model::Unet3d, scale: 1.0 / 16.0 })
}

/// Volumes of 2.8 MB.
pub fn cosmoflow(lab: &Lab) -> Result<Outcome> {
    warm(lab, "train-cosmoflow", Job { model: Model::Cosmoflow, scale: 1.0 })
}

/// A data set as plain files, in a bucket and wholly in a node store.
struct Stored {
    native: TempDir,
    files: u64,
    bytes: u64,
    workers: Workers,
    node: TempDir,
    _origin: Origin,
    _logs: TempDir,
}

/// One side of the comparison: from which number it searches, and what it found.
struct Side {
    guess: usize,
    wholes: Vec<f64>,
}

fn warm(lab: &Lab, case: &str, job: Job) -> Result<Outcome> {
    if caches::check_may_drop().is_err() {
        return Ok(Outcome::Skipped("only root can drop the page cache".to_owned()));
    }
    if let Err(error) = Cgroup::new(LIMIT) {
        return Ok(Outcome::Skipped(format!("{error:#}")));
    }
    let stored = Stored::prepare(lab, job)?;
    let emulator = Emulator::new(lab, job)?;
    let group = Cgroup::new(LIMIT)?;
    let store = NodeStore { dir: stored.node.path().to_owned(), quota_bytes: QUOTA };
    let mounted = Mounted::start(lab, &stored.workers, Some(&store), Some(&group))?;
    let native_group = Cgroup::new(LIMIT)?;
    let (mut ours, mut theirs, mut split) = (Side::new(), Side::new(), CpuSplit::default());
    let fetched = || -> Result<f64> {
        Ok(metrics_page::sum(&metrics_page::fetch(&mounted.admin)?, "csi_driver_fetched_bytes_total", ""))
    };
    let before = fetched()?;
    let mut measured = lab.compare(
        Measured::new(case, "accelerators", Bar::AtLeast(Figure::Ratio, 0.9)),
        |round| {
            let processes = [("mount", mounted.program.pid())];
            split
                .during(&processes, || ours.sustained(lab, &emulator, &stored, mounted.path(), &group, round))
        },
        |round| theirs.sustained(lab, &emulator, &stored, stored.native.path(), &native_group, round),
    )?;
    let fetched = fetched()? - before;
    ensure!(
        fetched < stored.bytes as f64 / 100.0,
        "{case}: {fetched} bytes came from the workers: it was not warm"
    );
    measured.notes = vec![
        format!(
            "whole accelerators (median): ours {}, ext4 {}",
            median(&ours.wholes).unwrap_or_default(),
            median(&theirs.wholes).unwrap_or_default()
        ),
        format!(
            "{} files, {:.2} GB, {} MiB for reader and mount",
            stored.files,
            stored.bytes as f64 / 1e9,
            LIMIT >> 20
        ),
        format!("{:.1} MB came from the workers in all rounds", fetched / 1e6),
        split.note("of a search"),
    ];
    Ok(Outcome::Measured(vec![measured]))
}

impl Stored {
    /// Makes the files, and has a mount read all of them into its node store; every byte is compared, also when it comes from
    /// there.
    fn prepare(lab: &Lab, job: Job) -> Result<Self> {
        eprintln!("  making and storing the data set");
        let (native, logs, node) = (lab.disk_dir("native")?, lab.disk_dir("origin")?, lab.disk_dir("node")?);
        let mut data_set = DataSet { profile: job.profile(), files: 0, seed: 0 };
        let mut bytes = 0;
        while bytes < DATA {
            bytes += data_set.size(data_set.files);
            data_set.files += 1;
        }
        data_set.make(native.path(), &mut |_| ())?;
        let bucket = Bucket::Folder(BUCKET.to_owned(), native.path().to_owned());
        let origin = Origin::start(&[bucket], &FaultPlan::default(), logs.path())?;
        let folder =
            Folder { path: String::new(), endpoint: origin.endpoint.clone(), bucket: BUCKET.to_owned() };
        let setup = Setup {
            workers: 1,
            medium: Medium::Memory,
            quota_bytes: QUOTA,
            folders: vec![folder],
            cgroup: None,
        };
        let workers = Workers::start(lab, &setup)?;
        let store = NodeStore { dir: node.path().to_owned(), quota_bytes: QUOTA };
        let files = paths(native.path())?;
        for pass in ["from the worker", "from the node store"] {
            eprintln!("  comparing all bytes {pass}");
            let mounted = Mounted::start(lab, &workers, Some(&store), None)?;
            let compared = compare_files(lab, native.path(), mounted.path(), &files, COMPARERS)?;
            ensure!(compared == bytes, "{compared} bytes were compared, expected {bytes}");
        }
        Ok(Self { native, files: data_set.files, bytes, workers, node, _origin: origin, _logs: logs })
    }
}

impl Side {
    fn new() -> Self {
        Self { guess: 1, wholes: Vec::new() }
    }

    /// Accelerators that are kept busy from a folder.
    fn sustained(
        &mut self,
        lab: &Lab,
        emulator: &Emulator,
        stored: &Stored,
        root: &Path,
        group: &Cgroup,
        round: usize,
    ) -> Result<f64> {
        let job = emulator.job();
        let Crossing { whole, exact } = crossing(job.profile().least_au, self.guess, |ranks| {
            lab.check()?;
            // Else the group would begin with pages that others had read.
            caches::drop_all()?;
            lab.hold_memory()?;
            let length = job.length(stored.files, ranks, PROBE_SECONDS);
            emulator.utilization(root, ranks, length, round as u64, Some(group))
        })?;
        self.guess = whole.max(1);
        self.wholes.push(whole as f64);
        Ok(exact)
    }
}

/// All files below a folder, relative to it.
fn paths(root: &Path) -> Result<Vec<PathBuf>> {
    let tree = Tree::list(root, MAX_FILES)?;
    let relative = tree.files.iter().map(|file| file.path.strip_prefix(root).map(Path::to_owned));
    relative.collect::<Result<_, _>>().context("list the data set")
}
