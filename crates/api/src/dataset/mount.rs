//! What may a user write about the mount of a Dataset? The doc comments are the manual of the CRD.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use super::sizes::{ByteSize, Mode};
use super::spec::default_size;
use crate::mount::MountMode;

/// How the files look in the mount, and what each node keeps.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// What each node keeps of what its pods read. A change reaches all nodes within two minutes, also under pods that run; less drops
    /// what is over.
    #[serde(default)]
    pub node_cache: NodeCache,

    /// How the kernel is served. `Packed`: files are opened and listed without asking the mount process, which suits datasets of many
    /// small files. `Files`: every open asks, and large files that the node holds are handed to the kernel, which suits large files.
    /// `Auto`: the one of the two that is estimated to take less time for all files. Default: Auto. A change is for pods that start after
    /// it; pods that run see none.
    #[serde(default)]
    pub mode: MountMode,

    /// Owner of all files and folders, 0 to 4294967294. Default: 0. A change is for pods that start after it, as with the next three;
    /// pods that run see none.
    #[serde(default)]
    #[schemars(range(min = 0, max = 4_294_967_294u32), extend("format" = "int64"))]
    pub uid: u32,

    /// Group of all files and folders, 0 to 4294967294. Default: 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 4_294_967_294u32), extend("format" = "int64"))]
    pub gid: u32,

    /// Permissions of files, octal, in quotes. Default: `"0444"`. Writing fails whatever they say.
    #[serde(default = "Mount::default_file_mode")]
    #[x_kube(validation = rules::mode_is_octal())]
    pub file_mode: Mode,

    /// Permissions of folders, octal, in quotes. Default: `"0555"`.
    #[serde(default = "Mount::default_dir_mode")]
    #[x_kube(validation = rules::mode_is_octal())]
    pub dir_mode: Mode,
}

/// What each node keeps of what its pods read.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeCache {
    /// Most bytes on the node's disk, for this dataset: a size such as `50Gi`, at least one block; `0` keeps nothing. Default: 10Gi.
    #[serde(default = "NodeCache::default_quota")]
    pub quota: ByteSize,
}

impl NodeCache {
    fn default_quota() -> ByteSize {
        default_size("10Gi")
    }
}

impl Default for NodeCache {
    fn default() -> Self {
        Self { quota: Self::default_quota() }
    }
}

impl Mount {
    fn default_file_mode() -> Mode {
        Mode::new(0o444)
    }

    fn default_dir_mode() -> Mode {
        Mode::new(0o555)
    }
}

impl Default for Mount {
    fn default() -> Self {
        Self {
            node_cache: NodeCache::default(),
            mode: MountMode::default(),
            uid: 0,
            gid: 0,
            file_mode: Self::default_file_mode(),
            dir_mode: Self::default_dir_mode(),
        }
    }
}
