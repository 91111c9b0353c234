//! How soon is a mount of ten million files there, and what memory does it take once all were listed?

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_workload::caches;

use crate::cases::Outcome;
use crate::cases::scene::QUOTA;
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured, Pair};
use crate::reading::{Expected, read_all};
use crate::rig::millrace::{Folder, Medium, Setup, Workers};
use crate::rig::mounted::{Mounted, NodeStore};
use crate::rig::origin::{Bucket, Origin};
use crate::rig::usage::{MemoryWatch, slab_bytes};

/// Objects, 1,000 in each folder.
const OBJECTS: u64 = 10_000_000;

/// The bucket.
const BUCKET: &str = "bucket=names,objects=10000000,size=100KiB,per-dir=1000";

/// Listings: the kernel takes gigabytes for each, so that three say enough.
const LISTINGS: usize = 3;

/// Files that are compared, one in each of so many folders.
const COMPARED: usize = 200;

const MIB: f64 = (1 << 20) as f64;

/// The worker makes the index, a first mount fetches it; then it is on the node, and a mount process starts in every round.
pub fn run(lab: &Lab) -> Result<Outcome> {
    let dir = lab.disk_dir("origin")?;
    let origin = Origin::start(&[Bucket::Synthetic(BUCKET.parse()?)], &FaultPlan::default(), dir.path())?;
    let folder =
        Folder { path: String::new(), endpoint: origin.endpoint.clone(), bucket: "names".to_owned() };
    let setup =
        Setup { workers: 1, medium: Medium::Memory, quota_bytes: QUOTA, folders: vec![folder], cgroup: None };
    eprintln!("  making an index of {OBJECTS} objects");
    let started = Instant::now();
    let workers = Workers::start(lab, &setup)?;
    ensure!(workers.made.objects == OBJECTS, "{} objects indexed", workers.made.objects);
    let made = started.elapsed();
    let node = lab.disk_dir("node")?;
    let store = NodeStore { dir: node.path().to_owned(), quota_bytes: QUOTA };

    let first = Mounted::start(lab, &workers, Some(&store), None)?;
    let sample = sample(first.path())?;
    read_all(lab, first.path(), &sample, 4).context("compare files of many folders")?;
    let one = sample.last().context("the mount is empty")?.path.clone();
    drop(first);

    let may_drop = caches::check_may_drop().is_ok();
    let mut open = Measured::new("mount-10m", "s", Bar::AtMost(Figure::Ours, 1.0));
    lab.rounds(&mut open, |_| {
        if may_drop {
            caches::drop_all()?;
        }
        let started = Instant::now();
        let mounted = Mounted::start(lab, &workers, Some(&store), None)?;
        std::fs::metadata(mounted.path().join(&one))?;
        Ok(Pair { ours: started.elapsed().as_secs_f64(), baseline: None })
    })?;
    open.notes = vec![
        "from the start of the process to the first stat answered, the index on the node's disk".to_owned(),
        if may_drop { "page cache dropped" } else { "page cache warm: not root" }.to_owned(),
        format!("the worker listed and indexed them in {:.0} s", made.as_secs_f64()),
    ];

    let mut memory = Measured::new("mount-10m-memory", "MiB", Bar::AtMost(Figure::Ours, 256.0));
    for _ in 0..LISTINGS {
        lab.check()?;
        if may_drop {
            caches::drop_all()?;
        }
        let mounted = Mounted::start(lab, &workers, Some(&store), None)?;
        let watch = MemoryWatch::start(mounted.program.pid());
        let (slab, started) = (slab_bytes(), Instant::now());
        let files = count_files(lab, mounted.path())?;
        let took = started.elapsed();
        ensure!(files == OBJECTS, "{files} files listed");
        let grown = slab_bytes().saturating_sub(slab) as f64 / MIB;
        let most = watch.most() as f64 / MIB;
        eprintln!("  mount-10m-memory: {most:.0} MiB, listed in {:.0} s", took.as_secs_f64());
        memory.notes.push(format!(
            "all listed in {:.0} s, the kernel's slab grew by {grown:.0} MiB ({:.0} B a file)",
            took.as_secs_f64(),
            grown * MIB / OBJECTS as f64
        ));
        memory.pairs.push(Pair { ours: most, baseline: None });
        // An unmount lets go of all names that the kernel knows, which takes longer than a process is given to stop.
        if may_drop {
            caches::drop_all()?;
        }
        let started = Instant::now();
        drop(mounted);
        eprintln!("  mount-10m-memory: stopped in {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(Outcome::Measured(vec![open, memory]))
}

/// Files below a folder, each named by the kernel, none looked at.
fn count_files(lab: &Lab, root: &Path) -> Result<u64> {
    let (mut files, mut folders) = (0, vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        lab.check()?;
        for entry in std::fs::read_dir(&folder).with_context(|| format!("list {folder:?}"))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                files += 1;
            }
        }
    }
    Ok(files)
}

/// The first file of each of the first folders; its path is its key.
fn sample(root: &Path) -> Result<Vec<Expected>> {
    let mut sample = Vec::new();
    for folder in std::fs::read_dir(root)?.take(COMPARED) {
        let Some(file) = std::fs::read_dir(folder?.path())?.next() else { continue };
        let file = file?;
        let path: PathBuf = file.path().strip_prefix(root)?.to_owned();
        let key = path.to_str().context("a name is no text")?.to_owned();
        sample.push(Expected { path, key: Some(key), size: file.metadata()?.len() });
    }
    Ok(sample)
}
