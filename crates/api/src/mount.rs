//! How is a dataset to be mounted, and who has it mounted?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::VersionId;

/// Most pods that one announcement lists: more than a kubelet runs (110 by default); further ones are only counted.
pub const MAX_LISTED_PODS: usize = 256;

/// Longest name of a node or a pod, bytes: a DNS subdomain.
pub const MAX_SUBDOMAIN_BYTES: usize = 253;

/// Longest namespace, bytes: a DNS label.
pub const MAX_NAMESPACE_BYTES: usize = 63;

/// Longest UID of a pod, bytes: a UUID has 36, a static pod's hash 32; the rest is room.
pub const MAX_POD_UID_BYTES: usize = 64;

/// Mode bits that a mount may show: a read-only file system has no use for set-uid, set-gid and sticky bits.
pub const MODE_BITS: u16 = 0o777;

/// All that may change about a mount during the life of a dataset; the same on every node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountSettings {
    /// The version that new mounts show.
    pub version: VersionId,
    /// Most bytes of the dataset that a node keeps; 0: none.
    pub node_cache_quota_bytes: u64,
    /// Owner of all files.
    pub uid: u32,
    /// Group of all files.
    pub gid: u32,
    /// Permissions of files, within [`MODE_BITS`].
    pub file_mode: u16,
    /// Permissions of directories, within [`MODE_BITS`].
    pub dir_mode: u16,
    /// How the kernel is served.
    pub mode: MountMode,
}

/// How the kernel is served: by the index of each version, or as the user says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[expect(
    missing_docs,
    reason = "a comment would make each variant a schema of its own; the comment of the Dataset's field has them"
)]
pub enum MountMode {
    #[default]
    Auto,
    Files,
    Packed,
}

/// A text that is no mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no mount mode: give Auto, Files or Packed")]
pub struct ParseMountMode;

impl std::str::FromStr for MountMode {
    type Err = ParseMountMode;

    fn from_str(text: &str) -> Result<Self, ParseMountMode> {
        let is_named = |mode: &Self| mode.name() == text;
        [Self::Auto, Self::Files, Self::Packed].into_iter().find(is_named).ok_or(ParseMountMode)
    }
}

impl MountMode {
    /// Its name in a Dataset and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "Auto",
            Self::Files => "Files",
            Self::Packed => "Packed",
        }
    }

    /// Its number on both ports.
    pub fn to_wire(self) -> u8 {
        match self {
            Self::Auto => 0,
            Self::Files => 1,
            Self::Packed => 2,
        }
    }

    /// The mode with this number. One of a newer build is `Auto`: it decides speed, and nothing else.
    pub fn from_wire(number: u8) -> Self {
        match number {
            1 => Self::Files,
            2 => Self::Packed,
            _ => Self::Auto,
        }
    }
}

/// What a mount process shows, and to whom; sent to every worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announce {
    /// Name of the node, at most [`MAX_SUBDOMAIN_BYTES`].
    pub node: String,
    /// The version that the mount shows.
    pub version: VersionId,
    /// At most [`MAX_LISTED_PODS`].
    pub pods: Vec<Pod>,
    /// All pods that have it mounted, also those that are not listed.
    pub pod_count: u32,
}

/// A pod that has a dataset mounted. Also the form of the file by which a mount process is told of its pods: a JSON list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pod {
    /// At most [`MAX_NAMESPACE_BYTES`].
    pub namespace: String,
    /// At most [`MAX_SUBDOMAIN_BYTES`].
    pub name: String,
    /// At most [`MAX_POD_UID_BYTES`].
    pub uid: String,
}

impl Announce {
    /// An announcement that lists as many pods as it may, and counts all.
    pub fn new(node: String, version: VersionId, mut pods: Vec<Pod>) -> Self {
        let pod_count = u32::try_from(pods.len()).unwrap_or(u32::MAX);
        pods.truncate(MAX_LISTED_PODS);
        Self { node, version, pods, pod_count }
    }
}
