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

/// The objects, and an origin 10 ms away.
pub fn scene(lab: &Lab) -> Result<Scene> {
    let plan = FaultPlan::default().with_first_byte(Duration::from_millis(10));
    Scene::start(lab, "bucket=epoch,objects=10000,size=100KiB,per-dir=100", plan)
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
    let mut scene = scene(lab)?;
    scene.verify(lab, 1, THREADS)?;
    let all = parts(&scene.objects);
    let window = scene.plain.best_window(lab, &all[..all.len() / 4])?;
    let (mut split, mut theirs) = (CpuSplit::default(), CpuSplit::default());
    let mut measured = lab.compare(
        Measured::new("epoch-small", "files/s", Bar::AtLeast(Figure::Ratio, 0.5)),
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
