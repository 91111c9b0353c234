//! How do processes that share a folder keep out of each other's way?

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Longest wait for a lock that another process holds. It is held for microseconds as a rule, for a second where a
/// busy disk makes its holder wait, and for longer by a stopped process only; then bytes are served without being kept.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Longest wait for threads of this process, which queue for one file: each write of 1 MiB may be made to wait 200 ms
/// where dirty pages are short, and none of them is lost to a stopped process.
pub(crate) const TURN_WAIT: Duration = Duration::from_secs(30);

/// An exclusive flock; released on drop, and by the kernel when the process dies.
///
/// It excludes other open descriptions only: threads that share one description need a mutex besides.
#[derive(Debug)]
pub(crate) struct FileLock<'a> {
    file: &'a File,
}

impl<'a> FileLock<'a> {
    /// Takes the lock, waiting at most `wait`; `None` where another holds it for longer.
    pub fn acquire(file: &'a File, wait: Duration) -> io::Result<Option<Self>> {
        let mut since = None;
        let mut pause = Duration::from_micros(20);
        loop {
            match flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self { file })),
                Err(Errno::WOULDBLOCK) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            if since.get_or_insert_with(Instant::now).elapsed() >= wait {
                return Ok(None);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }
}

impl Drop for FileLock<'_> {
    fn drop(&mut self) {
        // Unlocking an open file cannot fail in a way that we could mend; closing it unlocks too.
        let _ = flock(self.file, FlockOperation::Unlock);
    }
}
