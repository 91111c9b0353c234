//! What does a request of the kernel cost the mount process and its reader, in processor time?

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_workload::blocks::Access;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use tempfile::TempDir;

use super::Outcome;
use super::scene::{QUOTA, Scene};
use crate::lab::Lab;
use crate::line::{Bar, Measured, Pair};
use crate::reading::{read_all, read_at};
use crate::rig::millrace::{Medium, Workers};
use crate::rig::mounted::{Mounted, NodeStore};
use crate::rig::usage::{process_micros, thread_micros};

/// Bytes of the large file.
const LARGE: u64 = 256 << 20;

/// Most reads of one size: enough for a processor second of none of them.
const MOST_READS: usize = 8192;

/// Rounds: processor time scatters less than time.
const ROUNDS: usize = 3;

/// Something that makes requests; returns how many.
type Work<'a> = &'a dyn Fn() -> Result<u64>;

/// One thread, every request answered from the mount process's memory or its node store in the page cache. Microseconds of
/// processor time a request: the mount process's, and in the notes those of the reader's system call.
pub fn run(lab: &Lab) -> Result<Outcome> {
    let mut lines = names(lab)?;
    lines.extend(reads(lab)?);
    Ok(Outcome::Measured(lines))
}

/// LOOKUP, GETATTR and OPEN of small files. In files mode: packed mode has no OPEN.
fn names(lab: &Lab) -> Result<Vec<Measured>> {
    let scene = Scene::start(lab, "bucket=names,objects=20000,size=4KiB,per-dir=200", FaultPlan::default())?;
    let workers = Workers::start(lab, &scene.setup(1, Medium::Memory))?;
    let mut lines = ["lookup", "getattr", "open"].map(Budget::new);
    for _ in 0..ROUNDS {
        lab.check()?;
        let node = lab.disk_dir("node")?;
        // A new mount each time: the kernel knows no name of it.
        let mounted = mount(lab, &workers, &node, "Files")?;
        let each = |call: &dyn Fn(&Path) -> Result<()>| -> Result<u64> {
            scene.files.iter().try_for_each(|file| call(&mounted.path().join(&file.path)))?;
            Ok(scene.files.len() as u64)
        };
        let stat = |path: &Path| path.metadata().map(drop).with_context(|| format!("look at {path:?}"));
        // As after a change on a network file system: the kernel asks although it knows.
        let ask = |path: &Path| {
            let asked = rustix::fs::statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
            asked.map(drop).with_context(|| format!("ask for the attributes of {path:?}"))
        };
        let open = |path: &Path| File::open(path).map(drop).with_context(|| format!("open {path:?}"));
        lines[0].measure(&mounted, "lookup", &|| each(&stat))?;
        lines[1].measure(&mounted, "getattr", &|| each(&ask))?;
        lines[2].measure(&mounted, "open", &|| each(&open))?;
    }
    Ok(lines.into_iter().map(Budget::done).collect())
}

/// READs of three sizes from a file of the node store. In packed mode: there the kernel never reads the store itself.
fn reads(lab: &Lab) -> Result<Vec<Measured>> {
    let spec = format!("bucket=large,objects=1,size={LARGE}");
    let scene = Scene::start(lab, &spec, FaultPlan::default())?;
    let workers = Workers::start(lab, &scene.setup(1, Medium::Memory))?;
    let node = lab.disk_dir("node")?;
    let mounted = mount(lab, &workers, &node, "Packed")?;
    let unchecked = scene.unchecked();
    let file = unchecked.first().context("there is no object")?;
    // Twice: what was fetched but not stored in the first pass is in the second.
    for files in [&scene.files, &unchecked] {
        read_all(lab, mounted.path(), files, 1).context("fill the node store")?;
    }
    // Past the page cache of the mount, so that each call is one READ of its size: half of the most that one can ask for, whose pages
    // a buffer that begins within a page would exceed.
    let mut lines = Vec::new();
    for (what, size) in [("read-4k", 4 << 10), ("read-128k", 128 << 10), ("read-512k", 512 << 10)] {
        let mut line = Budget::new(what);
        let read = || -> Result<u64> {
            let offsets: Vec<u64> = (0..LARGE / size).take(MOST_READS).map(|number| number * size).collect();
            Ok(read_at(lab, mounted.path(), file, &offsets, size as usize, Access::Direct)?.len() as u64)
        };
        for _ in 0..ROUNDS {
            lab.check()?;
            line.measure(&mounted, "read", &read)?;
        }
        lines.push(line.done());
    }
    Ok(lines)
}

fn mount(lab: &Lab, workers: &Workers, node: &TempDir, mode: &str) -> Result<Mounted> {
    let store = NodeStore { dir: node.path().to_owned(), quota_bytes: QUOTA };
    Mounted::start_by(lab, workers, Some(&store), |program| {
        let mut command = Command::new(program);
        command.env("MILLRACE_MOUNT_MODE", mode);
        command
    })
}

/// What requests of one kind cost.
struct Budget {
    measured: Measured,
    reader: Vec<f64>,
}

impl Budget {
    fn new(what: &str) -> Self {
        let measured = Measured::new(&format!("budget-{what}"), "us", Bar::Reported);
        Self { measured, reader: Vec::new() }
    }

    /// Does the work once. Requests of other kinds that go with it (RELEASE behind OPEN) are in its price.
    fn measure(&mut self, mounted: &Mounted, opcode: &str, work: Work<'_>) -> Result<()> {
        let seen = || mounted.metric("csi_driver_fuse_requests_total", &format!("opcode=\"{opcode}\""));
        let before = (seen()?, process_micros(mounted.program.pid())?, thread_micros()?);
        let count = work()? as f64;
        let reader = thread_micros()? - before.2;
        let mount = process_micros(mounted.program.pid())? - before.1;
        let requests = seen()? - before.0;
        let case = &self.measured.case;
        ensure!((0.99..1.1).contains(&(requests / count)), "{case}: {requests} requests for {count} calls");
        self.measured.pairs.push(Pair { ours: mount / count, baseline: None });
        self.reader.push(reader / count);
        Ok(())
    }

    fn done(mut self) -> Measured {
        let reader = self.reader.iter().sum::<f64>() / self.reader.len().max(1) as f64;
        self.measured.notes.push(format!("and {reader:.1} us of the reader's"));
        self.measured
    }
}
