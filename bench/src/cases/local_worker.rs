//! What does it save to read a worker's tier where it lies, where the worker runs on the reader's node?

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_workload::caches;

use super::Outcome;
use super::scene::{QUOTA, Scene, mb_per_second};
use crate::lab::Lab;
use crate::line::{Bar, Measured};
use crate::reading::read_all;
use crate::rig::millrace::{Medium, Workers};
use crate::rig::mounted::{Mounted, NodeStore};
use crate::rig::usage::CpuSplit;

/// 64 objects of 64 MiB that a worker has on this disk, four readers; a fresh mount, an empty node store and an empty page cache in
/// each round. The baseline is the same mount, which is told of no pods and so asks the worker's data port.
pub fn run(lab: &Lab) -> Result<Outcome> {
    if caches::check_may_drop().is_err() {
        return Ok(Outcome::Skipped("only root can drop the page cache".to_owned()));
    }
    let scene = Scene::start(lab, "bucket=local,objects=64,size=64MiB", FaultPlan::default())?;
    let workers = Workers::start(lab, &scene.setup(1, Medium::Disk))?;
    let files = scene.unchecked();
    for in_place in [false, true] {
        let (mounted, _node) = mount(lab, &workers, in_place)?;
        read_all(lab, mounted.path(), &scene.files, READERS).context("compare what the mount shows")?;
    }
    let (mut ours, mut theirs) = (CpuSplit::default(), CpuSplit::default());
    let mut copied = [0.0_f64; 2];
    let mut rate = |in_place: bool, split: &mut CpuSplit| -> Result<f64> {
        let (mounted, _node) = mount(lab, &workers, in_place)?;
        caches::drop_all()?;
        lab.hold_memory()?;
        let mut processes = vec![("mount", mounted.program.pid()), ("reader", std::process::id())];
        processes.extend(workers.pids());
        let took = split.during(&processes, || read_all(lab, mounted.path(), &files, READERS))?;
        let written = mounted.metric("csi_driver_node_store_bytes_total", "direction=\"written\"")?;
        copied[usize::from(in_place)] = written;
        ensure!(!in_place || written == 0.0, "{written} bytes were copied of what is on the disk already");
        Ok(mb_per_second(scene.bytes(), took))
    };
    let rate = std::cell::RefCell::new(&mut rate);
    let mut measured = lab.compare(
        Measured::new("local-worker", "MB/s", Bar::Reported),
        |_| (rate.borrow_mut())(true, &mut ours),
        |_| (rate.borrow_mut())(false, &mut theirs),
    )?;
    measured.notes = vec![
        format!("the baseline wrote {:.0} MB a second time to the disk", copied[0] / 1e6),
        ours.note("of ours"),
        theirs.note("of the baseline"),
    ];
    Ok(Outcome::Measured(vec![measured]))
}

/// A loader with as many workers.
const READERS: usize = 4;

/// For the tier to be found: it is looked for once a second.
const FOUND: Duration = Duration::from_secs(10);

/// A mount with an empty node store; in place, it finds the worker's tier as in kubelet's folder of pods.
pub(super) fn mount(lab: &Lab, workers: &Workers, in_place: bool) -> Result<(Mounted, tempfile::TempDir)> {
    let node = lab.disk_dir("node")?;
    let store = NodeStore { dir: node.path().to_owned(), quota_bytes: QUOTA };
    let mounted = Mounted::start_by(lab, workers, Some(&store), |program| {
        let mut command = Command::new(program);
        if in_place {
            command.env("MILLRACE_KUBELET_PODS_DIR", workers.tiers.path());
        }
        command
    })?;
    if in_place {
        // The index came from the worker, so that it has said which pod it is.
        let deadline = Instant::now() + FOUND;
        while mounted.metric("csi_driver_local_worker_tiers", "")? < 1.0 {
            ensure!(Instant::now() < deadline, "the worker's tier is not found");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok((mounted, node))
}
