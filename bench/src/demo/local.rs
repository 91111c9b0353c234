//! How does `millrace local` run a Dataset, and leave nothing behind?

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::lab::{Lab, program};
use crate::rig::child::Program;
use crate::rig::mounted::{detach, is_mounted};

/// For workers, index and mount; the listing of tens of thousands of files takes seconds.
const READY: Duration = Duration::from_secs(60);

/// For all processes to stop.
const STOP: Duration = Duration::from_secs(30);

/// A Dataset that is up. Goes down with this value.
#[derive(Debug)]
pub struct Local {
    up: Program,
    state: PathBuf,
    mount: PathBuf,
    is_down: bool,
}

impl Local {
    /// Writes the Dataset to a file and brings it up.
    ///
    /// # Errors
    /// Where it does not become ready, with the end of its log.
    pub fn up(lab: &Lab, dir: &Path, mount: &Path, manifest: &str) -> Result<Self> {
        let (file, ready, state) = (dir.join("dataset.yaml"), dir.join("ready.json"), dir.join("state"));
        std::fs::write(&file, manifest).with_context(|| format!("write {file:?}"))?;
        println!(
            "$ cat dataset.yaml\n{manifest}$ millrace local up -f dataset.yaml --mount mount --workers 3"
        );
        let mut command = Command::new(program("millrace")?);
        command
            .arg("local")
            .arg("--state-dir")
            .arg(&state)
            .arg("up")
            .arg("-f")
            .arg(&file)
            .arg("--mount")
            .arg(mount);
        command
            .args(["--workers", "3", "--ready-file"])
            .arg(&ready)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let up = Program::start("millrace local up", &mut command, &dir.join("up.log"))?;
        let mut local = Self { up, state, mount: mount.to_owned(), is_down: false };
        let look = || (ready.exists() || lab.is_interrupted()).then_some(());
        local.up.wait_for("the mount", READY, look)?;
        lab.check()?;
        ensure!(is_mounted(mount), "millrace says that it is ready, but nothing is mounted at {mount:?}");
        Ok(local)
    }

    /// Stops everything, and checks that nothing is left.
    ///
    /// # Errors
    /// Where something is.
    pub fn down(&mut self) -> Result<()> {
        println!("$ millrace local down\n$ millrace local rm");
        self.is_down = true;
        self.call("down")?;
        self.up.wait_for_end(STOP).context("after millrace local down")?;
        self.call("rm")?;
        ensure!(!is_mounted(&self.mount), "{:?} is still mounted", self.mount);
        match process_of(&self.state) {
            Some(pid) => bail!("process {pid} is left behind"),
            None => Ok(()),
        }
    }

    fn call(&self, what: &str) -> Result<()> {
        let mut command = Command::new(program("millrace")?);
        command.arg("local").arg("--state-dir").arg(&self.state).arg(what).stdin(Stdio::null());
        let output = command.output().with_context(|| format!("run millrace local {what}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "millrace local {what}: {}: {said}", output.status);
        Ok(())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if self.is_down {
            return;
        }
        if let Err(error) = self.call("down") {
            eprintln!("  {error:#}");
        }
        self.up.stop();
        detach(&self.mount);
    }
}

/// A process with the folder in its command line.
fn process_of(dir: &Path) -> Option<u32> {
    let dir = dir.to_str()?;
    let mut processes = std::fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.find(|pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(dir)
    })
}
