//! How is all that a Dataset runs ended and unmounted, whoever has started it? Blocks.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use millrace_csi_driver::mount::attach::clean_dead;
use millrace_csi_driver::mount::mountinfo;
use millrace_csi_driver::mount::syscalls::{self, How};
use rustix::process::Signal;

use super::folder::{self, Folder};
use super::plan;
use super::process::{Process, ProcessId};
use super::run_file::Run;

/// For the mount, which must first let go of its readers, and then for the workers, which stop within 5 s.
const MOUNT_GRACE: Duration = Duration::from_secs(4);
const WORKERS_GRACE: Duration = Duration::from_millis(5500);

/// For a process to be gone after SIGKILL: longer only where the kernel itself hangs.
const KILL_GRACE: Duration = Duration::from_secs(2);

/// Deadline of each look at a mount and of each unmount.
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(5);

/// Ends the mount, then the workers, unmounts what is left and removes credentials. Nothing there is as good. The caller holds
/// the lock. Gives what was found: names of processes, mount points.
///
/// # Errors
/// Where a process cannot be ended, or a mount not taken away.
pub fn clean(folder: &Folder) -> anyhow::Result<Vec<String>> {
    // A file that cannot be read does not keep us from ending the processes, which are found by their arguments too.
    let run = Run::read(folder).ok().flatten();
    let (mounts, workers) = processes(folder, run.as_ref());
    let mut found: Vec<String> = mounts.iter().chain(&workers).map(|(name, _)| name.clone()).collect();
    end(&mounts, MOUNT_GRACE)?;
    end(&workers, WORKERS_GRACE)?;
    let mut points = vec![folder.default_mount_point()];
    points.extend(run.map(|run| run.mount_point));
    for point in points {
        if unmount(&point, &folder.name.name)? {
            found.push(point.display().to_string());
        }
    }
    folder::remove(&folder.credentials_dir())?;
    folder::remove(&folder.run_file())?;
    Ok(found)
}

type Named = (String, Process);

/// The mount processes and the workers that run.
fn processes(folder: &Folder, run: Option<&Run>) -> (Vec<Named>, Vec<Named>) {
    let written: Vec<(String, ProcessId)> =
        run.into_iter().flat_map(Run::children).map(|(name, id)| (name.to_owned(), id)).collect();
    let strays = strays(folder);
    let unwritten = strays.into_iter().filter(|(_, id)| !written.iter().any(|(_, known)| known == id));
    let all: Vec<_> = written.iter().cloned().chain(unwritten).collect();
    let open = |(name, id): (String, ProcessId)| Some((name, id.open()?));
    all.into_iter().filter_map(open).partition(|(name, _)| name == "mount")
}

/// Our processes by their arguments: a supervisor that is killed right after it has started one has not written that down.
fn strays(folder: &Folder) -> Vec<(String, ProcessId)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let ours = pids.filter_map(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let args: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        if !plan::belongs(&args, folder.path()) {
            return None;
        }
        let name =
            if args.get(1) == Some(&&b"mount"[..]) { "mount".to_owned() } else { format!("process {pid}") };
        Some((name, ProcessId::of(pid)?))
    });
    ours.collect()
}

fn end(processes: &[Named], grace: Duration) -> anyhow::Result<()> {
    processes.iter().for_each(|(_, process)| process.signal(Signal::TERM));
    let until = Instant::now() + grace;
    let late: Vec<&Named> = processes.iter().filter(|(_, process)| !process.wait(until)).collect();
    late.iter().for_each(|(_, process)| process.signal(Signal::KILL));
    let until = Instant::now() + KILL_GRACE;
    let stuck: Vec<&str> =
        late.iter().filter(|(_, process)| !process.wait(until)).map(|(name, _)| name.as_str()).collect();
    anyhow::ensure!(
        stuck.is_empty(),
        "end {stuck:?}: still there after SIGKILL, the kernel holds them; try again"
    );
    Ok(())
}

/// Takes our mount away from a folder; false where there is none of ours.
fn unmount(point: &Path, dataset: &str) -> anyhow::Result<bool> {
    let Some(point) = resolve(point) else { return Ok(false) };
    let source = format!("millrace:{dataset}");
    let is_ours = || -> anyhow::Result<bool> {
        let entry = mountinfo::find(&point).with_context(|| format!("look for a mount on {point:?}"))?;
        Ok(entry.is_some_and(|entry| entry.is_fuse() && entry.point == point && entry.source == source))
    };
    if !is_ours()? {
        return Ok(false);
    }
    // Its process is gone, so it is dead; where the kernel does not know that yet, it is taken by force.
    clean_dead(&point, UNMOUNT_DEADLINE)?;
    if is_ours()? {
        syscalls::unmount(&point, How::Force, UNMOUNT_DEADLINE)?;
    }
    Ok(true)
}

/// The folder without symbolic links above it, and without a look at itself: a dead mount answers nothing.
fn resolve(point: &Path) -> Option<PathBuf> {
    let parent = point.parent()?.canonicalize().ok()?;
    Some(parent.join(point.file_name()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::folder::Root;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    #[test]
    fn a_process_that_was_never_written_down_is_found_and_ended() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Root::find(Some(dir.path())).unwrap().folder(&"a/b".parse().unwrap());
        folder.make().unwrap();
        assert_eq!(clean(&folder).unwrap(), Vec::<String>::new());
        let key = folder.data_key_file();
        // Looks like one of ours, and does not mind SIGTERM.
        let mut child = Command::new("sh")
            .arg0("cache-worker")
            .args(["-c", "trap '' TERM; while :; do sleep 1; done", "--data-key-file"])
            .arg(key)
            .process_group(0)
            .spawn()
            .unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        // For a moment after its start a process shows no arguments.
        let deadline = Instant::now() + Duration::from_secs(10);
        let (mounts, workers) = loop {
            let found = processes(&folder, None);
            if !found.1.is_empty() || Instant::now() > deadline {
                break found;
            }
        };
        if workers.is_empty() {
            child.kill().unwrap();
        }
        assert_eq!((mounts.len(), workers.len()), (0, 1));
        end(&workers, Duration::from_millis(50)).unwrap();
        assert!(!id.is_alive());
        child.wait().unwrap();
        assert_eq!(clean(&folder).unwrap(), Vec::<String>::new());
    }
}
