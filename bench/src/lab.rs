//! Where do measurements run: folders, programs, rounds, and what happens on Ctrl-C?

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FsWord, statfs};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::line::{Bar, Measured, Pair, rounds_needed};
use crate::rig::child;
use crate::rig::host_memory::Ballast;

/// How long a case has to notice that it is to stop, before its processes are killed under it: longer than a worker's
/// stop takes (5 s).
const GRACE: Duration = Duration::from_secs(8);

/// `f_type` of tmpfs (statfs(2)).
const TMPFS_MAGIC: FsWord = 0x0102_1994;

/// What the user chose.
#[derive(Debug, Clone)]
pub struct Options {
    /// This many rounds in place of 9 to 15.
    pub rounds: Option<usize>,
    /// Folder on a disk.
    pub disk: PathBuf,
    /// Folder on a tmpfs.
    pub memory: PathBuf,
    /// Whether to hold free memory where it would go back to a host.
    pub holds_memory: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rounds: None,
            disk: std::env::temp_dir(),
            memory: PathBuf::from("/dev/shm"),
            holds_memory: false,
        }
    }
}

/// What every case needs.
#[derive(Debug)]
pub struct Lab {
    options: Options,
    runtime: Runtime,
    is_interrupted: Arc<AtomicBool>,
    ballast: Option<Ballast>,
}

impl Lab {
    /// Prepares to measure; from here on SIGINT and SIGTERM end the case in hand and clean up.
    ///
    /// # Errors
    /// Where there is no runtime to be had.
    pub fn new(options: Options) -> Result<Self> {
        let runtime = Runtime::new().context("start a runtime")?;
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let (mut interrupt, mut terminate) = {
            let _guard = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        let flag = Arc::clone(&is_interrupted);
        runtime.spawn(async move {
            tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
            eprintln!("stopping and cleaning up");
            flag.store(true, Ordering::Relaxed);
            tokio::select! { _ = interrupt.recv() => {} () = tokio::time::sleep(GRACE) => {} }
            // A read in a mount whose workers are gone waits for its deadline of minutes; without the mount process it ends.
            child::kill_all();
        });
        let ballast = if options.holds_memory { Ballast::new(&options.memory)? } else { None };
        Ok(Self { options, runtime, is_interrupted, ballast })
    }

    /// Fails when the user wants to stop.
    ///
    /// # Errors
    /// After SIGINT or SIGTERM.
    pub fn check(&self) -> Result<()> {
        ensure!(!self.is_interrupted(), "interrupted");
        Ok(())
    }

    /// Whether the user wants to stop.
    pub fn is_interrupted(&self) -> bool {
        self.is_interrupted.load(Ordering::Relaxed)
    }

    /// Waits for a future.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// A new folder on a disk, removed with the returned value.
    ///
    /// # Errors
    /// Where it cannot be made, or would be in memory.
    pub fn disk_dir(&self, name: &str) -> Result<TempDir> {
        ensure!(
            !is_tmpfs(&self.options.disk)?,
            "{:?} is in memory: name a folder on a disk by --dir",
            self.options.disk
        );
        dir_in(&self.options.disk, name)
    }

    /// A new folder in memory, removed with the returned value.
    ///
    /// # Errors
    /// Where it cannot be made, or would be on a disk.
    pub fn memory_dir(&self, name: &str) -> Result<TempDir> {
        ensure!(
            is_tmpfs(&self.options.memory)?,
            "{:?} is no tmpfs: name one by --memory-dir",
            self.options.memory
        );
        dir_in(&self.options.memory, name)
    }

    /// Takes the memory that has become free, so that rounds do not measure how the host finds some: see [`Ballast`].
    ///
    /// # Errors
    /// Where the folder in memory cannot be written.
    pub fn hold_memory(&self) -> Result<()> {
        self.ballast.as_ref().map_or(Ok(()), Ballast::take)
    }

    /// Runs ours and the baseline in turn, each going first in every other round.
    ///
    /// # Errors
    /// The first that either returns, or that of an interruption.
    pub fn compare(
        &self,
        mut measured: Measured,
        mut ours: impl FnMut(usize) -> Result<f64>,
        mut baseline: impl FnMut(usize) -> Result<f64>,
    ) -> Result<Measured> {
        self.rounds(&mut measured, |round| {
            self.hold_memory()?;
            let pair = if round % 2 == 0 {
                let first = ours(round)?;
                (first, baseline(round)?)
            } else {
                let first = baseline(round)?;
                (ours(round)?, first)
            };
            Ok(Pair { ours: pair.0, baseline: Some(pair.1) })
        })?;
        Ok(measured)
    }

    /// Runs rounds until there are enough of them.
    ///
    /// # Errors
    /// The first that a round returns, or that of an interruption.
    pub fn rounds(
        &self,
        measured: &mut Measured,
        mut round: impl FnMut(usize) -> Result<Pair>,
    ) -> Result<()> {
        loop {
            let done = measured.pairs.len();
            if done >= self.options.rounds.unwrap_or_else(|| rounds_needed(measured.bar, &measured.pairs)) {
                return Ok(());
            }
            self.check()?;
            let pair = round(done)?;
            let Pair { ours, baseline } = pair;
            let beside = baseline.map(|baseline| format!(", baseline {baseline:.3}")).unwrap_or_default();
            eprintln!("  {} round {}: ours {ours:.3}{beside} {}", measured.case, done + 1, measured.unit);
            measured.pairs.push(pair);
        }
    }
}

impl Measured {
    /// A case of which nothing has been measured yet.
    pub fn new(case: &str, unit: &'static str, bar: Bar) -> Self {
        Self { case: case.to_owned(), unit, bar, pairs: Vec::new(), notes: Vec::new() }
    }
}

/// One of Millrace's programs, which lie beside this one.
///
/// # Errors
/// Where it has not been built.
pub fn program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    let path = own.parent().unwrap_or(Path::new(".")).join(name);
    if !path.exists() {
        bail!("{path:?} is missing: build it first (make build)");
    }
    Ok(path)
}

fn is_tmpfs(path: &Path) -> Result<bool> {
    Ok(statfs(path).with_context(|| format!("look at the file system of {path:?}"))?.f_type == TMPFS_MAGIC)
}

fn dir_in(parent: &Path, name: &str) -> Result<TempDir> {
    let prefix = format!("millrace-{name}-");
    tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir_in(parent)
        .with_context(|| format!("make a folder in {parent:?}"))
}
