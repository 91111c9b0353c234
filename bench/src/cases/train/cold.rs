//! Are accelerators kept busy from the first epoch on, when nothing is cached?

use std::time::Duration;

use anyhow::Result;
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_workload::train::profile::Model;

use super::emulator::{Emulator, Job, Length};
use crate::cases::Outcome;
use crate::cases::scene::Scene;
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured, Pair};
use crate::rig::usage::CpuSplit;

/// Emulated A100: 1,839 files and 211 MB a second.
const RANKS: usize = 2;

/// 30 steps of 400 for each of them.
const BUCKET: &str = "bucket=cold,objects=24000,size=114660,per-dir=1000,suffix=.jpg";

/// An epoch.
const EPOCH: Length = Length { epochs: 1, steps: 30 };

/// Threads that compare.
const COMPARERS: usize = 8;

/// An origin in the same network: 2 ms to the first byte, 1 GB/s.
pub fn run(lab: &Lab) -> Result<Outcome> {
    let plan =
        FaultPlan::default().with_first_byte(Duration::from_millis(2)).with_rates(None, Some(1_000_000_000));
    let mut scene = Scene::start(lab, BUCKET, plan)?;
    scene.verify(lab, 1, COMPARERS)?;
    let emulator = Emulator::new(lab, Job { model: Model::Resnet50Raw, scale: 1.0 })?;
    let mut measured = Measured::new("train-cold", "AU", Bar::AtLeast(Figure::Ours, 0.90));
    let mut split = CpuSplit::default();
    lab.rounds(&mut measured, |round| {
        lab.hold_memory()?;
        let cold = scene.cold(lab, 1)?;
        let mut processes = scene.processes(&cold);
        // This program only waits.
        processes.retain(|(name, _)| *name != "reader");
        let au = split.during(&processes, || {
            emulator.utilization(cold.mounted.path(), RANKS, EPOCH, round as u64, None)
        })?;
        Ok(Pair { ours: au, baseline: None })
    })?;
    measured.notes = vec![
        format!("{RANKS} emulated A100, {} steps, {} objects", EPOCH.steps, scene.objects.len()),
        split.note("of an epoch"),
    ];
    Ok(Outcome::Measured(vec![measured]))
}
