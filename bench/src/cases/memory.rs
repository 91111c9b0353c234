//! How much memory do worker and mount take, and do they finish with little?

use std::time::Duration;

use anyhow::{Context, Result};
use millrace_s3_server::faults::plan::FaultPlan;

use super::Outcome;
use super::epoch::{SMALL, THREADS, shuffled};
use super::scene::{QUOTA, Scene, mb_per_second};
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured, Pair};
use crate::reading::read_all;
use crate::rig::cgroup::Cgroup;
use crate::rig::millrace::{Medium, Workers};
use crate::rig::mounted::{Mounted, NodeStore};
use crate::rig::usage::MemoryWatch;

/// Bound of each control group, bytes.
const LIMIT: u64 = 512 << 20;

/// Runs within it: it finishes or it does not, so that three say enough.
const LIMITED_RUNS: usize = 3;

const MIB: f64 = (1 << 20) as f64;

/// One object of 4 GiB at 400 MB/s, as in cold-large.
pub fn run(lab: &Lab) -> Result<Outcome> {
    let plan = FaultPlan::default().with_rates(None, Some(400_000_000));
    let scene = Scene::start(lab, "bucket=memory,objects=1,size=4GiB", plan)?;
    let mut measured = most_memory(lab, &scene, "memory", Medium::Memory, 1)?;
    measured.push(match Cgroup::new(LIMIT) {
        Ok(_) => limited(lab, &scene)?,
        Err(error) => {
            let mut skipped = Measured::new("memory-512Mi", "finished", Bar::Reported);
            skipped.notes = vec![format!("skipped: {error:#}")];
            skipped
        }
    });
    Ok(Outcome::Measured(measured))
}

/// Small objects as in epoch-small, to stores on a disk: it is slower to write than they come.
pub fn small(lab: &Lab) -> Result<Outcome> {
    let scene = SMALL.scene(lab)?;
    Ok(Outcome::Measured(most_memory(lab, &scene, "memory-small", Medium::Disk, THREADS)?))
}

/// The most anonymous memory of worker and mount during cold reads.
fn most_memory(
    lab: &Lab,
    scene: &Scene,
    case: &str,
    medium: Medium,
    threads: usize,
) -> Result<Vec<Measured>> {
    let mut mounts = Measured::new(&format!("{case}-mount"), "MiB", Bar::AtMost(Figure::Ours, 128.0));
    let mut workers = Measured::new(&format!("{case}-worker"), "MiB", Bar::AtMost(Figure::Ours, 192.0));
    lab.rounds(&mut workers, |round| {
        let cold = scene.cold_on(lab, 1, medium)?;
        let worker = cold.workers.workers.first().context("there is no worker")?.program.pid();
        let (worker, mount) = (MemoryWatch::start(worker), MemoryWatch::start(cold.mounted.program.pid()));
        read_all(lab, cold.mounted.path(), &shuffled(scene.unchecked(), round), threads)?;
        // What is freed late is still held now.
        std::thread::sleep(Duration::from_millis(100));
        mounts.pairs.push(Pair { ours: mount.most() as f64 / MIB, baseline: None });
        Ok(Pair { ours: worker.most() as f64 / MIB, baseline: None })
    })?;
    workers.notes = vec!["the most from the start of the read to its end with everything cached".to_owned()];
    Ok(vec![workers, mounts])
}

/// The same with both stores on disk, worker and mount each in a control group of 512 MiB; every byte is compared.
fn limited(lab: &Lab, scene: &Scene) -> Result<Measured> {
    let mut measured = Measured::new("memory-512Mi", "finished", Bar::AtLeast(Figure::Ours, 1.0));
    for _ in 0..LIMITED_RUNS {
        lab.check()?;
        let (worker_group, mount_group) = (Cgroup::new(LIMIT)?, Cgroup::new(LIMIT)?);
        let run = || -> Result<Duration> {
            let mut setup = scene.setup(1, Medium::Disk);
            setup.cgroup = Some(&worker_group);
            let workers = Workers::start(lab, &setup)?;
            let node = lab.disk_dir("node")?;
            let store = NodeStore { dir: node.path().to_owned(), quota_bytes: QUOTA };
            let mounted = Mounted::start(lab, &workers, Some(&store), Some(&mount_group))?;
            read_all(lab, mounted.path(), &scene.files, 1)
        };
        let (finished, note) = match run() {
            Ok(took) => (1.0, format!("{:.0} MB/s", mb_per_second(scene.bytes(), took))),
            Err(error) if lab.is_interrupted() => return Err(error),
            Err(error) => (0.0, format!("{error:#}")),
        };
        let peak = |group: &Cgroup| group.peak_bytes().unwrap_or_default() as f64 / MIB;
        eprintln!("  memory-512Mi: {note}");
        measured.notes.push(format!(
            "{note}, most used: worker {:.0} MiB, mount {:.0} MiB, page cache included",
            peak(&worker_group),
            peak(&mount_group)
        ));
        measured.pairs.push(Pair { ours: finished, baseline: None });
    }
    Ok(measured)
}
