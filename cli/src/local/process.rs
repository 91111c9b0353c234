//! Is this still the process that it was, and how is it ended?
//!
//! A process is known by its id and the time of its start, so that a process which got the id of a dead one is never ended in
//! its place; a signal goes through a pidfd, which cannot come to mean another.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process, for all time of this boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessId {
    /// Its id.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_ticks: u64,
}

/// A process that was alive when it was opened.
#[derive(Debug)]
pub struct Process(OwnedFd);

impl ProcessId {
    /// The process that has this id now; `None` where none has, or it has ended and waits to be reaped.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let (state, start_ticks) = parse_stat(&String::from_utf8_lossy(&stat))?;
        (!matches!(state, 'Z' | 'X')).then_some(Self { pid, start_ticks })
    }

    /// Whether it runs.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }

    /// Takes hold of it; `None` where it is gone.
    pub fn open(&self) -> Option<Process> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Only after that is it sure whose descriptor it is.
        self.is_alive().then_some(Process(fd))
    }
}

impl Process {
    /// Sends a signal; one that has ended does not mind.
    pub fn signal(&self, signal: Signal) {
        // The only errors are that it has ended, or is not ours to end, which its not ending shows.
        let _ = pidfd_send_signal(&self.0, signal);
    }

    /// Waits for its end until `until`; false where it still runs. Blocks.
    pub fn wait(&self, until: Instant) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout =
                Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) if left > Duration::ZERO => {}
                Ok(ready) => return ready > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

/// State and start time from a line of `/proc/<pid>/stat` (proc(5): fields 3 and 22; the name in brackets may hold anything).
fn parse_stat(line: &str) -> Option<(char, u64)> {
    let mut fields = line.get(line.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_name_of_a_program_cannot_shift_the_fields() {
        let rest = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(parse_stat(&format!("7 (a b) S) R {rest}")), Some(('R', 4242)));
        assert_eq!(parse_stat("7 (x) S 1 2"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn a_process_is_known_until_it_ends_and_its_successor_is_another() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        assert!(id.is_alive());
        let other = ProcessId { start_ticks: id.start_ticks + 1, ..id };
        assert!(!other.is_alive() && other.open().is_none());
        let process = id.open().unwrap();
        assert!(!process.wait(Instant::now()));
        process.signal(Signal::KILL);
        assert!(process.wait(Instant::now() + Duration::from_secs(10)));
        // Not reaped yet, and dead all the same.
        assert!(!id.is_alive());
        child.wait().unwrap();
        assert!(id.open().is_none());
    }
}
