//! What can keep a dataset from its target, or a target from going away?

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::request::RequestError;
use crate::mount::error::MountError;

/// Why a call did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The request cannot be served.
    #[error("request of volume {volume_id:?} is refused")]
    Refuse {
        /// Name of the volume.
        volume_id: String,
        /// What is wrong with it.
        source: RequestError,
    },
    /// Another call works at the target.
    #[error("another call works at target {target:?} for longer than {waited:?}")]
    Busy {
        /// The target.
        target: PathBuf,
        /// How long this one waited.
        waited: Duration,
    },
    /// Another volume is published there.
    #[error("target {target:?} shows volume {other:?} already: unpublish that first")]
    OtherVolume {
        /// The target.
        target: PathBuf,
        /// What is there.
        other: String,
    },
    /// Something is mounted there that is none of ours.
    #[error(
        "target {target:?} has a mount of {file_system} on it that is none of this driver's: unmount it on the node"
    )]
    Foreign {
        /// The target.
        target: PathBuf,
        /// Type of the file system.
        file_system: String,
    },
    /// The node cannot mount FUSE file systems.
    #[error(
        "node {node:?} has no /dev/fuse: load the kernel module there (modprobe fuse), and keep it loaded (/etc/modules-load.d)"
    )]
    NoFuse {
        /// This node.
        node: String,
        /// What the system said.
        source: io::Error,
    },
    /// No worker said how to mount.
    #[error("dataset {dataset:?}: no worker at {workers:?} has said what to mount: {trouble}")]
    AskWorkers {
        /// Namespace and name of the Dataset.
        dataset: String,
        /// Where its workers were looked for.
        workers: String,
        /// What was wrong last.
        trouble: String,
    },
    /// The dataset has no version yet.
    #[error("dataset {dataset:?} is not indexed yet: see its condition Indexed (kubectl describe dataset)")]
    NotIndexed {
        /// Namespace and name of the Dataset.
        dataset: String,
    },
    /// Its mount process does not come up.
    #[error("dataset {dataset:?}: its mount process does not serve: {trouble}")]
    MountProcess {
        /// Namespace and name of the Dataset.
        dataset: String,
        /// What was wrong last.
        trouble: String,
    },
    /// A mount or unmount failed.
    #[error("target {target:?}")]
    Mount {
        /// The target.
        target: PathBuf,
        /// What went wrong.
        source: MountError,
    },
    /// A file or folder of the driver or the target.
    #[error("{step} for target {target:?}")]
    File {
        /// What was attempted.
        step: &'static str,
        /// The target.
        target: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no such volume here.
    #[error("volume {volume_id:?} is not published at {path:?}")]
    NotPublished {
        /// Name of the volume.
        volume_id: String,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The driver stops.
    #[error("the driver stops: try again")]
    Stopping,
}
