//! How fast is a large file read twice, and at random after that?

use std::time::Duration;

use anyhow::{Context, Result};

use super::random::median_read;
use super::{Group, Samples, Turn};
use crate::cases::native::write_natively;
use crate::cases::scene::mb_per_second;
use crate::comparison::stage::{Sample, Seen, forget, watched};
use crate::plain::parts;
use crate::reading::read_all;
use crate::rivals::Contender;

pub(super) const GROUP: Group = Group {
    cases: &["large-first", "large-second", "random-second"],
    bucket: "bucket=large,objects=1,size=1GiB",
    write: write_natively,
    of_mount,
    of_plain,
};

fn of_mount(turn: &mut Turn<'_>, contender: &dyn Contender) -> Result<Samples> {
    let mut samples = Vec::new();
    forget(turn.lab)?;
    let mount = turn.mount(contender)?;
    let (lab, path, files) = (turn.lab, mount.shown.path(), turn.scene.unchecked());
    for case in ["large-first", "large-second"] {
        let read = |_: &_| read_all(lab, path, &files, 1);
        let (took, seen) = watched(turn.scene, mount.is_of_s3(), &mount.pids, read)?;
        samples.push((case, sample(turn.scene.bytes(), took, seen)));
        forget(lab)?;
    }
    let file = turn.scene.files.first().context("the bucket is empty")?.clone();
    samples.push(("random-second", median_read(turn, &mount, &file)?));
    if turn.round == 0 {
        read_all(lab, path, &[file], 1).context("compare bytes")?;
    }
    Ok(samples)
}

fn of_plain(turn: &mut Turn<'_>) -> Result<Samples> {
    forget(turn.lab)?;
    let (lab, window, parts) = (turn.lab, turn.window, parts(&turn.scene.objects));
    let (took, seen) = watched(turn.scene, true, &[], |scene| scene.plain.download(lab, &parts, window))?;
    Ok(vec![("large-first", sample(turn.scene.bytes(), took, seen))])
}

fn sample(bytes: u64, took: Duration, seen: Seen) -> Sample {
    let value = mb_per_second(bytes, took);
    Sample { value, items: bytes as f64 / 1e6, read_bytes: bytes, seen }
}
