//! Is a FUSE mount alive, and how is one that is not taken away?

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

use super::deadline::{NoAnswer, within};
use super::error::MountError;
use super::mountinfo::{self, DeviceNumber};
use super::syscalls::{How, Unmounted, unmount};

/// Where fusectl shows the FUSE connections, when somebody has mounted it.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// State of the process behind a FUSE mount.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Health {
    /// It answers.
    Answers,
    /// It is gone (ENOTCONN).
    Dead,
    /// It did not answer in time.
    Silent,
}

/// Asks a FUSE mount for a sign of life. By statfs, for that is never answered from a cache: stat of a dead mount
/// succeeds as long as its attributes are believed.
///
/// # Errors
/// Other errors than those which tell the health; permission to look counts as an answer.
pub fn health(point: &Path, deadline: Duration) -> io::Result<Health> {
    let path = point.to_owned();
    match within(deadline, move || rustix::fs::statfs(&path), drop) {
        Ok(Ok(_) | Err(Errno::ACCESS | Errno::PERM)) => Ok(Health::Answers),
        Ok(Err(Errno::NOTCONN | Errno::CONNABORTED)) => Ok(Health::Dead),
        Ok(Err(errno)) => Err(errno.into()),
        Err(NoAnswer::Deadline) => Ok(Health::Silent),
        Err(NoAnswer::Thread(error)) => Err(error),
    }
}

/// Takes away a dead or wedged mount: those who wait in it are ended by aborting the connection, then it is detached.
///
/// # Errors
/// [`MountError`] of the unmount. Where fusectl does not abort, the forced unmount does.
pub fn clean(point: &Path, device: DeviceNumber, deadline: Duration) -> Result<Unmounted, MountError> {
    match abort(device) {
        Ok(()) | Err(AbortError::Gone { .. }) => {}
        Err(error) => {
            let reason: &dyn std::error::Error = &error;
            tracing::info!(target_path = %point.display(), error = reason, "forcing the unmount instead");
        }
    }
    unmount(point, How::Force, deadline)
}

/// A connection that could not be aborted.
#[derive(Debug, Error)]
pub enum AbortError {
    /// The control file system is not mounted.
    #[error("abort FUSE connection {number}: fusectl is not mounted (mount -t fusectl none {CONNECTIONS})")]
    NoControl {
        /// Number of the connection.
        number: u64,
    },
    /// There is no such connection: it has ended.
    #[error("abort FUSE connection {number}: it has ended")]
    Gone {
        /// Number of the connection.
        number: u64,
    },
    /// The kernel refused.
    #[error("abort FUSE connection {number}")]
    Write {
        /// Number of the connection.
        number: u64,
        /// Why.
        source: io::Error,
    },
}

/// Aborts a connection: every request on it, present and to come, gets ENOTCONN. Only its owner and root may.
///
/// # Errors
/// [`AbortError`].
pub fn abort(device: DeviceNumber) -> Result<(), AbortError> {
    let number = connection(device);
    let Some(control) = control() else {
        return Err(AbortError::NoControl { number });
    };
    match std::fs::write(control.join(number.to_string()).join("abort"), "1") {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(AbortError::Gone { number }),
        Err(source) => Err(AbortError::Write { number, source }),
    }
}

/// Gives the number of requests that wait in a connection, `None` where the kernel does not show it.
pub fn waiting(device: DeviceNumber) -> Option<u64> {
    let file = control()?.join(connection(device).to_string()).join("waiting");
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Gives a connection's name: the device number as the kernel holds it (20 bits of minor).
fn connection(device: DeviceNumber) -> u64 {
    u64::from(device.major) << 20 | u64::from(device.minor)
}

/// Finds where fusectl is mounted; its usual place first.
fn control() -> Option<PathBuf> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let points =
        || mountinfo::entries(&table).filter(|entry| entry.file_system == "fusectl").map(|entry| entry.point);
    points().find(|point| point == Path::new(CONNECTIONS)).or_else(|| points().next())
}
