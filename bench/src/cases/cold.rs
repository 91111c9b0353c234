//! How fast is a first read of large objects, against a plain download of them?

use anyhow::Result;
use millrace_s3_server::faults::plan::FaultPlan;

use super::Outcome;
use super::scene::{Scene, disk_note, mb_per_second};
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured};
use crate::plain::parts;
use crate::rig::usage::CpuSplit;

/// What the S3 server sends in a second, bytes.
const CAP: u64 = 400_000_000;

/// Readers of the case with many files: a loader with as many workers.
const READERS: usize = 4;

const BAR: Bar = Bar::AtLeast(Figure::Ratio, 0.92);

struct Cold {
    case: &'static str,
    bucket: &'static str,
    cap: Option<u64>,
    readers: usize,
    bar: Bar,
}

/// One object of 4 GiB, one reader.
pub fn large(lab: &Lab) -> Result<Outcome> {
    run(
        lab,
        &Cold {
            case: "cold-large",
            bucket: "bucket=large,objects=1,size=4GiB",
            cap: Some(CAP),
            readers: 1,
            bar: BAR,
        },
    )
}

/// 64 objects of 64 MiB, four readers.
pub fn files(lab: &Lab) -> Result<Outcome> {
    let bucket = "bucket=files,objects=64,size=64MiB";
    run(lab, &Cold { case: "cold-files", bucket, cap: Some(CAP), readers: READERS, bar: BAR })
}

/// One object of 4 GiB, one reader, as fast as it goes.
pub fn uncapped(lab: &Lab) -> Result<Outcome> {
    let bucket = "bucket=large,objects=1,size=4GiB";
    run(lab, &Cold { case: "cold-uncapped", bucket, cap: None, readers: 1, bar: Bar::Reported })
}

fn run(lab: &Lab, cold: &Cold) -> Result<Outcome> {
    let mut scene = Scene::start(lab, cold.bucket, FaultPlan::default().with_rates(None, cold.cap))?;
    scene.verify(lab, 1, cold.readers)?;
    let all = parts(&scene.objects);
    let window = scene.plain.best_window(lab, &all[..all.len() / 4])?;
    let (files, bytes) = (scene.unchecked(), scene.bytes());
    let (mut ours, mut theirs) = (CpuSplit::default(), CpuSplit::default());
    let mut measured = lab.compare(
        Measured::new(cold.case, "MB/s", cold.bar),
        |_| scene.cold_rate(lab, 1, cold.readers, &files, &mut ours),
        |_| {
            let processes = [("S3 server", scene.origin.program.pid()), ("client", std::process::id())];
            let took = theirs.during(&processes, || scene.plain.download(lab, &all, window))?;
            Ok(mb_per_second(bytes, took))
        },
    )?;
    measured.notes = vec![
        format!("baseline's best window {window} parts of 8 MiB"),
        disk_note(lab)?,
        ours.note("of ours"),
        theirs.note("of the baseline"),
    ];
    Ok(Outcome::Measured(vec![measured]))
}
