//! How are results told to programs?

use std::path::{Path, PathBuf};

use anyhow::Context;
use k8s_openapi::jiff::Timestamp;
use millrace_csi_driver::mount::mountinfo::{self, MountEntry};
use millrace_daemon::memory::MemoryLimit;
use millrace_workload::overhead::Overhead;
use millrace_workload::run::Outcome;
use millrace_workload::train::Training;
use serde::Serialize;

use super::args::TrainArgs;
use super::measure::TrainedFrom;
use super::plan::Step;
use super::worker_metrics::Origin;

/// All results with what is needed to judge them.
#[derive(Debug, Serialize)]
pub struct Document {
    /// Version of the program.
    pub version: &'static str,
    /// When it began.
    pub started_at: String,
    /// The folder.
    pub path: PathBuf,
    /// What is mounted there.
    pub file_system: Option<FileSystem>,
    /// The machine.
    pub machine: Machine,
    /// Where pseudo-random orders started.
    pub seed: u64,
    /// Whether the kernel's caches were dropped before each measurement.
    pub drop_caches: bool,
    /// The measurements but those of train.
    pub results: Vec<Line>,
    /// The measurements of train.
    pub training: Vec<TrainLine>,
    /// What the program itself costs, where that was asked for.
    pub overhead: Option<Overhead>,
    /// Cases that were left out, with the reason.
    pub skipped: Vec<String>,
    /// What else is to be known of the results.
    pub notes: Vec<String>,
}

/// One measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// Name of the case.
    pub case: &'static str,
    /// What of the case.
    pub variant: Option<&'static str>,
    /// Size of a block, bytes.
    pub block_bytes: Option<u64>,
    /// Threads.
    pub threads: usize,
    /// Whether it went round the page cache.
    pub is_direct: bool,
    /// Which repetition, from 1 on.
    pub repetition: u32,
    /// Megabytes (10^6 bytes) a second.
    pub megabytes_per_second: f64,
    /// Operations a second.
    pub operations_per_second: f64,
    /// Files or entries a second.
    pub files_per_second: f64,
    /// What was counted.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// What S3 was asked for meanwhile, where workers were named.
    pub origin: Option<Origin>,
}

/// One job.
#[derive(Debug, Clone, Serialize)]
pub struct TrainLine {
    /// Name of the model.
    pub profile: &'static str,
    /// Name of the accelerator.
    pub accelerator: &'static str,
    /// Accelerators.
    pub ranks: usize,
    /// Threads that read for each.
    pub read_threads: usize,
    /// Batches that may lie ready.
    pub prefetch: u64,
    /// Size of samples as a share of the profile's.
    pub sample_scale: f64,
    /// Which repetition, from 1 on.
    pub repetition: u32,
    /// Megabytes (10^6 bytes) a second.
    pub megabytes_per_second: f64,
    /// Samples a second, first steps included.
    pub samples_per_second: f64,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Training,
    /// What was read.
    #[serde(flatten)]
    pub from: TrainedFrom,
    /// What S3 was asked for meanwhile, where workers were named.
    pub origin: Option<Origin>,
}

impl TrainLine {
    /// Of a job.
    pub fn new(
        args: &TrainArgs,
        ranks: usize,
        repetition: u32,
        outcome: Training,
        from: TrainedFrom,
        origin: Option<Origin>,
    ) -> Self {
        let profile = args.profile();
        Self {
            profile: profile.model.name(),
            accelerator: profile.accelerator.name(),
            ranks,
            read_threads: profile.read_threads,
            prefetch: profile.prefetch,
            sample_scale: args.sample_scale,
            repetition,
            megabytes_per_second: outcome.megabytes_per_second(),
            samples_per_second: outcome.samples_per_second(),
            outcome,
            from,
            origin,
        }
    }
}

impl Line {
    /// Of a measurement.
    pub fn new(step: Step, repetition: u32, outcome: Outcome, origin: Option<Origin>) -> Self {
        Self {
            case: step.case.name(),
            variant: step.what.variant(),
            block_bytes: step.what.block_bytes(),
            threads: step.threads,
            is_direct: step.what.is_direct(),
            repetition,
            megabytes_per_second: outcome.megabytes_per_second(),
            operations_per_second: outcome.operations_per_second(),
            files_per_second: outcome.files_per_second(),
            outcome,
            origin,
        }
    }
}

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileSystem {
    /// Its type, such as ext4 or fuse.rclone.
    pub kind: String,
    /// Its device or name.
    pub source: String,
    /// Where it is mounted.
    pub mounted_at: PathBuf,
}

/// The machine that measures.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Release of the kernel.
    pub kernel: String,
    /// Processors that this program may use.
    pub processors: usize,
    /// Memory that this program may use, page cache included: the machine's or its control group's, bytes.
    pub memory_bytes: u64,
}

impl Document {
    /// Without results yet.
    ///
    /// # Errors
    /// Where the folder is not there.
    pub fn new(path: &Path, seed: u64, drop_caches: bool) -> anyhow::Result<Self> {
        let path = std::fs::canonicalize(path).with_context(|| format!("look for {path:?}"))?;
        let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            started_at: Timestamp::now().to_string(),
            file_system: file_system(&mounts, &path),
            path,
            machine: machine(),
            seed,
            drop_caches,
            results: Vec::new(),
            training: Vec::new(),
            overhead: None,
            skipped: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.results.is_empty() && self.training.is_empty() && self.overhead.is_none()
    }

    /// As JSON.
    ///
    /// # Errors
    /// None that is known.
    pub fn json(&self) -> anyhow::Result<String> {
        Ok(format!("{}\n", serde_json::to_string_pretty(self)?))
    }
}

fn machine() -> Machine {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // Only a doubt about results hangs on it: where the kernel does not tell, there is none.
    let limit = MemoryLimit::find(None, Path::new("/"));
    Machine {
        kernel: release.trim().to_owned(),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: limit.map_or(0, |limit| limit.bytes),
    }
}

/// What is mounted at a path, by the text of `/proc/self/mountinfo`: the longest mount point that holds it, and of several
/// there the last.
fn file_system(mounts: &[u8], path: &Path) -> Option<FileSystem> {
    let holding = mountinfo::entries(mounts).filter(|entry| path.starts_with(&entry.point));
    let MountEntry { file_system: kind, source, point: mounted_at, .. } =
        holding.max_by_key(|entry| entry.point.as_os_str().len())?;
    Some(FileSystem { kind, source, mounted_at })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_is_the_innermost_and_uppermost_mount() {
        let mounts = "21 1 254:0 / / rw - ext4 /dev/vda rw\n\
            30 21 0:40 / /mnt/a\\040b rw,nosuid shared:1 - fuse.millrace train ro\n\
            31 21 0:41 / /mnt/a\\040b rw - fuse.rclone remote: ro\n";
        let at = |path: &str| file_system(mounts.as_bytes(), Path::new(path)).unwrap();
        assert_eq!(at("/mnt/a b/c").source, "remote:");
        assert_eq!(at("/mnt/a bc").kind, "ext4");
        assert_eq!(file_system(b"", Path::new("/")), None);
    }

    #[test]
    fn this_machine_is_known() {
        let document = Document::new(Path::new("."), 7, false).unwrap();
        assert!(document.file_system.is_some() && document.machine.processors > 0);
        assert!(document.machine.memory_bytes > 1 << 20 && !document.machine.kernel.is_empty());
        let error = format!("{:#}", Document::new(Path::new("/no/such"), 7, false).unwrap_err());
        assert!(error.contains("/no/such"), "{error}");
    }
}
