//! How fast does a second reader read a file that became complete while the first one holds it open?

use std::fs::File;
use std::io::Read;

use anyhow::{Context, Result, ensure};
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::synthetic;
use millrace_workload::caches;

use super::passing::{is_on, listed, passing, read_through, wait_until_passed};
use crate::cases::Outcome;
use crate::cases::native::write_natively;
use crate::cases::scene::{QUOTA, Scene};
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured};
use crate::reading::Expected;
use crate::rig::millrace::{Medium, Workers};
use crate::rig::mounted::{Mounted, NodeStore};

/// Passes in a round: one over 2 GiB would take a quarter of a second.
const PASSES: usize = 2;

/// One object of 2 GiB. In each round a new mount and node store, and a reader that completes the file and keeps it open; then the
/// second opens it, and gets the file's other node. The baseline's file is read once before each of its rounds.
pub fn run(lab: &Lab) -> Result<Outcome> {
    if caches::check_may_drop().is_err() {
        return Ok(Outcome::Skipped("only root can have the kernel read files itself".to_owned()));
    }
    let scene = Scene::start(lab, "bucket=late,objects=1,size=2GiB", FaultPlan::default())?;
    let file = scene.files.first().context("the bucket is empty")?;
    let native = lab.disk_dir("native")?;
    write_natively(native.path(), file)?;
    let theirs = listed(native.path(), file);
    let mut workers = Workers::start(lab, &scene.setup(1, Medium::Memory))?;
    workers.warm_all(lab)?;
    {
        let node = lab.disk_dir("node")?;
        let store = NodeStore { dir: node.path().to_owned(), quota_bytes: QUOTA };
        if !is_on(&Mounted::start(lab, &workers, Some(&store), None)?)? {
            return Ok(Outcome::Skipped("the kernel reads no files of this node store itself".to_owned()));
        }
    }
    let mut measured = lab.compare(
        Measured::new("late-switch", "MB/s", Bar::AtLeast(Figure::Ratio, 0.90)),
        |_| {
            let node = lab.disk_dir("node")?;
            let store = NodeStore { dir: node.path().to_owned(), quota_bytes: QUOTA };
            let mounted = Mounted::start(lab, &workers, Some(&store), None)?;
            let ours = listed(mounted.path(), file);
            let mut first = File::open(&ours.path)?;
            read_compared(lab, &mut first, file).context("compare what the first reader gets")?;
            wait_until_passed(lab, &mounted, &ours.path)?;
            let switches = mounted.metric("csi_driver_node_switches_total", "")?;
            ensure!(switches > 0.0, "the second reader did not get the other node");
            // What the store wrote must not be written back while the second reader is timed.
            rustix::fs::sync();
            let rate = passing(&mounted, || rate(|| read_through(&ours)))?;
            let mut second = File::open(&ours.path)?;
            passing_compared(lab, &mounted, &mut second, file)?;
            drop(first);
            Ok(rate)
        },
        |_| {
            read_through(&theirs)?;
            rate(|| read_through(&theirs))
        },
    )?;
    measured.notes = vec!["ours is in the page cache as the node store wrote it".to_owned()];
    Ok(Outcome::Measured(vec![measured]))
}

/// MB/s of some passes.
fn rate(pass: impl Fn() -> Result<millrace_workload::run::Outcome>) -> Result<f64> {
    let (mut bytes, mut seconds) = (0.0, 0.0);
    for _ in 0..PASSES {
        let done = pass()?;
        bytes += done.bytes as f64;
        seconds += done.seconds;
    }
    Ok(bytes / 1e6 / seconds)
}

fn passing_compared(lab: &Lab, mounted: &Mounted, second: &mut File, file: &Expected) -> Result<()> {
    let before = mounted.reads()?;
    read_compared(lab, second, file).context("compare what the second reader gets")?;
    ensure!(mounted.reads()? == before, "the second reader is read for by the mount process");
    Ok(())
}

/// Reads an open file to its end and compares every byte.
fn read_compared(lab: &Lab, opened: &mut File, file: &Expected) -> Result<()> {
    let key = file.key.as_deref().context("the file has no object")?;
    let (mut buffer, mut offset) = (vec![0; 1 << 20], 0);
    loop {
        lab.check()?;
        let length = opened.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        ensure!(synthetic::matches(key, offset, &buffer[..length]), "wrong bytes near {offset}");
        offset += length as u64;
    }
    ensure!(offset == file.size, "{offset} bytes of {}", file.size);
    Ok(())
}
