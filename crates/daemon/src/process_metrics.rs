//! How much memory and how many files does this process use, as metrics?
//!
//! | metric | meaning |
//! |---|---|
//! | `process_resident_anonymous_bytes` | heap and stacks in memory (`RssAnon`) |
//! | `process_resident_memory_bytes` | all resident memory, mapped files included |
//! | `process_open_fds`, `process_max_fds` | files open, and how many may be |
//! | `cgroup_memory_bytes{kind}` | what the kernel charges to the cgroup: `current`, `anon`, `file`, `shmem` |
//! | `cgroup_memory_limit_bytes` | what `current` may be |

use std::path::{Path, PathBuf};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, IntGaugeVec, Opts, Registry};

use crate::memory::{Cgroup, MemoryLimit, MemoryUsage};

/// Adds the metrics of this process to the registry. `root` is `/`, or a tree that looks like it. They are read when they are
/// gathered; what cannot be read then keeps its last value.
///
/// # Errors
/// When the registry has them already.
pub fn register(registry: &Registry, root: &Path) -> Result<(), prometheus::Error> {
    registry.register(Box::new(ProcessMetrics::new(root)?))
}

struct ProcessMetrics {
    root: PathBuf,
    cgroup: Option<Cgroup>,
    anonymous: IntGauge,
    resident: IntGauge,
    open_fds: IntGauge,
    max_fds: IntGauge,
    cgroup_memory: IntGaugeVec,
    cgroup_limit: IntGauge,
}

impl ProcessMetrics {
    fn new(root: &Path) -> Result<Self, prometheus::Error> {
        Ok(Self {
            root: root.to_owned(),
            cgroup: Cgroup::find(root).ok().flatten(),
            anonymous: IntGauge::new("process_resident_anonymous_bytes", "Heap and stacks in memory.")?,
            resident: IntGauge::new(
                "process_resident_memory_bytes",
                "Resident memory, mapped files included.",
            )?,
            open_fds: IntGauge::new("process_open_fds", "Open file descriptors.")?,
            max_fds: IntGauge::new("process_max_fds", "File descriptors that may be open.")?,
            cgroup_memory: IntGaugeVec::new(
                Opts::new(
                    "cgroup_memory_bytes",
                    "Memory charged to the cgroup, by kind; file includes shmem.",
                ),
                &["kind"],
            )?,
            cgroup_limit: IntGauge::new("cgroup_memory_limit_bytes", "Memory that the cgroup may use.")?,
        })
    }

    fn read(&self) {
        if let Ok(status) = std::fs::read_to_string(self.root.join("proc/self/status")) {
            if let Some(kib) = field_kib(&status, "RssAnon:") {
                set(&self.anonymous, kib * 1024);
            }
            if let Some(kib) = field_kib(&status, "VmRSS:") {
                set(&self.resident, kib * 1024);
            }
        }
        if let Ok(fds) = std::fs::read_dir(self.root.join("proc/self/fd")) {
            // One of them is the folder being read.
            set(&self.open_fds, (fds.count() as u64).saturating_sub(1));
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        set(&self.max_fds, limit.unwrap_or(u64::MAX));
        if let Some(Ok(usage)) = self.cgroup.as_ref().map(Cgroup::usage) {
            let MemoryUsage { current, anon, file, shmem } = usage;
            for (kind, bytes) in [("current", current), ("anon", anon), ("file", file), ("shmem", shmem)] {
                set(&self.cgroup_memory.with_label_values(&[kind]), bytes);
            }
        }
        if let Ok(limit) = MemoryLimit::find(None, &self.root) {
            set(&self.cgroup_limit, limit.bytes);
        }
    }

    fn collectors(&self) -> [&dyn Collector; 6] {
        let Self { root: _, cgroup: _, anonymous, resident, open_fds, max_fds, cgroup_memory, cgroup_limit } =
            self;
        [anonymous, resident, open_fds, max_fds, cgroup_memory, cgroup_limit]
    }
}

impl Collector for ProcessMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.read();
        self.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}

fn set(gauge: &IntGauge, value: u64) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}

/// The number of a line `Name:   123 kB` of `/proc/self/status`.
fn field_kib(status: &str, name: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_open_files_of_this_process_are_measured() {
        let registry = Registry::new();
        register(&registry, Path::new("/")).unwrap();
        let value = |name: &str| {
            let families = registry.gather();
            let family = families.iter().find(|family| family.name() == name).unwrap();
            family.get_metric()[0].get_gauge().get_value()
        };
        assert!(value("process_resident_anonymous_bytes") > 0.0);
        assert!(value("process_resident_memory_bytes") >= value("process_resident_anonymous_bytes"));
        let before = value("process_open_fds");
        assert!(before >= 3.0 && before <= value("process_max_fds"));
        let files: Vec<_> = (0..100).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        assert!(value("process_open_fds") >= before + 90.0);
        drop(files);
    }
}
