//! How fast is a mount whose node store has everything, against the file system that the store lies on?

use anyhow::{Context, Result};
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_workload::caches;

use super::Outcome;
use super::native::write_natively;
use super::scene::{QUOTA, Scene, mb_per_second};
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured};
use crate::reading::read_all;
use crate::rig::metrics_page;
use crate::rig::mounted::{Mounted, NodeStore};
use crate::rig::usage::CpuSplit;

/// One object of 4 GiB, one reader; a fresh mount and an empty page cache in each round.
pub fn run(lab: &Lab) -> Result<Outcome> {
    if caches::check_may_drop().is_err() {
        return Ok(Outcome::Skipped("only root can drop the page cache".to_owned()));
    }
    let scene = Scene::start(lab, "bucket=node,objects=1,size=4GiB", FaultPlan::default())?;
    let (files, bytes) = (scene.unchecked(), scene.bytes());
    let native = lab.disk_dir("native")?;
    for file in &scene.files {
        write_natively(native.path(), file)?;
    }
    let cold = scene.cold(lab, 1)?;
    read_all(lab, cold.mounted.path(), &scene.files, 1).context("fill the node store")?;
    let (workers, node) = (cold.workers, cold.node);
    drop(cold.mounted);
    let store = NodeStore { dir: node.path().to_owned(), quota_bytes: QUOTA };
    let (mut split, mut fetched) = (CpuSplit::default(), 0.0_f64);
    let mut measured = lab.compare(
        Measured::new("node-cache", "MB/s", Bar::AtLeast(Figure::Ratio, 0.80)),
        |_| {
            let mounted = Mounted::start(lab, &workers, Some(&store), None)?;
            caches::drop_all()?;
            lab.hold_memory()?;
            let processes = [("mount", mounted.program.pid()), ("reader", std::process::id())];
            let took = split.during(&processes, || read_all(lab, mounted.path(), &files, 1))?;
            let page = metrics_page::fetch(&mounted.admin)?;
            fetched = fetched.max(metrics_page::sum(&page, "csi_driver_fetched_bytes_total", ""));
            Ok(mb_per_second(bytes, took))
        },
        |_| {
            caches::drop_all()?;
            lab.hold_memory()?;
            Ok(mb_per_second(bytes, read_all(lab, native.path(), &files, 1)?))
        },
    )?;
    measured.notes = vec![
        format!("at most {:.1} MB of {:.1} MB were fetched again", fetched / 1e6, bytes as f64 / 1e6),
        split.note("of ours"),
    ];
    Ok(Outcome::Measured(vec![measured]))
}
