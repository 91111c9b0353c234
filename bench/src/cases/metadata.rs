//! How fast are 200,000 files listed with their attributes, against ext4?

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Result, ensure};
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_workload::caches;

use super::Outcome;
use super::native::make_natively;
use super::scene::Scene;
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured};

/// 1,000 folders of 200 files, nothing in the kernel's caches; rates are files a second.
pub fn run(lab: &Lab) -> Result<Outcome> {
    if caches::check_may_drop().is_err() {
        return Ok(Outcome::Skipped("only root can drop the page cache".to_owned()));
    }
    let spec = "bucket=names,objects=200000,size=100KiB,per-dir=200";
    let scene = Scene::start(lab, spec, FaultPlan::default())?;
    let native = lab.disk_dir("native")?;
    for file in &scene.files {
        make_natively(native.path(), file)?;
    }
    let cold = scene.cold(lab, 1)?;
    let count = scene.files.len();
    let mut lines = Vec::new();
    let cases: [(&str, &str, &[&str]); 2] =
        [("find-size", "find", &["-size", "+1G"]), ("ls-lR", "ls", &["-lR"])];
    for (case, program, args) in cases {
        lines.push(lab.compare(
            Measured::new(case, "files/s", Bar::AtLeast(Figure::Ratio, 1.7)),
            |_| listed(program, args, cold.mounted.path(), count),
            |_| listed(program, args, native.path(), count),
        )?);
    }
    Ok(Outcome::Measured(lines))
}

/// Files a second that a command lists.
fn listed(program: &str, args: &[&str], root: &Path, count: usize) -> Result<f64> {
    caches::drop_all()?;
    let mut command = Command::new(program);
    // find wants its folder first, ls does not mind.
    command.arg(root).args(args).stdout(Stdio::null());
    let started = Instant::now();
    ensure!(command.status()?.success(), "{program} in {root:?} fails");
    Ok(count as f64 / started.elapsed().as_secs_f64())
}
