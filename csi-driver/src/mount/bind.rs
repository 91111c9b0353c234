//! How does one mount appear at a second place, read-only, and go from there again?
//!
//! A bind mount is a name more for the same file system. Taking one away never waits for the process behind it, nor does
//! it harm the others: so it is never forced, as that would abort the connection that all of them share.

use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::deadline::within;
use super::error::MountError;
use super::mountinfo;
use super::syscalls::{self, How};

/// Mounts over one another on a folder at most; each restart can leave one.
const MOST_LAYERS: u32 = 32;

/// Shows the mount at `source` at `target` too, an empty folder: read-only, without devices and set-uid programs.
///
/// # Errors
/// [`MountError::Mount`] or [`MountError::Deadline`]; then nothing is mounted on the target, or will be.
pub fn bind(source: &Path, target: &Path, deadline: Duration) -> Result<(), MountError> {
    let (from, to) = (source.to_owned(), target.to_owned());
    let call = move || -> Result<(), Errno> {
        rustix::mount::mount_bind(&from, &to)?;
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount_remount(&to, flags, "").inspect_err(|_| {
            // What could not be made read-only must not stay; that this fails too is told by the next look at it.
            let _ = rustix::mount::unmount(&to, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        })
    };
    let late = target.to_owned();
    let undo = move |bound: Result<(), Errno>| {
        if bound.is_ok() {
            // Nobody is left to tell; the next publish or unpublish of this target finds it.
            let _ = rustix::mount::unmount(&late, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    };
    within(deadline, call, undo)
        .map_err(|reason| MountError::no_answer(reason, "bind mount on", target, deadline))?
        .map_err(|errno| MountError::Mount { point: target.to_owned(), source: errno.into() })
}

/// Takes away all mounts on a folder, one over the other; gives how many there were.
///
/// # Errors
/// [`MountError`] when one stays.
pub fn detach_all(target: &Path, deadline: Duration) -> Result<u32, MountError> {
    let failed = |source| MountError::Inspect { point: target.to_owned(), source };
    for detached in 0..MOST_LAYERS {
        if mountinfo::find(target).map_err(failed)?.is_none() {
            return Ok(detached);
        }
        syscalls::unmount(target, How::Gently, deadline)?;
    }
    Err(MountError::Unmount {
        point: target.to_owned(),
        source: std::io::Error::other(format!("more than {MOST_LAYERS} mounts lie there")),
    })
}
