//! How fast are 20,000 small files whose bytes are on the node, against the same files on ext4?

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_workload::caches;
use tempfile::TempDir;

use super::Outcome;
use super::epoch::shuffled;
use super::native::write_natively;
use super::scene::{QUOTA, Scene};
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured};
use crate::reading::{Expected, read_all};
use crate::rig::cgroup::Cgroup;
use crate::rig::millrace::Workers;
use crate::rig::mounted::{Mounted, NodeStore};
use crate::rig::usage::{CpuSplit, MemoryWatch};

/// Bound of the mount process where it is bounded, bytes.
const LIMIT: u64 = 512 << 20;

/// A dataset of small files, all of it in a node store, and beside it as plain files.
struct Small {
    native: TempDir,
    files: Vec<Expected>,
    workers: Workers,
    node: TempDir,
    _scene: Scene,
}

impl Small {
    fn prepare(lab: &Lab) -> Result<Self> {
        let scene =
            Scene::start(lab, "bucket=small,objects=20000,size=100KiB,per-dir=200", FaultPlan::default())?;
        let native = lab.disk_dir("native")?;
        for file in &scene.files {
            write_natively(native.path(), file)?;
        }
        let cold = scene.cold(lab, 1)?;
        // Twice: what was fetched but not stored in the first pass is in the second.
        for files in [&scene.files, &scene.unchecked()] {
            read_all(lab, cold.mounted.path(), files, 4).context("fill the node store")?;
        }
        let (workers, node, files) = (cold.workers, cold.node, scene.unchecked());
        drop(cold.mounted);
        Ok(Self { native, files, workers, node, _scene: scene })
    }

    fn mount(&self, lab: &Lab, group: Option<&Cgroup>) -> Result<Mounted> {
        let store = NodeStore { dir: self.node.path().to_owned(), quota_bytes: QUOTA };
        Mounted::start(lab, &self.workers, Some(&store), group)
    }

    /// Files a second of a shuffled pass.
    fn rate(&self, lab: &Lab, root: &Path, round: usize, threads: usize) -> Result<f64> {
        let files = shuffled(self.files.clone(), round);
        let took = read_all(lab, root, &files, threads)?;
        Ok(files.len() as f64 / took.as_secs_f64())
    }
}

/// Looks at each file once.
fn walk(root: &Path) -> Result<()> {
    let found = Command::new("find").arg(root).args(["-size", "+1G"]).stdout(Stdio::null()).status()?;
    ensure!(found.success(), "find in {root:?} fails");
    Ok(())
}

/// Has the page cache hold all that is below a folder, at this process's expense.
fn load(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            load(&entry.path())?;
        } else {
            std::io::copy(&mut std::fs::File::open(entry.path())?, &mut std::io::sink())?;
        }
    }
    Ok(())
}

/// Read before through the same mount: the kernel has every page.
pub fn warm(lab: &Lab) -> Result<Outcome> {
    let small = Small::prepare(lab)?;
    let mounted = small.mount(lab, None)?;
    let mut lines = Vec::new();
    for (case, threads, bar) in [("small-warm", 1, 0.75), ("small-warm-t4", 4, 0.92)] {
        let measured = lab.compare(
            Measured::new(case, "files/s", Bar::AtLeast(Figure::Ratio, bar)),
            |round| {
                small.rate(lab, mounted.path(), round, 4)?;
                let before = mounted.reads()?;
                let rate = small.rate(lab, mounted.path(), round, threads)?;
                let seen = mounted.reads()? - before;
                ensure!(seen == 0.0, "{case}: the mount process saw {seen} READs of warm files");
                Ok(rate)
            },
            |round| {
                small.rate(lab, small.native.path(), round, 4)?;
                small.rate(lab, small.native.path(), round, threads)
            },
        )?;
        lines.push(measured);
    }
    Ok(Outcome::Measured(lines))
}

/// Not read before through this mount, but listed; the disk's files are in the page cache. The mount process has 512 MiB.
pub fn first(lab: &Lab) -> Result<Outcome> {
    let small = Small::prepare(lab)?;
    let mut lines = Vec::new();
    for (case, threads, bar) in [("small-first", 1, 0.42), ("small-first-t4", 4, 0.55)] {
        let (mut split, mut memory) = (CpuSplit::default(), 0);
        let mut measured = lab.compare(
            Measured::new(case, "files/s", Bar::AtLeast(Figure::Ratio, bar)),
            |round| {
                load(small.node.path())?;
                let group = Cgroup::new(LIMIT)?;
                let mounted = small.mount(lab, Some(&group))?;
                walk(mounted.path())?;
                let processes = [("mount", mounted.program.pid()), ("reader", std::process::id())];
                let watch = MemoryWatch::start(mounted.program.pid());
                let rate = split.during(&processes, || small.rate(lab, mounted.path(), round, threads))?;
                memory = memory.max(watch.most());
                Ok(rate)
            },
            |round| {
                load(small.native.path())?;
                walk(small.native.path())?;
                small.rate(lab, small.native.path(), round, threads)
            },
        )?;
        let memory = memory >> 20;
        measured.notes = vec![split.note("of ours"), format!("at most {memory} MiB of anonymous memory")];
        lines.push(measured);
    }
    Ok(Outcome::Measured(lines))
}

/// Nothing in the page cache; both were listed.
pub fn cold(lab: &Lab) -> Result<Outcome> {
    if caches::check_may_drop().is_err() {
        return Ok(Outcome::Skipped("only root can drop the page cache".to_owned()));
    }
    let small = Small::prepare(lab)?;
    let measured = lab.compare(
        Measured::new("small-cold-t4", "files/s", Bar::AtLeast(Figure::Ratio, 0.88)),
        |round| {
            let mounted = small.mount(lab, None)?;
            caches::drop_all()?;
            lab.hold_memory()?;
            walk(mounted.path())?;
            small.rate(lab, mounted.path(), round, 4)
        },
        |round| {
            caches::drop_all()?;
            lab.hold_memory()?;
            walk(small.native.path())?;
            small.rate(lab, small.native.path(), round, 4)
        },
    )?;
    Ok(Outcome::Measured(vec![measured]))
}
