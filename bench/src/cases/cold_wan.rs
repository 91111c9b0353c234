//! How fast is one sequential reader where the origin is far, against one plain stream?

use std::time::Duration;

use anyhow::Result;
use millrace_s3_server::faults::plan::FaultPlan;

use super::Outcome;
use super::scene::{Scene, mb_per_second};
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured};
use crate::plain::Part;
use crate::rig::usage::CpuSplit;

/// One object of 1 GiB, read from its beginning to its end.
pub fn run(lab: &Lab) -> Result<Outcome> {
    let far = FaultPlan::default()
        .with_first_byte(Duration::from_millis(30))
        .with_rates(Some(80_000_000), Some(400_000_000));
    let mut scene = Scene::start(lab, "bucket=wan,objects=1,size=1GiB", far)?;
    scene.verify(lab, 1, 1)?;
    let (files, bytes) = (scene.unchecked(), scene.bytes());
    let whole: Vec<Part> = scene
        .objects
        .iter()
        .map(|(key, size)| Part { key: key.clone(), range: 0..*size, is_whole: true })
        .collect();
    let mut split = CpuSplit::default();
    let mut measured = lab.compare(
        Measured::new("cold-wan", "MB/s", Bar::AtLeast(Figure::Ratio, 4.0)),
        |_| scene.cold_rate(lab, 1, 1, &files, &mut split),
        |_| Ok(mb_per_second(bytes, scene.plain.download(lab, &whole, 1)?)),
    )?;
    measured.notes = vec![split.note("of ours")];
    Ok(Outcome::Measured(vec![measured]))
}
