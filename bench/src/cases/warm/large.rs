//! How fast does the kernel read a large file that the node has, against the same file on ext4?

use std::time::Duration;

use anyhow::{Context, Result};
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_workload::blocks::{Access, mapped, random};
use millrace_workload::caches;
use millrace_workload::run::{Outcome as Done, Plan};
use millrace_workload::tree::Listed;

use super::passing::{SEQUENTIAL_BYTES, is_on, listed, passing, read_through, to_the_end, wait_until_passed};
use crate::cases::Outcome;
use crate::cases::native::write_natively;
use crate::cases::scene::{QUOTA, Scene};
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured, Pair};
use crate::reading::read_all;
use crate::rig::mounted::{Mounted, NodeStore};
use crate::rig::usage::CpuSplit;

/// How long blocks are read at random: 4 KiB blocks a million times, so that a pause of the machine does not show.
const RUNTIME: Duration = Duration::from_secs(1);

/// Reads a second of 256 KiB in a GiB/s.
const BLOCKS_A_GIB: f64 = 4096.0;

/// A way to read.
#[derive(Clone, Copy)]
enum How {
    Sequential,
    Mapped,
    Random { block_bytes: u64, threads: usize },
}

impl How {
    fn unit(self) -> &'static str {
        match self {
            Self::Sequential | Self::Mapped => "MB/s",
            Self::Random { .. } => "reads/s",
        }
    }

    fn read(self, file: &Listed, round: usize) -> Result<f64> {
        Ok(match self {
            Self::Sequential => read_through(file)?.megabytes_per_second(),
            Self::Mapped => mapped(to_the_end(), &[file], SEQUENTIAL_BYTES)?.megabytes_per_second(),
            Self::Random { block_bytes, threads } => {
                let plan = Plan { threads, runtime: RUNTIME, seed: round as u64, ..to_the_end() };
                Done::operations_per_second(&random(plan, &[file], block_bytes, Access::Cached)?)
            }
        })
    }
}

/// The lines, with their bars on the ratio.
const LINES: [(&str, How, f64); 6] = [
    ("warm-seq", How::Sequential, 0.95),
    ("warm-rand-4k", How::Random { block_bytes: 4 << 10, threads: 1 }, 0.80),
    ("warm-rand-4k-j4", How::Random { block_bytes: 4 << 10, threads: 4 }, 0.80),
    ("warm-rand-128k", How::Random { block_bytes: 128 << 10, threads: 1 }, 0.92),
    ("warm-rand-256k", How::Random { block_bytes: 256 << 10, threads: 1 }, 0.92),
    ("warm-mmap", How::Mapped, 0.87),
];

/// One object of 4 GiB, whole in the node store; its file there and the one beside it came into the page cache alike. Each
/// timed read follows one sequential pass, so that no page is missing. Fails on any READ.
pub fn run(lab: &Lab) -> Result<Outcome> {
    if caches::check_may_drop().is_err() {
        return Ok(Outcome::Skipped("only root can have the kernel read files itself".to_owned()));
    }
    let scene = Scene::start(lab, "bucket=warm,objects=1,size=4GiB", FaultPlan::default())?;
    let file = scene.files.first().context("the bucket is empty")?;
    let native = lab.disk_dir("native")?;
    write_natively(native.path(), file)?;
    let cold = scene.cold(lab, 1)?;
    read_all(lab, cold.mounted.path(), &scene.files, 1).context("fill the node store")?;
    let (workers, node) = (cold.workers, cold.node);
    drop(cold.mounted);
    let store = NodeStore { dir: node.path().to_owned(), quota_bytes: QUOTA };
    let mounted = Mounted::start(lab, &workers, Some(&store), None)?;
    if !is_on(&mounted)? {
        return Ok(Outcome::Skipped("the kernel reads no files of this node store itself".to_owned()));
    }
    let (ours, theirs) = (listed(mounted.path(), file), listed(native.path(), file));
    wait_until_passed(lab, &mounted, &ours.path)?;
    caches::drop_all()?;
    for root in [native.path(), mounted.path()] {
        read_all(lab, root, &scene.files, 1).context("compare the bytes that the kernel reads itself")?;
    }

    let mut lines = Vec::new();
    for (case, how, bar) in LINES {
        let mut split = CpuSplit::default();
        let processes = [("mount", mounted.program.pid()), ("reader", std::process::id())];
        let mut measured = lab.compare(
            Measured::new(case, how.unit(), Bar::AtLeast(Figure::Ratio, bar)),
            |round| {
                read_through(&ours)?;
                passing(&mounted, || split.during(&processes, || how.read(&ours, round)))
            },
            |round| {
                read_through(&theirs)?;
                how.read(&theirs, round)
            },
        )?;
        measured.notes = vec![split.note("of ours")];
        let rate = (case == "warm-rand-256k").then(|| in_gib(&measured));
        lines.push(measured);
        lines.extend(rate);
    }
    Ok(Outcome::Measured(lines))
}

/// The same rounds by bytes: what other caches publish is 0.2 to 0.3 GiB/s.
fn in_gib(measured: &Measured) -> Measured {
    let gib = |reads: f64| reads / BLOCKS_A_GIB;
    let mut rate = Measured::new("warm-rand-256k-rate", "GiB/s", Bar::AtLeast(Figure::Ours, 1.0));
    let pairs = measured.pairs.iter();
    rate.pairs = pairs.map(|pair| Pair { ours: gib(pair.ours), baseline: pair.baseline.map(gib) }).collect();
    rate
}
