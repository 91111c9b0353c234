//! How much memory does a mount process take while files are read cold, warm and shuffled?

use std::time::Duration;

use anyhow::{Context, Result};
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_workload::blocks::{Access, random};
use millrace_workload::run::Plan;

use super::passing::{listed, to_the_end};
use crate::cases::Outcome;
use crate::cases::epoch::shuffled;
use crate::cases::scene::{QUOTA, Scene};
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured, Pair};
use crate::reading::read_all;
use crate::rig::cgroup::Cgroup;
use crate::rig::millrace::{Medium, Workers};
use crate::rig::mounted::{Mounted, NodeStore};
use crate::rig::usage::MemoryWatch;

/// Bound of the mount process, bytes.
const LIMIT: u64 = 512 << 20;

/// How long blocks are read at random.
const RUNTIME: Duration = Duration::from_secs(2);

/// Threads of every reader.
const THREADS: usize = 4;

const MIB: f64 = (1 << 20) as f64;

/// A dataset and its workers.
struct Part {
    scene: Scene,
    workers: Workers,
}

/// The most that a mount took.
#[derive(Default, Clone, Copy)]
struct Most {
    anonymous: u64,
    group: u64,
}

/// 4 GiB in one object, and 20,000 objects of 100 KiB, each with a mount of its own and an empty node store in every round; the
/// mount process has 512 MiB. Workers have nothing in the first round and everything in the later ones.
pub fn run(lab: &Lab) -> Result<Outcome> {
    if let Err(error) = Cgroup::new(LIMIT) {
        return Ok(Outcome::Skipped(format!("{error:#}")));
    }
    let part = |spec: &str| -> Result<Part> {
        let scene = Scene::start(lab, spec, FaultPlan::default())?;
        let workers = Workers::start(lab, &scene.setup(1, Medium::Memory))?;
        Ok(Part { scene, workers })
    };
    let large = part("bucket=large,objects=1,size=4GiB")?;
    let small = part("bucket=small,objects=20000,size=100KiB,per-dir=200")?;
    let mut most = [Most::default(); 2];
    let mut measured = Measured::new("mount-memory", "MiB", Bar::AtMost(Figure::Ours, 192.0));
    lab.rounds(&mut measured, |round| {
        lab.hold_memory()?;
        let both = [large.most(lab, round)?, small.most(lab, round)?];
        for (most, one) in most.iter_mut().zip(both) {
            most.anonymous = most.anonymous.max(one.anonymous);
            most.group = most.group.max(one.group);
        }
        let anonymous = both.iter().map(|most| most.anonymous).max().unwrap_or_default();
        Ok(Pair { ours: anonymous as f64 / MIB, baseline: None })
    })?;
    for (name, Most { anonymous, group }) in ["4 GiB in one file", "20,000 files of 100 KiB"].iter().zip(most)
    {
        measured.notes.push(format!(
            "{name}: at most {:.0} MiB, {:.0} MiB with the page cache charged to it",
            anonymous as f64 / MIB,
            group as f64 / MIB
        ));
    }
    measured.notes.push("both finish within 512 MiB; every byte of the cold passes compared".to_owned());
    Ok(Outcome::Measured(vec![measured]))
}

impl Part {
    /// A cold pass that is compared, then a shuffled one over what is warm by now, then blocks at random in the largest file.
    fn most(&self, lab: &Lab, round: usize) -> Result<Most> {
        let (group, node) = (Cgroup::new(LIMIT)?, lab.disk_dir("node")?);
        let store = NodeStore { dir: node.path().to_owned(), quota_bytes: QUOTA };
        let mounted = Mounted::start(lab, &self.workers, Some(&store), Some(&group))?;
        let watch = MemoryWatch::start(mounted.program.pid());
        let cold = shuffled(self.scene.files.clone(), round);
        read_all(lab, mounted.path(), &cold, THREADS).context("compare a cold pass")?;
        read_all(lab, mounted.path(), &shuffled(self.scene.unchecked(), round + 1), THREADS)?;
        let files: Vec<_> =
            self.scene.files.iter().take(100).map(|file| listed(mounted.path(), file)).collect();
        let plan = Plan { threads: THREADS, runtime: RUNTIME, seed: round as u64, ..to_the_end() };
        random(plan, &files.iter().collect::<Vec<_>>(), 4 << 10, Access::Cached)?;
        let anonymous = watch.most();
        Ok(Most { anonymous, group: group.peak_bytes().unwrap_or_default() })
    }
}
