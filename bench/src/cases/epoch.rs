//! How fast is the first epoch over many small objects, against plain parallel GETs of them?

use std::time::Duration;

use anyhow::Result;
use millrace_s3_server::faults::plan::FaultPlan;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::Outcome;
use super::scene::Scene;
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured};
use crate::plain::parts;
use crate::reading::{Expected, read_all};
use crate::rig::usage::CpuSplit;

/// Threads that read through a mount.
pub const THREADS: usize = 8;

/// What an epoch reads.
#[derive(Debug, Clone, Copy)]
pub struct Epoch {
    bucket: &'static str,
    cap: Option<u64>,
}

/// 10,000 objects, as fast as they come.
pub const SMALL: Epoch = Epoch { bucket: "bucket=epoch,objects=10000,size=100KiB,per-dir=100", cap: None };

/// 20,000 objects, 400 MB/s in all.
pub const LARGE: Epoch =
    Epoch { bucket: "bucket=epoch,objects=20000,size=100KiB,per-dir=100", cap: Some(400_000_000) };

impl Epoch {
    /// The objects, and an origin 10 ms away.
    pub fn scene(self, lab: &Lab) -> Result<Scene> {
        let far = FaultPlan::default().with_first_byte(Duration::from_millis(10));
        Scene::start(lab, self.bucket, far.with_rates(None, self.cap))
    }
}

/// The order of an epoch.
pub fn shuffled(mut files: Vec<Expected>, round: usize) -> Vec<Expected> {
    files.shuffle(&mut StdRng::seed_from_u64(round as u64));
    files
}

/// Files a second of a cold epoch through a mount of ours.
pub fn ours(lab: &Lab, scene: &Scene, round: usize, split: &mut CpuSplit) -> Result<f64> {
    let files = shuffled(scene.unchecked(), round);
    let cold = scene.cold(lab, 1)?;
    let took =
        split.during(&scene.processes(&cold), || read_all(lab, cold.mounted.path(), &files, THREADS))?;
    Ok(files.len() as f64 / took.as_secs_f64())
}

/// 10,000 objects of 100 KiB in shuffled order, 8 threads.
pub fn small(lab: &Lab) -> Result<Outcome> {
    against_plain(lab, "epoch-small", SMALL, 0.5)
}

/// 20,000 with the origin's cap.
pub fn plain(lab: &Lab) -> Result<Outcome> {
    against_plain(lab, "epoch-plain", LARGE, 0.8)
}

fn against_plain(lab: &Lab, case: &str, epoch: Epoch, bar: f64) -> Result<Outcome> {
    let mut scene = epoch.scene(lab)?;
    scene.verify(lab, 1, THREADS)?;
    let all = parts(&scene.objects);
    let window = scene.plain.best_window(lab, &all[..all.len() / 4])?;
    let (mut split, mut theirs) = (CpuSplit::default(), CpuSplit::default());
    let mut measured = lab.compare(
        Measured::new(case, "files/s", Bar::AtLeast(Figure::Ratio, bar)),
        |round| ours(lab, &scene, round, &mut split),
        |_| {
            let processes = [("S3 server", scene.origin.program.pid()), ("client", std::process::id())];
            let took = theirs.during(&processes, || scene.plain.download(lab, &all, window))?;
            Ok(all.len() as f64 / took.as_secs_f64())
        },
    )?;
    measured.notes = vec![
        format!("baseline's best window {window}"),
        split.note("of ours"),
        theirs.note("of the baseline"),
    ];
    Ok(Outcome::Measured(vec![measured]))
}
