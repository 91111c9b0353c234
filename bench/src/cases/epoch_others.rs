//! How fast is the first epoch over many small objects, against other mounts of the same bucket?

use anyhow::Result;

use super::Outcome;
use super::epoch::{Epoch, LARGE, SMALL, THREADS, ours, shuffled};
use super::scene::Scene;
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured};
use crate::reading::read_all;
use crate::rig::usage::CpuSplit;
use crate::rivals::{Contender, Place, Rclone, S3fs};

/// Files of the epoch that the other mount reads: its rate is steady, and the whole epoch takes minutes.
const THEIR_FILES: usize = 1000;

/// Against s3fs; no data cache on disk, as it is cold.
pub fn s3fs(lab: &Lab) -> Result<Outcome> {
    compare(lab, "epoch-s3fs", SMALL, &[&S3fs], 3.0)
}

/// Against rclone without a data cache.
pub fn rclone(lab: &Lab) -> Result<Outcome> {
    compare(lab, "epoch-rclone", SMALL, &[&Rclone], 3.0)
}

/// Against the better of the two, with the origin's cap.
pub fn best_rival(lab: &Lab) -> Result<Outcome> {
    compare(lab, "epoch-best-rival", LARGE, &[&S3fs, &Rclone], 5.0)
}

/// Against whoever is the fastest in one try.
fn compare(lab: &Lab, case: &str, epoch: Epoch, others: &[&dyn Contender], bar: f64) -> Result<Outcome> {
    let (mut installed, mut notes) = (Vec::new(), Vec::new());
    for other in others {
        match other.version(lab) {
            Ok(version) => {
                notes.push(format!("{} {version}", other.name()));
                installed.push(*other);
            }
            Err(error) => notes.push(format!("{error:#}")),
        }
    }
    if installed.is_empty() {
        return Ok(Outcome::Skipped(notes.join("; ")));
    }
    let mut scene = epoch.scene(lab)?;
    scene.verify(lab, 1, THREADS)?;
    let (mut split, scene) = (CpuSplit::default(), &scene);
    let mut best: Option<(f64, &dyn Contender)> = None;
    for other in installed {
        let rate = theirs(lab, scene, other, Bytes::Compared, 0)?;
        notes.push(format!("{}: {rate:.0} files/s in one try", other.name()));
        best = best.filter(|(known, _)| *known >= rate).or(Some((rate, other)));
    }
    let Some((_, other)) = best else { return Ok(Outcome::Skipped(notes.join("; "))) };
    let mut measured = lab.compare(
        Measured::new(case, "files/s", Bar::AtLeast(Figure::Ratio, bar)),
        |round| ours(lab, scene, round, &mut split),
        |round| theirs(lab, scene, other, Bytes::Ignored, round),
    )?;
    notes.push(format!("{} reads the first {THEIR_FILES} files of the epoch", other.name()));
    notes.push(split.note("of ours"));
    measured.notes = notes;
    Ok(Outcome::Measured(vec![measured]))
}

/// What is done with the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bytes {
    /// They are compared with the objects.
    Compared,
    /// Nothing: it is timed.
    Ignored,
}

/// Files a second of a fresh mount of the other system.
fn theirs(lab: &Lab, scene: &Scene, other: &dyn Contender, bytes: Bytes, round: usize) -> Result<f64> {
    let nothing = lab.disk_dir("native")?;
    let place = Place {
        endpoint: &scene.origin.endpoint,
        bucket: &scene.bucket,
        native: nothing.path(),
        cache: None,
    };
    let mounted = other.mount(lab, place)?;
    let files = if bytes == Bytes::Compared { scene.files.clone() } else { scene.unchecked() };
    let mut files = shuffled(files, round);
    files.truncate(THEIR_FILES);
    let took = read_all(lab, mounted.path(), &files, THREADS)?;
    Ok(files.len() as f64 / took.as_secs_f64())
}
