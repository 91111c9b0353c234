//! How fast are two epochs over small files?

use std::time::Duration;

use anyhow::Result;

use super::{Group, Samples, Turn};
use crate::cases::epoch::{THREADS, shuffled};
use crate::cases::native::write_natively;
use crate::comparison::stage::{Sample, Seen, forget, watched};
use crate::plain::parts;
use crate::reading::{Expected, read_all, read_for};
use crate::rivals::Contender;

pub(super) const GROUP: Group = Group {
    cases: &["epoch-first", "epoch-second"],
    bucket: "bucket=small,objects=10000,size=100KiB,per-dir=100",
    write: write_natively,
    of_mount,
    of_plain,
};

/// Whoever takes longer is judged by what was read until then.
const LIMIT: Duration = Duration::from_secs(10);

/// Files whose bytes are compared, outside the time.
const COMPARED: usize = 200;

/// What is added to the round for the order of the second epoch.
const SECOND: usize = 1000;

fn of_mount(turn: &mut Turn<'_>, contender: &dyn Contender) -> Result<Samples> {
    forget(turn.lab)?;
    let mount = turn.mount(contender)?;
    let (lab, path, round) = (turn.lab, mount.shown.path(), turn.round);
    let mut files = shuffled(turn.scene.unchecked(), round);
    let mut epoch = |files: &[Expected]| {
        let read = |_: &_| read_for(lab, path, files, THREADS, LIMIT);
        let ((count, took), seen) = watched(turn.scene, mount.is_of_s3(), &mount.pids, read)?;
        anyhow::Ok((count, sample(&files[..count], took, seen)))
    };
    let (count, first) = epoch(&files)?;
    files.truncate(count);
    if round == 0 {
        let compared = files.iter().take(COMPARED).map(checked).collect::<Vec<_>>();
        read_all(lab, path, &compared, THREADS)?;
    }
    forget(lab)?;
    let (_, second) = epoch(&shuffled(files, round + SECOND))?;
    Ok(vec![("epoch-first", first), ("epoch-second", second)])
}

fn of_plain(turn: &mut Turn<'_>) -> Result<Samples> {
    forget(turn.lab)?;
    let (lab, window, parts) = (turn.lab, turn.window, parts(&turn.scene.objects));
    let (took, seen) = watched(turn.scene, true, &[], |scene| scene.plain.download(lab, &parts, window))?;
    Ok(vec![("epoch-first", sample(&turn.scene.files, took, seen))])
}

fn sample(files: &[Expected], took: Duration, seen: Seen) -> Sample {
    let items = files.len() as f64;
    let read_bytes = files.iter().map(|file| file.size).sum();
    Sample { value: items / took.as_secs_f64(), items, read_bytes, seen }
}

/// The same file, to be compared with its object: the keys of a bucket are the paths below a mount.
fn checked(file: &Expected) -> Expected {
    Expected { key: file.path.to_str().map(str::to_owned), ..file.clone() }
}
