//! How is a process kept within a bound of memory?

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

/// A control group with a limit of memory, removed with this value.
#[derive(Debug)]
pub struct Cgroup {
    dir: PathBuf,
    peak: &'static str,
}

/// Numbers the groups of this process.
static NEXT: AtomicU32 = AtomicU32::new(0);

impl Cgroup {
    /// A group below this process's own, of version 2 or 1, whichever has the memory controller.
    ///
    /// # Errors
    /// Where there is none, or this user may not make one.
    pub fn new(limit_bytes: u64) -> Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").context("read this process's control groups")?;
        let name = format!("millrace-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (parent, limit, peak) = place(&own, Path::new("/sys/fs/cgroup"))?;
        let group = Self { dir: parent.join(name), peak };
        fs::create_dir(&group.dir).with_context(|| format!("make control group {:?}", group.dir))?;
        fs::write(group.dir.join(limit), limit_bytes.to_string())
            .with_context(|| format!("set {limit} of control group {:?}", group.dir))?;
        Ok(group)
    }

    /// A command that runs `program` in the group from its first instruction on.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", r#"echo $$ > "$1" && shift && exec "$@""#, "sh"]);
        command.arg(self.dir.join("cgroup.procs")).arg(program);
        command
    }

    /// The most memory that the group ever used, page cache included; `None` where the kernel does not tell.
    pub fn peak_bytes(&self) -> Option<u64> {
        fs::read_to_string(self.dir.join(self.peak)).ok()?.trim().parse().ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that has just ended may still be in it.
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        eprintln!("  control group {:?} stays behind", self.dir);
    }
}

/// The folder to make a group in, and its files for limit and peak.
fn place(own: &str, root: &Path) -> Result<(PathBuf, &'static str, &'static str)> {
    let path_of = |is_it: &dyn Fn(&str, &str) -> bool| {
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            is_it(id, controllers).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    if let Some(path) = path_of(&|_, controllers| controllers.split(',').any(|one| one == "memory")) {
        let version_1 = root.join("memory").join(path);
        return Ok((version_1, "memory.limit_in_bytes", "memory.max_usage_in_bytes"));
    }
    if let Some(path) = path_of(&|id, _| id == "0") {
        // A group with processes in it may not give the controller on; its parent can.
        for dir in root.join(path).ancestors().take_while(|dir| dir.starts_with(root)) {
            let on = fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap_or_default();
            if on.split_whitespace().any(|one| one == "memory") {
                return Ok((dir.to_owned(), "memory.max", "memory.peak"));
            }
        }
    }
    bail!("no control group with the memory controller")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_found_with_either_version() {
        let own = "8:pids:/\n4:memory:/a/b\n0::/\n";
        let (dir, limit, _) = place(own, Path::new("/sys/fs/cgroup")).unwrap();
        assert_eq!((dir, limit), (PathBuf::from("/sys/fs/cgroup/memory/a/b"), "memory.limit_in_bytes"));
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("user/shell");
        fs::create_dir_all(&group).unwrap();
        assert!(place("0::/user/shell\n", root.path()).is_err());
        fs::write(root.path().join("user/cgroup.subtree_control"), "cpu memory\n").unwrap();
        let (dir, limit, _) = place("0::/user/shell\n", root.path()).unwrap();
        assert_eq!((dir, limit), (root.path().join("user"), "memory.max"));
    }
}
