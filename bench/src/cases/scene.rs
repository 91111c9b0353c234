//! What do the cases that read through a mount have in common?

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use millrace_s3_server::backend::spec::SyntheticSpec;
use millrace_s3_server::faults::plan::FaultPlan;
use tempfile::TempDir;

use crate::lab::Lab;
use crate::plain::Plain;
use crate::reading::{Expected, read_all};
use crate::rig::millrace::{Folder, Medium, Setup, Workers};
use crate::rig::mounted::{Mounted, NodeStore};
use crate::rig::origin::{Bucket, Origin};
use crate::rig::usage::CpuSplit;

/// More than any dataset here, bytes.
pub const QUOTA: u64 = 16 << 30;

/// A bucket at an S3 server, and what lies in it.
pub struct Scene {
    /// The server.
    pub origin: Origin,
    /// A plain client of the bucket.
    pub plain: Plain,
    /// All objects with their sizes.
    pub objects: Vec<(String, u64)>,
    /// The same as files below a mount, with their bytes.
    pub files: Vec<Expected>,
    /// Name of the bucket.
    pub bucket: String,
    plan: FaultPlan,
    _dir: TempDir,
}

/// Millrace over a bucket, with nothing cached yet.
pub struct Cold {
    /// The mount; ends before what it reads from.
    pub mounted: Mounted,
    /// The workers.
    pub workers: Workers,
    /// What the mount keeps.
    pub node: TempDir,
}

impl Scene {
    /// Starts a server that behaves as `plan` says, with one synthetic bucket.
    pub fn start(lab: &Lab, spec: &str, plan: FaultPlan) -> Result<Self> {
        let spec: SyntheticSpec = spec.parse()?;
        let dir = lab.disk_dir("origin")?;
        let bucket = spec.bucket.clone();
        let mut origin = Origin::start(&[Bucket::Synthetic(spec)], &FaultPlan::default(), dir.path())?;
        let plain = Plain::new(&origin.endpoint, &bucket);
        let objects = plain.objects(lab).context("list the bucket")?;
        origin.set_faults(&plan)?;
        let files = objects.iter().map(|(key, size)| Expected {
            path: key.into(),
            key: Some(key.clone()),
            size: *size,
        });
        let files = files.collect();
        Ok(Self { origin, plain, objects, files, bucket, plan, _dir: dir })
    }

    /// Bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|(_, size)| size).sum()
    }

    /// The files, not to be compared with their objects: for rounds that are timed.
    pub fn unchecked(&self) -> Vec<Expected> {
        self.files.iter().map(|file| Expected { key: None, ..file.clone() }).collect()
    }

    /// Workers over the bucket.
    pub fn setup(&self, workers: usize, medium: Medium) -> Setup<'static> {
        let folder = Folder {
            path: String::new(),
            endpoint: self.origin.endpoint.clone(),
            bucket: self.bucket.clone(),
        };
        Setup { workers, medium, quota_bytes: QUOTA, folders: vec![folder], cgroup: None }
    }

    /// Workers with their stores in memory and a mount with its store on disk, all empty.
    pub fn cold(&self, lab: &Lab, workers: usize) -> Result<Cold> {
        self.cold_on(lab, workers, Medium::Memory)
    }

    /// The same with the workers' stores on another medium.
    pub fn cold_on(&self, lab: &Lab, workers: usize, medium: Medium) -> Result<Cold> {
        let workers = Workers::start(lab, &self.setup(workers, medium))?;
        let node = lab.disk_dir("node")?;
        let store = NodeStore { dir: node.path().to_owned(), quota_bytes: QUOTA };
        let mounted = Mounted::start(lab, &workers, Some(&store), None)?;
        Ok(Cold { mounted, workers, node })
    }

    /// Reads everything cold without the plan, and compares each byte. Also warms up what every later round needs: the
    /// programs in the page cache, the server's bytes.
    pub fn verify(&mut self, lab: &Lab, workers: usize, threads: usize) -> Result<()> {
        eprintln!("  comparing all bytes once");
        self.origin.set_faults(&FaultPlan::default())?;
        let cold = self.cold(lab, workers)?;
        read_all(lab, cold.mounted.path(), &self.files, threads).context("compare what the mount shows")?;
        drop(cold);
        self.origin.set_faults(&self.plan.clone())
    }

    /// Reads everything cold, and returns MB/s.
    pub fn cold_rate(
        &self,
        lab: &Lab,
        workers: usize,
        threads: usize,
        files: &[Expected],
        split: &mut CpuSplit,
    ) -> Result<f64> {
        let cold = self.cold(lab, workers)?;
        let took =
            split.during(&self.processes(&cold), || read_all(lab, cold.mounted.path(), files, threads))?;
        Ok(mb_per_second(self.bytes(), took))
    }

    /// The processes that a read keeps busy.
    pub fn processes(&self, cold: &Cold) -> Vec<(&'static str, u32)> {
        let mut processes = vec![("S3 server", self.origin.program.pid())];
        processes.extend(cold.workers.pids());
        processes.extend([("mount", cold.mounted.program.pid()), ("reader", std::process::id())]);
        processes
    }
}

/// Megabytes a second.
pub fn mb_per_second(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / 1e6 / took.as_secs_f64()
}

/// The disk's own write rate, with the flush at the end, as a note.
pub fn disk_note(lab: &Lab) -> Result<String> {
    const BYTES: usize = 1 << 30;
    let dir = lab.disk_dir("write")?;
    let piece = vec![0x5a; 1 << 20];
    let started = Instant::now();
    let mut file = std::fs::File::create(dir.path().join("file"))?;
    for _ in 0..BYTES / piece.len() {
        std::io::Write::write_all(&mut file, &piece)?;
    }
    file.sync_data()?;
    Ok(format!("disk writes {:.0} MB/s", mb_per_second(BYTES as u64, started.elapsed())))
}
