//! How long do small reads at random places take?

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_s3_server::synthetic;
use millrace_workload::blocks::{Access, random};
use millrace_workload::clock::Monotonic;
use millrace_workload::run::Plan;
use millrace_workload::tree::Listed;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Group, Mount, Samples, Turn};
use crate::cases::native::write_natively;
use crate::comparison::stage::{Sample, forget, watched};
use crate::reading::Expected;
use crate::rivals::Contender;
use crate::stats::median;

pub(super) const GROUP: Group = Group {
    cases: &["random-first"],
    // So large that what is fetched ahead within the time is a small part of it.
    bucket: "bucket=random,objects=1,size=16GiB",
    write,
    of_mount,
    of_plain,
};

/// For how long is read.
const RUNTIME: Duration = Duration::from_secs(3);

/// Bytes of a read.
const LENGTH: u64 = 4096;

/// What the disk has of the file, bytes.
const NATIVE_BYTES: u64 = 1 << 30;

/// Blocks that are compared, outside the time.
const COMPARED: usize = 8;

/// GETs of the plain client.
const GETS: usize = 100;

/// Places that are the same in every run.
const SEED: u64 = 7;

fn write(dir: &Path, file: &Expected) -> Result<()> {
    write_natively(dir, &Expected { size: file.size.min(NATIVE_BYTES), ..file.clone() })
}

fn of_mount(turn: &mut Turn<'_>, contender: &dyn Contender) -> Result<Samples> {
    forget(turn.lab)?;
    let mount = turn.mount(contender)?;
    let file = turn.scene.files.first().context("the bucket is empty")?.clone();
    let sample = median_read(turn, &mount, &file)?;
    if turn.round == 0 {
        compare(&mount.shown.path().join(&file.path), &file).context("compare bytes")?;
    }
    Ok(vec![("random-first", sample)])
}

/// Reads a file of a mount at random, on one thread.
pub(super) fn median_read(turn: &mut Turn<'_>, mount: &Mount, file: &Expected) -> Result<Sample> {
    let path = mount.shown.path().join(&file.path);
    let size = std::fs::metadata(&path).with_context(|| format!("look at {path:?}"))?.len();
    let listed = Listed { path, size };
    let plan = Plan { clock: &Monotonic, threads: 1, runtime: RUNTIME, seed: turn.round as u64 };
    let read = |_: &_| Ok(random(plan, &[&listed], LENGTH, Access::Cached)?);
    let (outcome, seen) = watched(turn.scene, mount.is_of_s3(), &mount.pids, read)?;
    let latency = outcome.latency.context("nothing was read")?;
    let (value, items) = (latency.p50_us / 1e3, outcome.operations as f64);
    Ok(Sample { value, items, read_bytes: outcome.bytes, seen })
}

fn of_plain(turn: &mut Turn<'_>) -> Result<Samples> {
    let lab = turn.lab;
    let (key, size) = turn.scene.objects.first().context("the bucket is empty")?.clone();
    let get = |place: u64| (place, place + LENGTH);
    let ranges: Vec<(u64, u64)> = places(size).into_iter().map(get).collect();
    let (times, seen) = watched(turn.scene, true, &[], |scene| {
        let mut times = Vec::new();
        for (start, end) in &ranges {
            times.push(scene.plain.latency(lab, &key, *start..*end)?.as_secs_f64() * 1e3);
        }
        Ok(times)
    })?;
    let value = median(&times).context("nothing was read")?;
    let items = times.len() as f64;
    Ok(vec![("random-first", Sample { value, items, read_bytes: times.len() as u64 * LENGTH, seen })])
}

/// Compares a few blocks with those of the object.
fn compare(path: &Path, file: &Expected) -> Result<()> {
    let (opened, key) = (File::open(path)?, file.key.as_deref().unwrap_or_default());
    let mut block = vec![0; usize::try_from(LENGTH)?];
    for place in places(file.size.min(NATIVE_BYTES)).into_iter().take(COMPARED) {
        opened.read_exact_at(&mut block, place)?;
        ensure!(synthetic::matches(key, place, &block), "{path:?} has wrong bytes at {place}");
    }
    Ok(())
}

/// Beginnings of blocks of a file.
fn places(size: u64) -> Vec<u64> {
    let mut random = StdRng::seed_from_u64(SEED);
    (0..GETS).map(|_| random.random_range(0..size / LENGTH) * LENGTH).collect()
}
