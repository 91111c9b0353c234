//! How are the kernel's caches emptied between rounds?

use std::fs::OpenOptions;
use std::io::Write;

use anyhow::{Context, Result};

/// Writes back what is dirty and drops page cache, dentries and inodes.
///
/// # Errors
/// For other users than root.
pub fn drop_all() -> Result<()> {
    rustix::fs::sync();
    let mut file = OpenOptions::new()
        .write(true)
        .open("/proc/sys/vm/drop_caches")
        .context("drop the page cache (needs root)")?;
    file.write_all(b"3").context("drop the page cache")
}

/// Whether this user may do so.
pub fn can_drop() -> bool {
    OpenOptions::new().write(true).open("/proc/sys/vm/drop_caches").is_ok()
}
