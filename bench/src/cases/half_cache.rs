//! Which share of what is read comes from workers that can hold half of the dataset?

use anyhow::{Result, ensure};
use millrace_api::block::CHUNK_BYTES;
use millrace_workload::caches;

use super::Outcome;
use super::epoch::shuffled;
use super::mixed::Mixed;
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured, Pair};
use crate::reading::read_all;
use crate::rig::metrics_page;
use crate::rig::millrace::{Eviction, Workers};
use crate::rig::mounted::Mounted;

/// About as many bytes in large objects as in small ones, 1.1 GB in all.
const BUCKETS: [(&str, &str); 2] =
    [("shards", "objects=32,size=2MiB..32MiB"), ("pictures", "objects=5500,size=1KiB..200KiB,per-dir=100")];

/// Their quotas together hold half of the bytes.
const WORKERS: usize = 3;

/// Share of a quota that is for a worker's own blocks, percent; the rest is kept for what it reads through for others.
const OWN_PERCENT: u64 = 95;

/// The first fills the cache; the others are judged.
const EPOCHS: usize = 3;

/// Readers of the mount.
const READERS: usize = 4;

/// A mount that keeps nothing, and a page cache that is dropped between the epochs; every byte is compared.
pub fn run(lab: &Lab) -> Result<Outcome> {
    if caches::check_may_drop().is_err() {
        return Ok(Outcome::Skipped("only root can drop the page cache".to_owned()));
    }
    let mut mixed = Mixed::start(lab, &BUCKETS)?;
    let mut measured = Measured::new("half-cache", "hit ratio", Bar::Within(Figure::Ours, 0.50, 0.02));
    let mut notes = Vec::new();
    lab.rounds(&mut measured, |round| {
        let seen = epochs(lab, &mut mixed, Eviction::Never, round)?;
        notes = seen.notes();
        notes.iter().for_each(|note| eprintln!("  {note}"));
        Ok(Pair { ours: seen.hit_ratio, baseline: None })
    })?;
    let lru = epochs(lab, &mut mixed, Eviction::Lru, 0)?;
    measured.notes = vec![
        format!("with eviction LRU {:.3}, once", lru.hit_ratio),
        format!(
            "{} files, {:.2} GB, {WORKERS} workers with room for a sixth each of their own, every byte compared",
            mixed.files.len(),
            mixed.bytes() as f64 / 1e9
        ),
    ];
    measured.notes.extend(notes);
    Ok(Outcome::Measured(vec![measured]))
}

/// What was seen in the epochs of one round.
struct Seen {
    /// Share of the bytes read after the first epoch that did not leave S3.
    hit_ratio: f64,
    /// Shares of the dataset's bytes that left S3, by epoch.
    from_s3: Vec<f64>,
    /// What the workers' stores take in the end, pages and sidecars, as a share of the dataset's bytes.
    held: f64,
    /// What the mount had from the workers, for each byte that was read.
    fetched: f64,
    /// Chunks that workers asked S3 for a second time because they would have come late, as bytes for each byte read.
    overtaken: f64,
}

impl Seen {
    fn notes(&self) -> Vec<String> {
        let epochs: Vec<String> = self.from_s3.iter().map(|share| format!("{share:.3}")).collect();
        vec![
            format!("of the bytes left S3 in each epoch of the last round {}", epochs.join(", ")),
            format!(
                "then the stores take {:.3} of them; the mount fetched {:.3} of what was read, {:.3} was overtaken",
                self.held, self.fetched, self.overtaken
            ),
        ]
    }
}

fn epochs(lab: &Lab, mixed: &mut Mixed, eviction: Eviction, round: usize) -> Result<Seen> {
    let bytes = mixed.bytes();
    let setup = mixed.setup(WORKERS, bytes / 2 / WORKERS as u64 * 100 / OWN_PERCENT);
    let workers = Workers::start_with(lab, &setup, eviction)?;
    let mounted = Mounted::start(lab, &workers, None, None)?;
    let mut from_s3 = Vec::new();
    for number in 0..EPOCHS {
        caches::drop_all()?;
        let files = shuffled(mixed.files.clone(), round * EPOCHS + number);
        mixed.origin.reset()?;
        read_all(lab, mounted.path(), &files, READERS)?;
        from_s3.push(mixed.origin.counters()?.body_bytes as f64 / bytes as f64);
    }
    ensure!(from_s3[0] >= 1.0, "an empty cache had {:.3} of the bytes", 1.0 - from_s3[0]);
    let of_workers = |name: &str| -> Result<f64> {
        let pages = workers.workers.iter().map(|worker| metrics_page::fetch(&worker.addresses.admin));
        Ok(pages.collect::<Result<Vec<_>>>()?.iter().map(|page| metrics_page::sum(page, name, "")).sum())
    };
    let page = metrics_page::fetch(&mounted.admin)?;
    let read = bytes as f64 * EPOCHS as f64;
    Ok(Seen {
        hit_ratio: 1.0 - from_s3[1..].iter().sum::<f64>() / (EPOCHS - 1) as f64,
        from_s3,
        held: of_workers("cache_worker_store_used_bytes")? / bytes as f64,
        fetched: metrics_page::sum(&page, "csi_driver_fetched_bytes_total", "") / read,
        overtaken: of_workers("cache_worker_overtaken_chunks_total")? * CHUNK_BYTES as f64 / read,
    })
}
