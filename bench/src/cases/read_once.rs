//! How often does each byte leave S3 when many read it at the same time?

use std::sync::Mutex;

use anyhow::{Context, Result};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::Outcome;
use super::mixed::Mixed;
use super::scene::QUOTA;
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured, Pair};
use crate::reading::{Expected, read_all};
use crate::rig::millrace::Workers;
use crate::rig::mounted::{Mounted, NodeStore};

/// Buckets: what a loader of shards and a loader of pictures read.
const BUCKETS: [(&str, &str); 2] =
    [("shards", "objects=12,size=48MiB"), ("pictures", "objects=3000,size=1KiB..200KiB,per-dir=100")];

/// Mounts, each with a node store of its own, as on so many nodes.
const MOUNTS: usize = 3;

/// Readers of each mount.
const READERS: usize = 2;

/// All readers read everything, each in another order, at once; every byte is compared.
pub fn run(lab: &Lab) -> Result<Outcome> {
    let mut mixed = Mixed::start(lab, &BUCKETS)?;
    let (files, bytes, setup) = (mixed.files.clone(), mixed.bytes(), mixed.setup(3, QUOTA));
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
        mixed.origin.reset()?;
        read_at_once(lab, &mounts, &files, round)?;
        let counters = mixed.origin.counters()?;
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
