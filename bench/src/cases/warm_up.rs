//! How fast is a warm-up, against a plain download?

use std::time::Instant;

use anyhow::Result;
use millrace_s3_server::faults::plan::FaultPlan;

use super::Outcome;
use super::scene::{Scene, mb_per_second};
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured};
use crate::plain::parts;
use crate::rig::millrace::{Medium, Workers};
use crate::rig::usage::CpuSplit;

/// 64 objects of 64 MiB, three workers.
pub fn run(lab: &Lab) -> Result<Outcome> {
    let plan = FaultPlan::default().with_rates(None, Some(400_000_000));
    let mut scene = Scene::start(lab, "bucket=warm,objects=64,size=64MiB", plan)?;
    scene.verify(lab, 3, 4)?;
    let all = parts(&scene.objects);
    let window = scene.plain.best_window(lab, &all[..all.len() / 4])?;
    let (bytes, setup) = (scene.bytes(), scene.setup(3, Medium::Memory));
    let (mut split, mut most_read) = (CpuSplit::default(), 0.0_f64);
    let mut measured = lab.compare(
        Measured::new("warm-up", "MB/s", Bar::AtLeast(Figure::Ratio, 0.92)),
        |_| {
            let mut workers = Workers::start(lab, &setup)?;
            scene.origin.reset()?;
            let mut processes = vec![("S3 server", scene.origin.program.pid())];
            processes.extend(workers.pids());
            let started = Instant::now();
            split.during(&processes, || workers.warm_all(lab))?;
            let took = started.elapsed();
            most_read = most_read.max(scene.origin.counters()?.body_bytes as f64 / bytes as f64);
            Ok(mb_per_second(bytes, took))
        },
        |_| Ok(mb_per_second(bytes, scene.plain.download(lab, &all, window)?)),
    )?;
    measured.notes = vec![
        format!("baseline's best window {window} parts of 8 MiB"),
        format!("at most {most_read:.4} bytes out of S3 for each of the dataset"),
        split.note("of ours"),
    ];
    Ok(Outcome::Measured(vec![measured]))
}
