//! What can keep a file system from its folder, and what cures it?

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use super::deadline::NoAnswer;

/// A mount or unmount that did not come about.
#[derive(Debug, Error)]
pub enum MountError {
    /// There is no such folder.
    #[error("mount point {point:?} does not exist: create the folder first")]
    Missing {
        /// The mount point.
        point: PathBuf,
    },
    /// It is not a folder.
    #[error("mount point {point:?} is not a directory: name a folder")]
    NotDirectory {
        /// The mount point.
        point: PathBuf,
    },
    /// The folder has something in it that the mount would hide.
    #[error("mount point {point:?} is not empty: name an empty folder")]
    NotEmpty {
        /// The mount point.
        point: PathBuf,
    },
    /// Something is mounted there and answers.
    #[error(
        "mount point {point:?} is busy, {file_system} of {source_name:?} is mounted there: unmount it or name another folder"
    )]
    Busy {
        /// The mount point.
        point: PathBuf,
        /// Type of the file system.
        file_system: String,
        /// What is mounted.
        source_name: String,
    },
    /// A FUSE mount whose process is gone.
    #[error("mount point {point:?} is a dead mount, its process is gone: unmount it (fusermount3 -u -z)")]
    Dead {
        /// The mount point.
        point: PathBuf,
    },
    /// A FUSE mount whose process does not answer.
    #[error(
        "mount point {point:?} is a mount that gave no answer within {after:?}: end its process or unmount it"
    )]
    Wedged {
        /// The mount point.
        point: PathBuf,
        /// The time waited.
        after: Duration,
    },
    /// The mount point could not be looked at.
    #[error("inspect mount point {point:?}")]
    Inspect {
        /// The mount point.
        point: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no FUSE here.
    #[error("open /dev/fuse: no FUSE here, load the module (modprobe fuse) or give the container the device")]
    NoDevice {
        /// What the kernel or fusermount3 said.
        source: io::Error,
    },
    /// This user may not mount.
    #[error(
        "mount on {point:?} by {method} is not allowed: run as root with CAP_SYS_ADMIN, or as a user who owns the folder and may open /dev/fuse, with fusermount3 setuid root"
    )]
    NotAllowed {
        /// The mount point.
        point: PathBuf,
        /// The way that was tried.
        method: &'static str,
        /// What the kernel or fusermount3 said.
        source: io::Error,
    },
    /// The helper for ordinary users is not installed.
    #[error("mount on {point:?}: fusermount3 is not in PATH, install fuse3 or run as root")]
    FusermountMissing {
        /// The mount point.
        point: PathBuf,
    },
    /// The helper failed in another way.
    #[error("run fusermount3 on {point:?}")]
    Fusermount {
        /// The mount point.
        point: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The kernel refused the mount in another way.
    #[error("mount on {point:?}")]
    Mount {
        /// The mount point.
        point: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused the unmount.
    #[error("unmount {point:?}")]
    Unmount {
        /// The mount point.
        point: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A step took too long.
    #[error("{step} {point:?}: no answer within {after:?}")]
    Deadline {
        /// What was attempted.
        step: &'static str,
        /// The mount point.
        point: PathBuf,
        /// The time waited.
        after: Duration,
    },
    /// A thread for a step could not be had.
    #[error("{step} {point:?}: no thread for it")]
    Thread {
        /// What was attempted.
        step: &'static str,
        /// The mount point.
        point: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl MountError {
    /// Puts the step and the mount point to a call that gave no answer.
    pub(super) fn no_answer(
        reason: NoAnswer,
        step: &'static str,
        point: impl Into<PathBuf>,
        after: Duration,
    ) -> Self {
        let point = point.into();
        match reason {
            NoAnswer::Deadline => Self::Deadline { step, point, after },
            NoAnswer::Thread(source) => Self::Thread { step, point, source },
        }
    }
}
