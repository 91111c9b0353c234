//! What does each contender do in a round, and in which order do they take turns?
//!
//! Cases that follow from each other (a second epoch from the first) are measured in one go, on the same mount.

mod large;
mod listing;
mod random;
mod small;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use aws_sdk_s3::meta::PKG_VERSION;
use millrace_s3_server::faults::plan::FaultPlan;
use tempfile::TempDir;

use super::document::Found;
use super::stage::Sample;
use crate::cases::scene::Scene;
use crate::lab::Lab;
use crate::plain::parts;
use crate::reading::Expected;
use crate::rivals::{Contender, Millrace, Place, Shown};

/// The S3 server: so far away, and so fast for all together, bytes a second.
pub const FIRST_BYTE: Duration = Duration::from_millis(10);
/// See [`FIRST_BYTE`].
pub const CAP: u64 = 400_000_000;

/// What is said of the plain download.
const PLAIN: &str = "parallel GETs that keep nothing, without checksums or retries, with the best of 4, 8, 16, 32 and 64 requests in \
                     flight; no file system, the bytes are thrown away";

/// Samples of one round.
type Samples = Vec<(&'static str, Sample)>;

/// Cases that are measured together.
pub struct Group {
    /// Their names.
    pub cases: &'static [&'static str],
    bucket: &'static str,
    write: fn(&Path, &Expected) -> Result<()>,
    of_mount: fn(&mut Turn<'_>, &dyn Contender) -> Result<Samples>,
    of_plain: fn(&mut Turn<'_>) -> Result<Samples>,
}

/// All groups.
pub const GROUPS: &[Group] = &[small::GROUP, large::GROUP, random::GROUP, listing::GROUP];

/// Where and when a contender is measured.
pub struct Turn<'a> {
    lab: &'a Lab,
    scene: &'a mut Scene,
    native: &'a Path,
    round: usize,
    window: usize,
}

/// A mount with nothing cached yet; it ends before its cache.
struct Mount {
    shown: Box<dyn Shown>,
    pids: Vec<u32>,
    _cache: TempDir,
}

impl Turn<'_> {
    fn mount(&self, contender: &dyn Contender) -> Result<Mount> {
        let cache = self.lab.disk_dir("cache")?;
        let place = Place {
            endpoint: &self.scene.origin.endpoint,
            bucket: &self.scene.bucket,
            native: self.native,
            cache: Some(cache.path()),
        };
        let shown = contender.mount(self.lab, place)?;
        Ok(Mount { pids: shown.pids(), shown, _cache: cache })
    }
}

impl Mount {
    /// Whether S3 is where the bytes come from.
    fn is_of_s3(&self) -> bool {
        !self.pids.is_empty()
    }
}

/// Measures everybody in turn, each round in another order. One of the others that fails is left out from there on, with a
/// line that says so.
///
/// # Errors
/// Where Millrace fails, or the user interrupts.
pub fn measure(
    lab: &Lab,
    group: &Group,
    contenders: &[(Box<dyn Contender>, String)],
    rounds: usize,
) -> Result<(Vec<Found>, Vec<String>)> {
    let plan = FaultPlan::default().with_first_byte(FIRST_BYTE).with_rates(None, Some(CAP));
    let mut scene = Scene::start(lab, group.bucket, plan)?;
    let native = lab.disk_dir("native")?;
    for file in &scene.files {
        (group.write)(native.path(), file)?;
    }
    let parts = parts(&scene.objects);
    let quarter = &parts[..parts.len().div_ceil(4).min(MOST_TRIED)];
    let window = scene.plain.best_window(lab, quarter)?;
    let mut found: Vec<Found> =
        contenders.iter().map(|(one, version)| empty(one.as_ref(), version)).collect();
    found.push(Found {
        name: "plain download".to_owned(),
        version: format!("aws-sdk-s3 {PKG_VERSION}"),
        setup: PLAIN.to_owned(),
        ..Found::default()
    });
    let (mut failures, mut failed) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for turn in 0..found.len() {
            lab.check()?;
            let index = (turn + round) % found.len();
            if failed.contains(&index) {
                continue;
            }
            let (contender, name) = (contenders.get(index).map(|(one, _)| one), found[index].name.clone());
            let mut turn = Turn { lab, scene: &mut scene, native: native.path(), round, window };
            let samples = match contender {
                Some(contender) => (group.of_mount)(&mut turn, contender.as_ref()),
                None => (group.of_plain)(&mut turn),
            };
            match samples {
                Ok(samples) => {
                    tell(&name, round, &samples);
                    for (case, sample) in samples {
                        found[index].samples.entry(case).or_default().push(sample);
                    }
                }
                Err(error) if lab.is_interrupted() || name == Millrace.name() => {
                    return Err(error).with_context(|| format!("measure {name}"));
                }
                Err(error) => {
                    // What it logged is for who runs this; it names folders of the machine.
                    eprintln!("{name} fails and is left out from here on: {error:#}");
                    failures
                        .push(format!("{name} failed in round {} and is left out from there on", round + 1));
                    failed.push(index);
                }
            }
        }
    }
    Ok((found, failures))
}

/// So many parts at most are tried with each number of requests in flight.
const MOST_TRIED: usize = 1000;

fn empty(contender: &dyn Contender, version: &str) -> Found {
    let (name, setup) = (contender.name().to_owned(), contender.setup().to_owned());
    Found { name, version: version.to_owned(), setup, ..Found::default() }
}

fn tell(name: &str, round: usize, samples: &Samples) {
    for (case, Sample { value, items, seen, read_bytes: _ }) in samples {
        let memory = seen.memory_bytes.map_or_else(String::new, |bytes| format!(", {} MiB", bytes >> 20));
        let round = round + 1;
        eprintln!(
            "  {case} round {round}: {name} {value:.3} ({items:.0} items, {} requests, {:.1} MB{memory})",
            seen.requests,
            seen.bytes as f64 / 1e6
        );
    }
}
