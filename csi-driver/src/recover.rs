//! What does a driver find when it starts, and what of that goes away?
//!
//! Mount processes are children of the driver: in a pod they end with it, elsewhere they may have outlived a kill and are
//! ended here. Then every mount of ours below the driver's and kubelet's folders is dead. Those of the mount processes go
//! at once; those at targets with a record stay until they can be replaced, because a container that starts meanwhile must
//! fail instead of finding an empty folder. A process that keeps mounts alive would be asked here, before anything goes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_daemon::causes::with_causes;
use rustix::process::{Pid, Signal, kill_process};

use crate::mount::bind;
use crate::mount::error::MountError;
use crate::mount::mountinfo::{self, MountEntry};
use crate::mount::options::SUBTYPE;
use crate::mount::stale;
use crate::node_mounts::plan::Folders;
use crate::node_mounts::process::{ADDRESSES_FILE, pid_in};

/// Deadline of each step; guess.
const STEP_DEADLINE: Duration = Duration::from_secs(10);

/// How long the end of a killed process may take.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// What was taken away.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Mount processes that had outlived their driver.
    pub processes: usize,
    /// Dead mounts.
    pub mounts: usize,
}

/// Takes away what a former driver has left, but for `kept` targets. Goes on where one thing fails. Blocks.
///
/// # Errors
/// When the kernel's table of mounts cannot be read.
pub fn recover(folders: &Folders, kubelet_dir: &Path, kept: &[PathBuf]) -> Result<Recovered, MountError> {
    let processes = end_processes(&folders.processes());
    let failed = |source| MountError::Inspect { point: kubelet_dir.to_owned(), source };
    let table = std::fs::read("/proc/self/mountinfo").map_err(failed)?;
    let is_ours = |entry: &MountEntry| {
        entry.file_system == format!("fuse.{SUBTYPE}")
            && (entry.point.starts_with(&folders.state) || entry.point.starts_with(kubelet_dir))
            && !kept.contains(&entry.point)
    };
    let mut mounts = 0;
    for MountEntry { point, device, .. } in mountinfo::entries(&table).filter(is_ours) {
        let is_process = point.starts_with(folders.mounts());
        // Only what nobody serves any more is aborted; a bind of something else would take that with it.
        let taken = if is_process {
            stale::clean(&point, device, STEP_DEADLINE).map(drop)
        } else {
            bind::detach_all(&point, STEP_DEADLINE).map(drop)
        };
        match taken {
            Ok(()) => mounts += 1,
            Err(error) => {
                tracing::warn!(target_path = %point.display(), error = with_causes(&error), "a dead mount stays");
            }
        }
    }
    Ok(Recovered { processes, mounts })
}

/// Ends mount processes that the files of a former driver name, where they are what they were.
fn end_processes(dir: &Path) -> usize {
    let folders =
        |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let of_datasets = folders(dir).flat_map(|dataset| folders(&dataset).collect::<Vec<_>>());
    of_datasets.filter(|process| end_process(&process.join(ADDRESSES_FILE))).count()
}

fn end_process(addresses: &Path) -> bool {
    let Some(pid) = pid_in(addresses) else { return false };
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    // A process that has the number by now does not name our file.
    let names_it =
        command.split(|byte| *byte == 0).any(|word| word == addresses.as_os_str().as_encoded_bytes());
    let Some(raw) = Pid::from_raw(pid.cast_signed()).filter(|_| names_it) else { return false };
    if kill_process(raw, Signal::KILL).is_err() {
        return false;
    }
    tracing::info!(pid, "a mount process had outlived its driver");
    let deadline = std::time::Instant::now() + KILL_DEADLINE;
    while Path::new(&format!("/proc/{pid}/cmdline")).exists()
        && std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|command| !command.is_empty())
        && std::time::Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
