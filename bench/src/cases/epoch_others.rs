//! How fast is the first epoch over many small objects, against other mounts of the same bucket?

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;

use super::Outcome;
use super::epoch::{THREADS, ours, scene, shuffled};
use super::scene::Scene;
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured};
use crate::reading::read_all;
use crate::rig::child::Program;
use crate::rig::mounted::{detach, is_mounted};
use crate::rig::usage::CpuSplit;

/// Files of the epoch that the other mount reads: its rate is steady, and the whole epoch takes minutes.
const THEIR_FILES: usize = 1000;

/// For a mount to be there.
const START: Duration = Duration::from_secs(20);

/// Another way to mount a bucket.
struct Other {
    case: &'static str,
    program: &'static str,
    command: fn(&Scene, &Path) -> Command,
}

/// Against s3fs with its own defaults for parallel work and a large stat cache; no data cache on disk, as it is cold.
pub fn s3fs(lab: &Lab) -> Result<Outcome> {
    compare(lab, &Other { case: "epoch-s3fs", program: "s3fs", command: s3fs_command })
}

/// Against rclone with directories cached for long and no data cache.
pub fn rclone(lab: &Lab) -> Result<Outcome> {
    compare(lab, &Other { case: "epoch-rclone", program: "rclone", command: rclone_command })
}

fn s3fs_command(scene: &Scene, point: &Path) -> Command {
    let mut command = Command::new("s3fs");
    let url = format!("url={}", scene.origin.endpoint);
    command.arg("epoch").arg(point).args([
        "-f",
        "-o",
        "public_bucket=1",
        "-o",
        &url,
        "-o",
        "use_path_request_style",
    ]);
    for option in
        ["ro", "max_stat_cache_size=1000000", "stat_cache_expire=3600", "multireq_max=64", "kernel_cache"]
    {
        command.args(["-o", option]);
    }
    command
}

fn rclone_command(scene: &Scene, point: &Path) -> Command {
    let mut command = Command::new("rclone");
    let remote = format!(":s3,provider=Other,env_auth=false,endpoint='{}':epoch", scene.origin.endpoint);
    command.arg("mount").arg(remote).arg(point).args(["--read-only", "--config", "/dev/null"]);
    command.args([
        "--dir-cache-time",
        "1h",
        "--attr-timeout",
        "1h",
        "--no-checksum",
        "--no-modtime",
        "--vfs-cache-mode",
        "off",
    ]);
    command
}

fn compare(lab: &Lab, other: &Other) -> Result<Outcome> {
    let version = Command::new(other.program).arg("--version").output();
    let Ok(version) = version else {
        return Ok(Outcome::Skipped(format!("{} is not installed (scripts/setup bench)", other.program)));
    };
    let version = String::from_utf8_lossy(&version.stdout).lines().next().unwrap_or_default().to_owned();
    let mut scene = scene(lab)?;
    scene.verify(lab, 1, THREADS)?;
    let (mut split, scene) = (CpuSplit::default(), &scene);
    let mut measured = lab.compare(
        Measured::new(other.case, "files/s", Bar::AtLeast(Figure::Ratio, 3.0)),
        |round| ours(lab, scene, round, &mut split),
        |round| theirs(lab, scene, other, round),
    )?;
    measured.notes =
        vec![version, format!("it reads the first {THEIR_FILES} files of the epoch"), split.note("of ours")];
    Ok(Outcome::Measured(vec![measured]))
}

/// Files a second of a fresh mount of the other system; the bytes are compared in the first round.
fn theirs(lab: &Lab, scene: &Scene, other: &Other, round: usize) -> Result<f64> {
    let (dir, point) = (lab.disk_dir("other")?, lab.disk_dir("mount")?);
    let mut command = (other.command)(scene, point.path());
    // rclone refuses to start where it is set.
    command.env_remove("AWS_CA_BUNDLE").stdin(Stdio::null()).stdout(Stdio::null());
    let mut process = Program::start(other.program, &mut command, &dir.path().join("log"))?;
    let guard = Detach(point.path());
    process.wait_for("its mount", START, || is_mounted(point.path()).then_some(()))?;
    let mut files = shuffled(if round == 0 { scene.files.clone() } else { scene.unchecked() }, round);
    files.truncate(THEIR_FILES);
    let took = read_all(lab, point.path(), &files, THREADS)?;
    process.stop();
    drop(guard);
    Ok(files.len() as f64 / took.as_secs_f64())
}

/// Takes the mount away at the end, also where something failed.
struct Detach<'a>(&'a Path);

impl Drop for Detach<'_> {
    fn drop(&mut self) {
        detach(self.0);
    }
}
