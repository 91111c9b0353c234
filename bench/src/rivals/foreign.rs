//! How does somebody else's mount come up, and surely go?

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::Shown;
use crate::lab::Lab;
use crate::rig::child::Program;
use crate::rig::mounted::{detach, is_mounted};

/// For a mount to be there.
const START: Duration = Duration::from_secs(20);

/// A mount of another program.
struct Foreign {
    process: Program,
    point: TempDir,
    _log: TempDir,
}

/// Starts a program that mounts at the folder which `command` is told.
///
/// # Errors
/// Where there is no mount in the end, with what the program logged.
pub(super) fn mount(lab: &Lab, name: &str, command: impl FnOnce(&Path) -> Command) -> Result<Box<dyn Shown>> {
    let (log, point) = (lab.disk_dir("other")?, lab.disk_dir("mount")?);
    let mut command = command(point.path());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let process = Program::start(name, &mut command, &log.path().join("log"))?;
    // From here on it is unmounted, also where it does not come up.
    let mut mounted = Foreign { process, point, _log: log };
    let point = mounted.point.path();
    mounted.process.wait_for("its mount", START, || is_mounted(point).then_some(()))?;
    Ok(Box::new(mounted))
}

/// The first line of what a program says of its version.
///
/// # Errors
/// Where it is not installed.
pub(super) fn version(program: &str) -> Result<String> {
    let output = Command::new(program).arg("--version").output();
    let output = output.with_context(|| format!("{program} is not installed (scripts/setup bench)"))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().trim().to_owned())
}

impl Shown for Foreign {
    fn path(&self) -> &Path {
        self.point.path()
    }

    fn pids(&self) -> Vec<u32> {
        vec![self.process.pid()]
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.process.stop();
        detach(self.point.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Options;

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = version("no-such-mount").unwrap_err().to_string();
        assert!(error.contains("no-such-mount is not installed"), "{error}");
    }

    #[test]
    fn a_program_that_ends_without_a_mount_is_told_with_its_log() {
        let lab = Lab::new(Options::default()).unwrap();
        let command = |_: &Path| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo no bucket >&2; exit 3"]);
            command
        };
        let error = mount(&lab, "other", command).err().expect("nothing is mounted").to_string();
        assert!(error.contains("no bucket"), "{error}");
    }
}
