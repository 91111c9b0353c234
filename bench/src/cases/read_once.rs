//! How often does each byte leave S3 when many read it at the same time?

use std::sync::Mutex;

use anyhow::{Context, Result};
use millrace_s3_server::faults::plan::FaultPlan;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::Outcome;
use super::scene::QUOTA;
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured, Pair};
use crate::plain::Plain;
use crate::reading::{Expected, read_all};
use crate::rig::millrace::{Folder, Medium, Setup, Workers};
use crate::rig::mounted::{Mounted, NodeStore};
use crate::rig::origin::{Bucket, Origin};

/// Buckets: what a loader of shards and a loader of pictures read.
const BUCKETS: [(&str, &str); 2] = [
    ("shards", "bucket=shards,objects=12,size=48MiB"),
    ("pictures", "bucket=pictures,objects=3000,size=1KiB..200KiB,per-dir=100"),
];

/// Mounts, each with a node store of its own, as on so many nodes.
const MOUNTS: usize = 3;

/// Readers of each mount.
const READERS: usize = 2;

/// All readers read everything, each in another order, at once; every byte is compared.
pub fn run(lab: &Lab) -> Result<Outcome> {
    let dir = lab.disk_dir("origin")?;
    let buckets = BUCKETS.map(|(_, spec)| spec.parse().map(Bucket::Synthetic));
    let buckets = buckets.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut origin = Origin::start(&buckets, &FaultPlan::default(), dir.path())?;
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    for (bucket, _) in BUCKETS {
        for (key, size) in Plain::new(&origin.endpoint, bucket).objects(lab)? {
            files.push(Expected { path: format!("{bucket}/{key}").into(), key: Some(key), size });
        }
        folders.push(Folder {
            path: bucket.to_owned(),
            endpoint: origin.endpoint.clone(),
            bucket: bucket.to_owned(),
        });
    }
    // An index is of sources in order of their paths.
    folders.sort_by(|a, b| a.path.cmp(&b.path));
    let bytes: u64 = files.iter().map(|file| file.size).sum();
    let setup = Setup { workers: 3, medium: Medium::Memory, quota_bytes: QUOTA, folders, cgroup: None };
    let (mut measured, mut most_gets) =
        (Measured::new("read-once", "MB", Bar::AtMost(Figure::Ratio, 1.02)), 0);
    lab.rounds(&mut measured, |round| {
        let workers = Workers::start(lab, &setup)?;
        let nodes = (0..MOUNTS).map(|_| lab.disk_dir("node")).collect::<Result<Vec<_>>>()?;
        let mounts = nodes.iter().map(|node| {
            let store = NodeStore { dir: node.path().to_owned(), quota_bytes: QUOTA };
            Mounted::start(lab, &workers, Some(&store), None)
        });
        let mounts = mounts.collect::<Result<Vec<_>>>()?;
        origin.reset()?;
        read_at_once(lab, &mounts, &files, round)?;
        let counters = origin.counters()?;
        most_gets = most_gets.max(counters.requests.get("GetObject").copied().unwrap_or_default());
        Ok(Pair { ours: counters.body_bytes as f64 / 1e6, baseline: Some(bytes as f64 / 1e6) })
    })?;
    measured.notes = vec![
        format!("{} objects, {MOUNTS} mounts, {READERS} readers each, every byte compared", files.len()),
        format!("at most {most_gets} GET requests"),
    ];
    Ok(Outcome::Measured(vec![measured]))
}

fn read_at_once(lab: &Lab, mounts: &[Mounted], files: &[Expected], round: usize) -> Result<()> {
    let trouble = Mutex::new(None);
    std::thread::scope(|scope| {
        for reader in 0..mounts.len() * READERS {
            let (mounted, trouble) = (&mounts[reader / READERS], &trouble);
            scope.spawn(move || {
                let mut files = files.to_vec();
                files.shuffle(&mut StdRng::seed_from_u64((round * 100 + reader) as u64));
                if let Err(error) = read_all(lab, mounted.path(), &files, 1) {
                    *trouble.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
                }
            });
        }
    });
    match trouble.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(error) => Err(error).context("read at once"),
        None => Ok(()),
    }
}
