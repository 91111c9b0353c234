//! Does the main job work here, on real files, from the bucket to the mount?

mod bucket;
mod local;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use millrace_s3_server::counters::Snapshot;
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_workload::caches;

use crate::lab::Lab;
use crate::plain::{Plain, parts};
use crate::reading::{Expected, compare_files, read_all};
use crate::rig::origin::{Bucket, Origin};
use bucket::Contents;
use local::Local;

/// Threads that read, in every measurement.
const THREADS: usize = 4;

/// Name of the bucket and of the Dataset.
const NAME: &str = "demo";

/// Runs it all; what it prints is for the user.
///
/// # Errors
/// With what is wrong and, where the user can do something, what.
pub fn run(lab: &Lab) -> Result<()> {
    check_fuse()?;
    let started = Instant::now();
    let dir = lab.disk_dir("demo")?;
    let contents = bucket::assemble(lab, &dir.path().join("bucket"))?;
    let Contents { root, files, bytes } = &contents;
    println!(
        "bucket: {} objects, {} (crate sources and the toolchain's archives, as they are)",
        files.len(),
        size(*bytes)
    );

    let mut origin =
        Origin::start(&[Bucket::Folder(NAME.to_owned(), root.clone())], &FaultPlan::default(), dir.path())?;
    println!("S3 server: {}", origin.endpoint);
    let all = files
        .iter()
        .map(|(path, size)| Expected { path: path.clone(), key: None, size: *size })
        .collect::<Vec<_>>();
    let is_disk_cold = caches::check_may_drop().is_ok();
    if is_disk_cold {
        caches::drop_all()?;
    }
    let disk = read_all(lab, root, &all, THREADS)?;
    let plain = download(lab, &origin)?;

    origin.reset()?;
    let mount = dir.path().join("mount");
    std::fs::create_dir(&mount)?;
    let mut local = Local::up(lab, dir.path(), &mount, &manifest(&origin.endpoint))?;
    println!("millrace: 3 workers, mounted at {}", mount.display());
    let names: Vec<PathBuf> = files.keys().cloned().collect();
    compare_names(lab, &mount, files.keys().map(PathBuf::as_path).collect())?;
    let cold = Instant::now();
    let compared =
        compare_files(lab, root, &mount, &names, THREADS).context("compare the mount with the original")?;
    let cold = cold.elapsed();
    ensure!(compared == *bytes, "{compared} of {bytes} bytes were compared");
    let counters = origin.counters()?;
    let warm = read_all(lab, &mount, &all, THREADS)?;
    let after = origin.counters()?;
    ensure!(after.body_bytes == counters.body_bytes, "the second read asked S3 again");

    local.down()?;
    println!("compared: {} files, {} byte for byte the same", names.len(), size(compared));
    print!("{}", origin_lines(&counters, *bytes));
    let rates = [
        ("cold, through the mount, compared", cold),
        ("warm, through the mount", warm),
        ("plain parallel S3 download", plain),
        (
            if is_disk_cold {
                "plain disk, page cache dropped"
            } else {
                "plain disk, page cache as it was (not root)"
            },
            disk,
        ),
    ];
    for (what, took) in rates {
        println!("{}", rate_line(what, *bytes, names.len(), took));
    }
    drop(origin);
    let path = dir.path().to_owned();
    drop(dir);
    ensure!(!path.exists(), "{path:?} is left behind");
    println!("unmounted, nothing left behind; {:.0} s in all", started.elapsed().as_secs_f64());
    println!("demo: ok");
    Ok(())
}

/// Says early and clearly what keeps a mount from working.
fn check_fuse() -> Result<()> {
    ensure!(
        Path::new("/dev/fuse").exists(),
        "there is no /dev/fuse here, and without it no mount: load the kernel module (modprobe fuse), or in a container \
         start it with --device /dev/fuse --cap-add SYS_ADMIN"
    );
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        bail!(
            "this user may not open /dev/fuse ({error}): run as root, or let users open it (chmod 0666 /dev/fuse)"
        );
    }
    let is_root = rustix::process::geteuid().is_root();
    let has_helper = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join("fusermount3").exists()));
    ensure!(
        is_root || has_helper,
        "an ordinary user mounts by fusermount3, which is not installed (Debian: fuse3)"
    );
    Ok(())
}

/// The Dataset, as a user writes it.
fn manifest(endpoint: &str) -> String {
    format!(
        "apiVersion: millrace.dev/v1alpha1\nkind: Dataset\nmetadata: {{name: {NAME}}}\nspec:\n  sources:\n  - path: /\n    s3: \
         {{bucket: {NAME}, endpoint: \"{endpoint}\", credentials: {{anonymous: {{}}}}}}\n  workers:\n    replicas: 3\n    cache:\n      \
         tiers:\n      - {{medium: Disk, quota: 4Gi}}\n  warmUp: {{when: Never}}\n  mount:\n    nodeCache: {{quota: 4Gi}}\n"
    )
}

fn download(lab: &Lab, origin: &Origin) -> Result<Duration> {
    let plain = Plain::new(&origin.endpoint, NAME);
    let parts = parts(&plain.objects(lab)?);
    let window = plain.best_window(lab, &parts[..parts.len() / 16])?;
    plain.download(lab, &parts, window)
}

/// The mount shows the same files as the bucket has, no more and no less.
fn compare_names(lab: &Lab, mount: &Path, mut wanted: BTreeSet<&Path>) -> Result<()> {
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        lab.check()?;
        for entry in
            std::fs::read_dir(mount.join(&folder)).with_context(|| format!("list {folder:?} in the mount"))?
        {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if !wanted.remove(path.as_path()) {
                bail!("the mount shows {path:?}, which the bucket does not have");
            }
        }
    }
    match wanted.first() {
        Some(path) => bail!("the mount lacks {} files, the first is {path:?}", wanted.len()),
        None => Ok(()),
    }
}

fn origin_lines(counters: &Snapshot, bytes: u64) -> String {
    let requests: u64 = counters.requests.values().sum();
    let each: Vec<String> =
        counters.requests.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{n} {name}")).collect();
    format!(
        "S3 requests: {requests} ({})\nS3 bytes: {}, {:.4} for each byte of the dataset\n",
        each.join(", "),
        size(counters.body_bytes),
        counters.body_bytes as f64 / bytes as f64
    )
}

fn rate_line(what: &str, bytes: u64, files: usize, took: Duration) -> String {
    let seconds = took.as_secs_f64();
    format!("{what:<44} {:>6.0} MB/s {:>8.0} files/s", bytes as f64 / 1e6 / seconds, files as f64 / seconds)
}

fn size(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
