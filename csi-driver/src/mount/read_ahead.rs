//! How far does the kernel read ahead in a mount?
//!
//! INIT cannot ask for more than the kernel's 128 KiB; only root may raise it, in sysfs, once the mount is there.
//! Without it a sequential read comes in requests of 128 KiB, which works, but costs eight times as many.

use std::io;

use thiserror::Error;

use super::mountinfo::DeviceNumber;

/// A read-ahead that could not be set; the mount works with 128 KiB.
#[derive(Debug, Error)]
pub enum ReadAheadError {
    /// This user may not, or sysfs is read-only as in most containers.
    #[error(
        "set read-ahead of the mount to {kibibytes} KiB in {path}: not allowed, reads come in 128 KiB (run as root with a writable /sys)"
    )]
    NotAllowed {
        /// The file in sysfs.
        path: String,
        /// The read-ahead wanted.
        kibibytes: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// It could not be written.
    #[error("set read-ahead of the mount to {kibibytes} KiB in {path}: reads come in 128 KiB")]
    Write {
        /// The file in sysfs.
        path: String,
        /// The read-ahead wanted.
        kibibytes: u32,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Sets the kernel's read-ahead for a mount, once INIT is answered: INIT sets it back to 128 KiB at most.
///
/// # Errors
/// [`ReadAheadError`]; log it and go on.
pub fn set(device: DeviceNumber, kibibytes: u32) -> Result<(), ReadAheadError> {
    let DeviceNumber { major, minor } = device;
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    std::fs::write(&path, kibibytes.to_string()).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ReadAheadError::NotAllowed { path, kibibytes, source }
        }
        _ => ReadAheadError::Write { path, kibibytes, source },
    })
}
