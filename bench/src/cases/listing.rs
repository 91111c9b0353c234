//! How fast does a worker list and index a large bucket, against one sequential lister, and what memory does it take?

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use millrace_s3_server::faults::plan::FaultPlan;

use super::Outcome;
use super::scene::QUOTA;
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured, Pair};
use crate::plain::Plain;
use crate::rig::millrace::{Folder, Medium, Setup, Workers};
use crate::rig::origin::{Bucket, Origin};
use crate::rig::usage::{CpuSplit, MemoryWatch, anonymous_bytes};

/// Keys of each bucket.
const KEYS: f64 = 1e6;

/// A flat prefix, which gives no folders to split by: the harder one. It is the one that counts.
const FLAT: &str = "bucket=flat,objects=1000000";

/// A tree of a thousand folders.
const TREE: &str = "bucket=tree,objects=1000000,per-dir=1000";

/// Pages of the sequential lister; its rate does not depend on how far it goes.
const PAGES: usize = 100;

/// 1,000,000 keys at one level; the same in folders as a note.
pub fn run(lab: &Lab) -> Result<Outcome> {
    let dir = lab.disk_dir("origin")?;
    let buckets = [Bucket::Synthetic(FLAT.parse()?), Bucket::Synthetic(TREE.parse()?)];
    let plan = FaultPlan::default().with_list_page(Duration::from_millis(30));
    let origin = Origin::start(&buckets, &plan, dir.path())?;
    let plain = Plain::new(&origin.endpoint, "flat");
    let (mut extra, mut split) = (Vec::new(), CpuSplit::default());
    let mut measured = lab.compare(
        Measured::new("listing", "keys/s", Bar::AtLeast(Figure::Ratio, 4.0)),
        |_| {
            let (rate, bytes) = index(lab, &origin, "flat", &mut split)?;
            extra.push(Pair { ours: bytes as f64 / f64::from(1 << 20), baseline: None });
            Ok(rate)
        },
        |_| {
            let (keys, took) = plain.list(lab, PAGES)?;
            Ok(keys as f64 / took.as_secs_f64())
        },
    )?;
    let (tree, tree_bytes) = index(lab, &origin, "tree", &mut CpuSplit::default())?;
    measured.notes = vec![
        "ours lists, sorts, writes and verifies the index; the baseline only lists, its first 100 pages"
            .to_owned(),
        format!("in 1,000 folders: {tree:.0} keys/s, {:.0} MiB more", tree_bytes as f64 / f64::from(1 << 20)),
        split.note("of ours"),
    ];
    let mut memory = Measured::new("listing-memory", "MiB", Bar::AtMost(Figure::Ours, 128.0));
    memory.pairs = extra;
    Ok(Outcome::Measured(vec![measured, memory]))
}

/// Keys a second of a fresh worker, and the memory that it takes more than before, bytes.
fn index(lab: &Lab, origin: &Origin, bucket: &str, split: &mut CpuSplit) -> Result<(f64, u64)> {
    let folder = Folder { path: String::new(), endpoint: origin.endpoint.clone(), bucket: bucket.to_owned() };
    let setup =
        Setup { workers: 1, medium: Medium::Memory, quota_bytes: QUOTA, folders: vec![folder], cgroup: None };
    let mut workers = Workers::start_without_index(lab, &setup)?;
    let pid = workers.workers.first().context("there is no worker")?.program.pid();
    let before = anonymous_bytes(pid).context("the worker is gone")?;
    let watch = MemoryWatch::start(pid);
    let started = Instant::now();
    split.during(&[("S3 server", origin.program.pid()), ("worker", pid)], || workers.make_index(lab))?;
    let took = started.elapsed();
    anyhow::ensure!(workers.made.objects as f64 == KEYS, "{} objects indexed", workers.made.objects);
    Ok((KEYS / took.as_secs_f64(), watch.most().saturating_sub(before)))
}
