//! How do processes that share a folder keep out of each other's way?

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Longest wait for a lock that is held for microseconds, unless its holder was stopped; then the bytes are served
/// without being kept. Far below the 2 s after which readers go round a worker.
pub(crate) const LOCK_WAIT: Duration = Duration::from_millis(500);

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
