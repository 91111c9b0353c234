//! How long does a small read at a random place take that nobody has cached?

use std::time::Duration;

use anyhow::{Context, Result};
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_workload::blocks::Access;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Outcome;
use super::scene::Scene;
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured};
use crate::reading::read_at;
use crate::stats::median;

/// The origin's first byte, ms.
const FIRST_BYTE_MS: u64 = 30;

/// Reads in a round.
const READS: usize = 100;

/// Bytes of a read.
const LENGTH: usize = 4096;

/// One object of 64 GiB, 100 reads.
pub fn run(lab: &Lab) -> Result<Outcome> {
    let far = FaultPlan::default()
        .with_first_byte(Duration::from_millis(FIRST_BYTE_MS))
        .with_rates(Some(80_000_000), None);
    let scene = Scene::start(lab, "bucket=random,objects=1,size=64GiB", far)?;
    let file = scene.files.first().context("the bucket is empty")?;
    let (mut plain, mut slow) = (Vec::new(), Vec::new());
    let mut measured = lab.compare(
        Measured::new("cold-random", "ms", Bar::AtMost(Figure::Above, 10.0)),
        |round| {
            let offsets = offsets(round, file.size);
            let cold = scene.cold(lab, 1)?;
            let times = read_at(lab, cold.mounted.path(), file, &offsets, LENGTH, Access::Cached)?;
            let mut times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
            times.sort_by(f64::total_cmp);
            slow.extend(times.get(READS * 95 / 100));
            median(&times).context("no reads")
        },
        |round| {
            let key = file.key.as_deref().unwrap_or_default();
            let mut times = Vec::new();
            for offset in offsets(round, file.size).into_iter().take(20) {
                let took = scene.plain.latency(lab, key, offset..offset + LENGTH as u64)?;
                times.push(took.as_secs_f64() * 1e3);
            }
            plain.extend(median(&times));
            Ok(FIRST_BYTE_MS as f64)
        },
    )?;
    let ms = |values: &[f64]| median(values).unwrap_or_default();
    measured.notes = vec![
        "the baseline is the origin's first byte as the server was told, not as a client sees it".to_owned(),
        format!("a plain GET of 4 KiB takes {:.1} ms", ms(&plain)),
        format!("95 % of our reads take at most {:.1} ms", ms(&slow)),
    ];
    Ok(Outcome::Measured(vec![measured]))
}

/// Places that differ from round to round and are the same in every run.
fn offsets(round: usize, size: u64) -> Vec<u64> {
    let mut random = StdRng::seed_from_u64(round as u64);
    let pages = size / LENGTH as u64;
    (0..READS).map(|_| random.random_range(0..pages) * LENGTH as u64).collect()
}
