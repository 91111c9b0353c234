//! How are mount(2) and umount2(2) called so that they cannot hang the caller?

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::deadline::within;
use super::error::MountError;
use super::fusermount;
use super::options::{MountOptions, SUBTYPE};

/// How hard to unmount.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum How {
    /// Whoever waits for an answer gets it, as long as the process behind the mount gives answers.
    Gently,
    /// The connection is aborted: whoever waits gets ENOTCONN, also in bind mounts of it.
    Force,
}

/// How a mount went away.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unmounted {
    /// Nobody used it any more.
    Cleanly,
    /// It is out of the tree; whoever has a file of it open keeps it until the close.
    Detached,
    /// There was none.
    WasNotMounted,
}

/// Opens the device and mounts it, as root.
///
/// # Errors
/// [`MountError::NoDevice`], [`MountError::NotAllowed`], [`MountError::Deadline`] or [`MountError::Mount`].
pub fn mount(point: &Path, options: &MountOptions, deadline: Duration) -> Result<OwnedFd, MountError> {
    let device = open_device(point)?;
    let user = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let text = options.for_kernel(device.as_raw_fd(), user.0, user.1);
    let invalid =
        |error: std::ffi::NulError| MountError::Mount { point: point.to_owned(), source: error.into() };
    let text = CString::new(text).map_err(invalid)?;
    let source = CString::new(options.source.as_str()).map_err(invalid)?;
    // The thread has its part of the descriptor: a call that comes late must not meet another file of that number.
    let device = Arc::new(device);
    let (target, kept) = (point.to_owned(), Arc::clone(&device));
    let call = move || {
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        let file_system = format!("fuse.{SUBTYPE}");
        let mounted = rustix::mount::mount(source.as_c_str(), &target, file_system, flags, text.as_c_str());
        drop(kept);
        mounted
    };
    let late = point.to_owned();
    let undo = move |mounted: Result<(), Errno>| {
        if mounted.is_ok() {
            // Nobody is left to tell; a mount that stays is seen as dead by the next one on this folder.
            let _ = rustix::mount::unmount(&late, UnmountFlags::DETACH);
        }
    };
    within(deadline, call, undo)
        .map_err(|reason| MountError::no_answer(reason, "mount on", point, deadline))?
        .map_err(|errno| refused(point, errno))?;
    Arc::into_inner(device).ok_or_else(|| MountError::Mount {
        point: point.to_owned(),
        source: io::Error::other("descriptor is still held by the mount call"),
    })
}

/// Asks a mount for its size, as `df` does: bytes and inodes, all of them in use.
///
/// # Errors
/// [`MountError::Inspect`] or [`MountError::Deadline`].
pub fn size(point: &Path, deadline: Duration) -> Result<(u64, u64), MountError> {
    let path = point.to_owned();
    let answer = within(deadline, move || rustix::fs::statvfs(&path), drop)
        .map_err(|reason| MountError::no_answer(reason, "ask for the size of", point, deadline))?;
    let size =
        answer.map_err(|errno| MountError::Inspect { point: point.to_owned(), source: errno.into() })?;
    Ok((size.f_blocks.saturating_mul(size.f_frsize), size.f_files))
}

/// Unmounts; a mount in use is detached, and one that is not ours to unmount is left to fusermount3.
///
/// # Errors
/// [`MountError::Unmount`], [`MountError::Deadline`], and those of fusermount3 for an ordinary user.
pub fn unmount(point: &Path, how: How, deadline: Duration) -> Result<Unmounted, MountError> {
    let target = point.to_owned();
    let unmounted = within(deadline, move || unmount_now(&target, how), drop)
        .map_err(|reason| MountError::no_answer(reason, "unmount", point, deadline))?;
    match unmounted {
        Ok(unmounted) => Ok(unmounted),
        Err(Errno::PERM) => fusermount::unmount(point, deadline),
        Err(errno) => Err(MountError::Unmount { point: point.to_owned(), source: errno.into() }),
    }
}

fn unmount_now(point: &Path, how: How) -> Result<Unmounted, Errno> {
    let flags = match how {
        How::Gently => UnmountFlags::NOFOLLOW,
        How::Force => UnmountFlags::NOFOLLOW | UnmountFlags::FORCE,
    };
    match rustix::mount::unmount(point, flags) {
        Ok(()) => Ok(Unmounted::Cleanly),
        // Not a mount point, or nothing there at all.
        Err(Errno::INVAL | Errno::NOENT) => Ok(Unmounted::WasNotMounted),
        Err(Errno::BUSY) => rustix::mount::unmount(point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
            .map(|()| Unmounted::Detached),
        Err(errno) => Err(errno),
    }
}

fn open_device(point: &Path) -> Result<OwnedFd, MountError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open("/dev/fuse", flags, Mode::empty()).map_err(|errno| match errno {
        Errno::ACCESS | Errno::PERM => refused(point, errno),
        errno => MountError::NoDevice { source: errno.into() },
    })
}

/// Tells apart what the caller can do about a refusal of the kernel.
fn refused(point: &Path, errno: Errno) -> MountError {
    let (point, source) = (point.to_owned(), errno.into());
    match errno {
        Errno::PERM | Errno::ACCESS => MountError::NotAllowed { point, method: "mount(2)", source },
        Errno::NOENT => MountError::Missing { point },
        Errno::NOTDIR => MountError::NotDirectory { point },
        Errno::NODEV => MountError::NoDevice { source },
        _ => MountError::Mount { point, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_the_kernel_are_told_apart() {
        let refusal = |errno| refused(Path::new("/m"), errno);
        assert!(matches!(refusal(Errno::PERM), MountError::NotAllowed { .. }));
        assert!(matches!(refusal(Errno::NOENT), MountError::Missing { .. }));
        assert!(matches!(refusal(Errno::NOTDIR), MountError::NotDirectory { .. }));
        assert!(matches!(refusal(Errno::NODEV), MountError::NoDevice { .. }));
        assert!(matches!(refusal(Errno::INVAL), MountError::Mount { .. }));
        assert!(refusal(Errno::NODEV).to_string().contains("modprobe fuse"));
    }
}
