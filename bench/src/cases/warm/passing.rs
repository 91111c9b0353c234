//! Does the kernel read a file of a mount by itself?

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millrace_workload::blocks::{Access, sequential};
use millrace_workload::clock::Monotonic;
use millrace_workload::run::{Outcome, Plan};
use millrace_workload::tree::Listed;

use crate::lab::Lab;
use crate::reading::Expected;
use crate::rig::mounted::Mounted;

/// For a file of 4 GiB to be verified behind its reader, on a busy machine.
const VERIFIED: Duration = Duration::from_secs(60);

/// Longer than any pass.
const LONG: Duration = Duration::from_secs(600);

/// What a sequential reader asks for at a time, bytes: as `millrace bench` does.
pub const SEQUENTIAL_BYTES: u64 = 1 << 20;

/// Whether the mount gives files to the kernel at all.
pub fn is_on(mounted: &Mounted) -> Result<bool> {
    Ok(mounted.metric("csi_driver_passthrough", "state=\"on\"")? > 0.0)
}

/// Opens that the kernel was to serve itself.
fn passed(mounted: &Mounted) -> Result<f64> {
    mounted.metric("csi_driver_opens_total", "how=\"passthrough\"")
}

/// Opens a file again and again until the kernel may read it itself.
pub fn wait_until_passed(lab: &Lab, mounted: &Mounted, path: &Path) -> Result<()> {
    let deadline = Instant::now() + VERIFIED;
    loop {
        let before = passed(mounted)?;
        drop(File::open(path).with_context(|| format!("open {path:?}"))?);
        if passed(mounted)? > before {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{path:?} is not read by the kernel itself within {VERIFIED:?}");
        lab.check()?;
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads, and fails where the mount process had any part in it but the OPEN.
pub fn passing<T>(mounted: &Mounted, read: impl FnOnce() -> Result<T>) -> Result<T> {
    let (reads, opens) = (mounted.reads()?, passed(mounted)?);
    let result = read()?;
    let (reads, opens) = (mounted.reads()? - reads, passed(mounted)? - opens);
    ensure!(
        reads == 0.0 && opens > 0.0,
        "the mount process saw {reads} READs, and {opens} opens passed through"
    );
    Ok(result)
}

/// A file below a folder, as the workloads want it.
pub fn listed(root: &Path, file: &Expected) -> Listed {
    Listed { path: root.join(&file.path), size: file.size }
}

/// One thread that ends when all is read.
pub fn to_the_end() -> Plan<'static> {
    Plan { clock: &Monotonic, threads: 1, runtime: LONG, seed: 0 }
}

/// One sequential pass over a file.
pub fn read_through(file: &Listed) -> Result<Outcome> {
    Ok(sequential(to_the_end(), &[file], SEQUENTIAL_BYTES, Access::Cached)?)
}
