//! How does a program of ours start, tell what went wrong, and surely end?

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How often to look whether something has happened.
const POLL: Duration = Duration::from_millis(5);

/// How much of a log is shown when a test fails, bytes.
const SHOWN_LOG_BYTES: usize = 4000;

/// A running program; killed with this value.
#[derive(Debug)]
pub struct Program {
    child: Child,
    log: PathBuf,
    is_ended: bool,
}

/// A program of this workspace, which cargo puts two folders above the tests.
pub fn path_of(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a test knows its own path");
    let path = own.parent().and_then(Path::parent).expect("target/.../release/deps").join(name);
    assert!(
        path.exists(),
        "{path:?} is missing: build it first (cargo build --release --bins, or make build)"
    );
    path
}

/// A command that dies with the thread that starts it, and takes nothing from the environment of the tests.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    for (name, _) in std::env::vars_os() {
        let is_ours =
            name.to_str().is_some_and(|name| name.starts_with("MILLRACE_") || name.starts_with("AWS_"));
        if is_ours {
            command.env_remove(name);
        }
    }
    command.env("AWS_EC2_METADATA_DISABLED", "true").stdin(Stdio::null()).stdout(Stdio::null());
    command
}

impl Program {
    /// Starts a command whose error output goes behind what is in `log`.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let errors = File::options().create(true).append(true).open(log).unwrap();
        let child = command.stderr(errors).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, log: log.to_owned(), is_ended: false }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until `look` finds something; fails the test where the program ends before or it takes too long.
    pub fn wait_for<T>(&mut self, what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + within;
        loop {
            if let Some(found) = look() {
                return found;
            }
            if let Some(status) = self.try_wait() {
                panic!("ended ({status}) before {what}: {}", self.log());
            }
            assert!(Instant::now() < deadline, "no {what} within {within:?}: {}", self.log());
            std::thread::sleep(POLL);
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        assert!(!self.is_ended, "the program has ended");
        kill_process(pid, signal).unwrap();
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        if !self.is_ended {
            self.signal(Signal::KILL);
            self.wait_for_end(Duration::from_secs(10));
        }
    }

    /// Waits for its end.
    pub fn wait_for_end(&mut self, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.try_wait() {
                return status;
            }
            assert!(Instant::now() < deadline, "goes on for more than {within:?}: {}", self.log());
            std::thread::sleep(POLL);
        }
    }

    /// Asks it to stop, and returns how and after what time it did.
    pub fn terminate(&mut self) -> (ExitStatus, Duration) {
        let started = Instant::now();
        self.signal(Signal::TERM);
        (self.wait_for_end(Duration::from_secs(20)), started.elapsed())
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.try_wait().is_some()
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().unwrap();
        self.is_ended |= status.is_some();
        status
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A stopped process dies of SIGKILL as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let tail = log.len().saturating_sub(SHOWN_LOG_BYTES);
            let tail = (tail..=log.len()).find(|at| log.is_char_boundary(*at)).unwrap_or(0);
            eprintln!("--- end of {:?}\n{}", self.log, &log[tail..]);
        }
    }
}

/// Waits until something is so; fails the test where it takes too long.
pub fn until(what: &str, within: Duration, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        std::thread::sleep(POLL);
    }
}
