//! How does a process of ours start, say what went wrong, and surely end?

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How long a process may take to stop by itself: a worker promises 5 s.
const STOP: Duration = Duration::from_secs(10);

/// How often to look whether something has happened.
const POLL: Duration = Duration::from_millis(2);

/// How much of a log is shown when its process fails, bytes.
const SHOWN_LOG_BYTES: u64 = 2000;

/// Processes that live.
static LIVING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// A process that ends with this value.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    log: PathBuf,
    is_ended: bool,
}

/// Kills all processes that were started here.
pub fn kill_all() {
    for pid in LIVING.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter() {
        send(*pid, Signal::KILL);
    }
}

impl Program {
    /// Starts a process whose error output goes to `log`; standard input and output are as the caller set them. It has a process group of its own, so that Ctrl-C reaches this
    /// program alone, which stops the others in order.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        let errors = File::create(log).with_context(|| format!("create {log:?}"))?;
        let child = command
            .stderr(errors)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {name} ({:?})", command.get_program()))?;
        living(|pids| pids.push(child.id()));
        Ok(Self { name: name.to_owned(), child, log: log.to_owned(), is_ended: false })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its input and output, once.
    ///
    /// # Errors
    /// The second time.
    pub fn pipes(&mut self) -> Result<(ChildStdin, BufReader<ChildStdout>)> {
        let stdin = self.child.stdin.take().context("the input is taken")?;
        Ok((stdin, BufReader::new(self.child.stdout.take().context("the output is taken")?)))
    }

    /// Its output, once.
    ///
    /// # Errors
    /// The second time, or where it is not piped.
    pub fn output(&mut self) -> Result<BufReader<ChildStdout>> {
        Ok(BufReader::new(self.child.stdout.take().context("the output is taken")?))
    }

    /// Waits until `look` finds something.
    ///
    /// # Errors
    /// Where the process ends before, or nothing is found in time; with the end of its log.
    pub fn wait_for<T>(
        &mut self,
        what: &str,
        within: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended ({status}) before {what}: {}", self.name, self.end_of_log());
            }
            if Instant::now() > deadline {
                bail!("{}: no {what} within {within:?}: {}", self.name, self.end_of_log());
            }
            std::thread::sleep(POLL);
        }
    }

    /// The last lines that it logged.
    pub fn end_of_log(&self) -> String {
        let read = || -> std::io::Result<String> {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(SHOWN_LOG_BYTES)))?;
            let mut text = Vec::new();
            file.read_to_end(&mut text)?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        };
        match read() {
            Ok(text) if text.is_empty() => "it logged nothing".to_owned(),
            Ok(text) => format!("it logged\n{text}"),
            Err(error) => format!("its log cannot be read: {error}"),
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Waits for the process to end by itself.
    ///
    /// # Errors
    /// Where it does not in time.
    pub fn wait_for_end(&mut self, within: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.ended();
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} goes on for more than {within:?}: {}", self.name, self.end_of_log());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Asks it to stop, and kills it where it does not.
    pub fn stop(&mut self) {
        if self.is_ended {
            return;
        }
        send(self.pid(), Signal::TERM);
        if self.wait_for_end(STOP).is_err() {
            eprintln!("  {} does not stop within {STOP:?} and is killed", self.name);
            send(self.pid(), Signal::KILL);
            // Killed, so it ends; were it stuck in the kernel, waiting would not help either.
            let _ = self.wait_for_end(STOP);
        }
    }

    fn ended(&mut self) {
        self.is_ended = true;
        let pid = self.pid();
        living(|pids| pids.retain(|one| *one != pid));
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.stop();
    }
}

fn living(change: impl FnOnce(&mut Vec<u32>)) {
    change(&mut LIVING.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may have ended just now.
        let _ = kill_process(pid, signal);
    }
}
