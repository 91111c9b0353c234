//! How fast is everything listed with its attributes, from nothing and again?

use std::time::{Duration, Instant};

use anyhow::Result;
use millrace_workload::clock::Monotonic;
use millrace_workload::metadata::{Look, walk};
use millrace_workload::run::Plan;

use super::{Group, Samples, Turn};
use crate::cases::native::make_natively;
use crate::comparison::stage::{Sample, Seen, forget, watched};
use crate::rivals::Contender;

pub(super) const GROUP: Group = Group {
    cases: &["listing-first", "listing-second"],
    bucket: "bucket=names,objects=20000,size=100KiB,per-dir=200",
    write: make_natively,
    of_mount,
    of_plain,
};

/// Whoever takes longer is judged by what was seen until then.
const LIMIT: Duration = Duration::from_secs(10);

fn of_mount(turn: &mut Turn<'_>, contender: &dyn Contender) -> Result<Samples> {
    forget(turn.lab)?;
    let started = Instant::now();
    turn.scene.origin.reset()?;
    let mount = turn.mount(contender)?;
    let mounting = started.elapsed().as_secs_f64();
    let before = turn.scene.origin.counters()?.requests.values().sum::<u64>();
    let mut list = |seconds: f64, requests: u64| -> Result<Sample> {
        let plan = Plan { clock: &Monotonic, threads: 1, runtime: LIMIT, seed: 0 };
        let look = |_: &_| Ok(walk(plan, mount.shown.path(), Look::Long)?);
        let (outcome, seen) = watched(turn.scene, mount.is_of_s3(), &mount.pids, look)?;
        let seen = Seen { requests: seen.requests + requests, ..seen };
        Ok(sample(outcome.files as f64, outcome.seconds + seconds, seen))
    };
    let first = list(mounting, before)?;
    forget(turn.lab)?;
    Ok(vec![("listing-first", first), ("listing-second", list(0.0, 0)?)])
}

fn of_plain(turn: &mut Turn<'_>) -> Result<Samples> {
    let lab = turn.lab;
    let list = |scene: &crate::cases::scene::Scene| scene.plain.list(lab, usize::MAX);
    let ((keys, took), seen) = watched(turn.scene, true, &[], list)?;
    Ok(vec![("listing-first", sample(keys as f64, took.as_secs_f64(), seen))])
}

fn sample(items: f64, seconds: f64, seen: Seen) -> Sample {
    Sample { value: items / seconds, items, read_bytes: 0, seen }
}
