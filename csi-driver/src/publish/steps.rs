//! What is done at a target, one step at a time? Everything here may block, within deadlines.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::PublishError;
use crate::files;
use crate::mount::bind;
use crate::mount::mountinfo::{self, DeviceNumber};
use crate::mount::options::SUBTYPE;
use crate::mount::point;
use crate::mount::stale::{self, Health};

/// Deadline of each step; a step takes microseconds unless something is wedged. Guess.
const STEP_DEADLINE: Duration = Duration::from_secs(10);

/// Deadline of one look at a target: kubelet looks at each once a minute, one after the other.
const LOOK_DEADLINE: Duration = Duration::from_secs(2);

/// What is at a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AtTarget {
    /// Nothing is mounted there.
    Free,
    /// A mount of ours on this device.
    Ours(DeviceNumber),
    /// A mount of somebody else.
    Foreign(String),
}

/// Gives the path by which the kernel's table knows a target, also one that is not there yet.
pub fn resolve(target: &Path) -> Result<PathBuf, PublishError> {
    let found = point::resolve(target, STEP_DEADLINE).map_err(|source| mount_error(target, source))?;
    Ok(found.unwrap_or_else(|| target.to_owned()))
}

/// Looks what is mounted at a target, without asking the mount itself.
pub fn look(target: &Path) -> Result<AtTarget, PublishError> {
    let entry =
        mountinfo::find(target).map_err(|source| file_error("read table of mounts", target, source))?;
    Ok(match entry {
        None => AtTarget::Free,
        Some(entry) if entry.file_system == format!("fuse.{SUBTYPE}") => AtTarget::Ours(entry.device),
        Some(entry) => AtTarget::Foreign(entry.file_system),
    })
}

/// Asks a target for a sign of life.
pub fn health(target: &Path) -> Result<Health, PublishError> {
    stale::health(target, LOOK_DEADLINE).map_err(|source| file_error("look at the mount", target, source))
}

/// Fails where the mount that is to be shown does not answer.
pub fn require_alive(mount_point: &Path, target: &Path, dataset: &str) -> Result<(), PublishError> {
    let health = stale::health(mount_point, LOOK_DEADLINE)
        .map_err(|source| file_error("look at the mount", target, source))?;
    let trouble = match health {
        Health::Answers => return Ok(()),
        Health::Dead => "it has just died and is being started again",
        Health::Silent => "it hangs; it is killed if that lasts, and started again",
    };
    Err(PublishError::MountProcess { dataset: dataset.to_owned(), trouble: trouble.to_owned() })
}

/// Shows a mount at a target, in place of whatever of ours lies there.
pub fn show(mount_point: &Path, target: &Path) -> Result<(), PublishError> {
    unmount(target)?;
    match std::fs::create_dir_all(target) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(|source| file_error("create the folder", target, source))?,
    }
    bind::bind(mount_point, target, STEP_DEADLINE).map_err(|source| mount_error(target, source))
}

/// Takes away what is shown at a target, and leaves its folder.
pub fn unmount(target: &Path) -> Result<(), PublishError> {
    bind::detach_all(target, STEP_DEADLINE).map(drop).map_err(|source| mount_error(target, source))
}

/// Takes away what is shown at a target, and its folder. Nothing there is fine.
pub fn hide(target: &Path) -> Result<(), PublishError> {
    unmount(target)?;
    // Never more than the empty folder: what is in it is not ours.
    files::remove_folder(target).map_err(|source| file_error("remove the folder", target, source))
}

pub(super) fn mount_error(target: &Path, source: crate::mount::error::MountError) -> PublishError {
    PublishError::Mount { target: target.to_owned(), source }
}

pub(super) fn file_error(step: &'static str, target: &Path, source: io::Error) -> PublishError {
    PublishError::File { step, target: target.to_owned(), source }
}
