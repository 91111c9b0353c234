//! By which way is a folder mounted, and who takes the mount away again?

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::MountError;
use super::mountinfo::{self, DeviceNumber};
use super::options::MountOptions;
use super::point::{PointState, inspect, require_ready, resolve};
use super::syscalls::{self, How, Unmounted};
use super::{fusermount, stale};

/// The way to mount.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Method {
    /// mount(2) as root, fusermount3 else, or where root is not allowed to mount.
    #[default]
    Auto,
    /// mount(2).
    Syscall,
    /// fusermount3.
    Fusermount,
}

/// What becomes of a dead or wedged mount on the folder.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DeadMount {
    /// It is an error.
    Refuse,
    /// A dead one is taken away; one that is only silent is still an error, since its process may come back.
    Clean,
}

/// A mounted folder: the device to speak FUSE on, and the mount itself.
#[derive(Debug)]
pub struct Attached {
    /// The device; INIT waits on it.
    pub device: OwnedFd,
    /// Takes the mount away when it is dropped.
    pub mount: Mount,
}

/// A mount of ours; it is taken away on drop.
#[derive(Debug)]
pub struct Mount {
    point: PathBuf,
    device: Option<DeviceNumber>,
    deadline: Duration,
    is_mounted: bool,
}

impl Mount {
    /// Gives the folder, without symbolic links.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Gives the number by which sysfs and fusectl know it; `None` when the kernel's table did not show it.
    pub fn device(&self) -> Option<DeviceNumber> {
        self.device
    }

    /// Takes the mount away; one in use is detached.
    ///
    /// # Errors
    /// [`MountError`]; then it is still there.
    pub fn unmount(mut self) -> Result<Unmounted, MountError> {
        // Once only: what failed here would fail in the drop too.
        self.is_mounted = false;
        syscalls::unmount(&self.point, How::Gently, self.deadline)
    }

    /// Lets go of a mount that somebody else has taken away: unmounting would hit whatever is there now.
    pub fn forget(mut self) {
        self.is_mounted = false;
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.is_mounted {
            return;
        }
        if let Err(error) = syscalls::unmount(&self.point, How::Gently, self.deadline) {
            let reason: &dyn std::error::Error = &error;
            tracing::error!(target_path = %self.point.display(), error = reason, "mount left behind");
        }
    }
}

/// Mounts a folder. Each step takes `deadline` at most.
///
/// # Errors
/// [`MountError`]: those of the folder first, then those of the way, the last one that was tried.
pub fn attach(
    point: &Path,
    options: &MountOptions,
    method: Method,
    dead: DeadMount,
    deadline: Duration,
) -> Result<Attached, MountError> {
    if dead == DeadMount::Clean {
        clean_dead(point, deadline)?;
    }
    let point = require_ready(point, deadline)?;
    let is_root = rustix::process::geteuid().is_root();
    let device = match (method, is_root) {
        (Method::Syscall, _) => syscalls::mount(&point, options, deadline)?,
        (Method::Fusermount, _) | (Method::Auto, false) => by_fusermount(&point, options, deadline)?,
        (Method::Auto, true) => match syscalls::mount(&point, options, deadline) {
            Err(error @ MountError::NotAllowed { .. }) => {
                let reason: &dyn std::error::Error = &error;
                tracing::info!(target_path = %point.display(), error = reason, "mount(2) not allowed, trying fusermount3");
                by_fusermount(&point, options, deadline)?
            }
            mounted => mounted?,
        },
    };
    // From here on the mount is there, so it must be owned before anything else can fail.
    let mut mount = Mount { point, device: None, deadline, is_mounted: true };
    mount.device = mountinfo::find(&mount.point).ok().flatten().map(|entry| entry.device);
    Ok(Attached { device, mount })
}

/// Takes away whatever dead mounts lie on a folder, one over the other; gives how many there were.
///
/// # Errors
/// [`MountError`] when one cannot be looked at or taken away.
pub fn clean_dead(point: &Path, deadline: Duration) -> Result<u32, MountError> {
    // Each start after a crash can leave one; nobody has more than a few.
    const MOST: u32 = 16;
    for cleaned in 0..MOST {
        let PointState::Dead(entry) = inspect(point, deadline)? else {
            return Ok(cleaned);
        };
        let Some(path) = resolve(point, deadline)? else {
            return Ok(cleaned);
        };
        stale::clean(&path, entry.device, deadline)?;
        tracing::info!(target_path = %path.display(), "dead mount taken away");
    }
    Err(MountError::Dead { point: point.to_owned() })
}

/// Mounts by fusermount3; without sharing where the system's configuration does not allow that.
fn by_fusermount(point: &Path, options: &MountOptions, deadline: Duration) -> Result<OwnedFd, MountError> {
    match fusermount::mount(point, options, deadline) {
        Err(error) if options.is_shared && fusermount::is_about_sharing(&error) => {
            tracing::warn!(
                target_path = %point.display(),
                "only this user sees the mount: /etc/fuse.conf does not say user_allow_other"
            );
            let alone = MountOptions { is_shared: false, ..options.clone() };
            fusermount::mount(point, &alone, deadline)
        }
        mounted => mounted,
    }
}
