//! How does a folder come to lie in memory?

use std::ffi::CString;
use std::path::Path;
use std::time::Duration;

use rustix::mount::MountFlags;

use super::deadline::within;
use super::error::MountError;
use super::mountinfo;

/// Puts a tmpfs of so many bytes on a folder, for its owner only, where there is none. It goes with the node's uptime,
/// not with the process.
///
/// # Errors
/// [`MountError`].
pub fn mount(folder: &Path, bytes: u64, deadline: Duration) -> Result<(), MountError> {
    let failed = |source| MountError::Mount { point: folder.to_owned(), source };
    let is_there = |entry: mountinfo::MountEntry| entry.file_system == "tmpfs";
    if mountinfo::find(folder).map_err(failed)?.is_some_and(is_there) {
        return Ok(());
    }
    let options = CString::new(format!("mode=0700,size={bytes}")).map_err(|error| failed(error.into()))?;
    let target = folder.to_owned();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let call = move || rustix::mount::mount("millrace-keys", &target, "tmpfs", flags, options.as_c_str());
    // One that comes late is found by the next start.
    within(deadline, call, drop)
        .map_err(|reason| MountError::no_answer(reason, "mount a tmpfs on", folder, deadline))?
        .map_err(|errno| failed(errno.into()))
}
