//! How are the kernel's caches emptied before a cold run?

use std::fs::OpenOptions;
use std::io::Write;

use crate::error::Error;

/// The kernel's switch; see proc_sys_vm(5).
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Drops page cache, directory entries and inodes that are clean, of the whole machine.
///
/// What dirties pages meanwhile is written back first, for dirty pages stay.
///
/// # Errors
/// `DropCaches` for other users than root.
pub fn drop_all() -> Result<(), Error> {
    rustix::fs::sync();
    let dropped = OpenOptions::new().write(true).open(DROP_CACHES).and_then(|mut file| file.write_all(b"3"));
    dropped.map_err(|source| Error::DropCaches { source })
}

/// Whether this user may do so.
///
/// # Errors
/// `DropCaches` where not.
pub fn check_may_drop() -> Result<(), Error> {
    OpenOptions::new().write(true).open(DROP_CACHES).map(drop).map_err(|source| Error::DropCaches { source })
}
