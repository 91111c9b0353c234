//! What does one mount process of this node show, and where does it keep its things?

use std::path::{Path, PathBuf};

use millrace_api::ids::VersionId;
use millrace_api::mount::{MountMode, MountSettings};
use sha2::{Digest, Sha256};

use crate::dataset_fs::Ownership;

/// How files look by default, as [`MountKey::new`] writes it.
const DEFAULT_LOOK: &str = "0:0 0444 0555 Auto ";

/// Which mount process: pods that agree in this share one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MountKey {
    /// UID of the Dataset, checked to be fit for a file name.
    pub uid: String,
    /// The version that it shows.
    pub version: VersionId,
    /// SELinux context of all files, where one was asked for.
    pub context: Option<String>,
    /// What stands for a context, owners, permissions or a mode that are not the defaults. Where a Dataset comes to say
    /// otherwise, pods that start from then on get a process of their own beside that of the pods that run.
    variant: Option<String>,
}

/// All that a mount process is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPlan {
    /// Which one.
    pub key: MountKey,
    /// Namespace and name of the Dataset, for logs and `df`.
    pub dataset: String,
    /// Host and port under which the workers are found.
    pub workers: String,
    /// Owner and permissions of everything.
    pub ownership: Ownership,
    /// Most bytes of the Dataset that this node keeps, as its owner wishes.
    pub cache_quota_bytes: u64,
    /// How the kernel is served.
    pub mode: MountMode,
}

impl MountPlan {
    /// The plan for a dataset that is to be mounted as a worker says.
    pub fn new(
        uid: String,
        dataset: String,
        workers: String,
        context: Option<String>,
        settings: &MountSettings,
    ) -> Self {
        let MountSettings { version, node_cache_quota_bytes, uid: owner, gid, file_mode, dir_mode, mode } =
            *settings;
        let ownership = Ownership { uid: owner, gid, file_mode, dir_mode };
        Self {
            key: MountKey::new(uid, version, context, &ownership, mode),
            dataset,
            workers,
            ownership,
            cache_quota_bytes: node_cache_quota_bytes,
            mode,
        }
    }
}

#[cfg(test)]
impl MountPlan {
    /// A plan for tests, of a version of a Dataset that says nothing about its mounts.
    pub fn example(uid: &str) -> Self {
        let settings = MountSettings {
            version: VersionId([1; 16]),
            node_cache_quota_bytes: 0,
            uid: 0,
            gid: 0,
            file_mode: 0o444,
            dir_mode: 0o555,
            mode: MountMode::Auto,
        };
        Self::new(uid.into(), "vision/data".into(), "w:1".into(), None, &settings)
    }
}

/// Folders of the driver on this node.
#[derive(Debug, Clone)]
pub struct Folders {
    /// State that a restart of the driver needs.
    pub state: PathBuf,
    /// What was read, kept beyond the pods.
    pub cache: PathBuf,
}

impl Folders {
    /// Where all mount points are.
    pub fn mounts(&self) -> PathBuf {
        self.state.join("mounts")
    }

    /// Where a mount process mounts.
    pub fn mount_point(&self, key: &MountKey) -> PathBuf {
        self.mounts().join(&key.uid).join(key.folder())
    }

    /// Where the files of all mount processes are.
    pub fn processes(&self) -> PathBuf {
        self.state.join("processes")
    }

    /// Where a mount process has its addresses and the list of its pods.
    pub fn process(&self, key: &MountKey) -> PathBuf {
        self.processes().join(&key.uid).join(key.folder())
    }

    /// Where the published targets are written down.
    pub fn targets(&self) -> PathBuf {
        self.state.join("targets")
    }

    /// Where data keys are while they are needed: in memory, so that none outlives the node's uptime.
    pub fn keys(&self) -> PathBuf {
        self.state.join("keys")
    }

    /// The file with the data key of a mount process.
    pub fn key_file(&self, key: &MountKey) -> PathBuf {
        self.keys().join(format!("{}.{}", key.uid, key.folder()))
    }

    /// Everything that this node keeps of a Dataset.
    pub fn dataset_cache(&self, uid: &str) -> PathBuf {
        self.cache.join(uid)
    }
}

impl MountKey {
    /// The key of a mount that looks like this.
    pub fn new(
        uid: String,
        version: VersionId,
        context: Option<String>,
        ownership: &Ownership,
        mode: MountMode,
    ) -> Self {
        let Ownership { uid: owner, gid, file_mode, dir_mode } = ownership;
        let look =
            |context: &str| format!("{owner}:{gid} {file_mode:04o} {dir_mode:04o} {} {context}", mode.name());
        let look = look(context.as_deref().unwrap_or_default());
        let variant = (look != DEFAULT_LOOK).then(|| short_hash(look.as_bytes()));
        Self { uid, version, context, variant }
    }

    /// What tells it from others of the same version; none where everything is as by default.
    pub fn variant(&self) -> Option<&str> {
        self.variant.as_deref()
    }

    fn folder(&self) -> String {
        match &self.variant {
            None => self.version.to_string(),
            Some(variant) => format!("{}-{variant}", self.version),
        }
    }
}

/// Eight bytes of a hash as text, for names of files.
fn short_hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// The file name under which something about a path is written down.
pub fn name_of(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    Sha256::digest(path.as_os_str().as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_that_differ_in_anything_have_their_own_folders() {
        let folders = Folders { state: "/s".into(), cache: "/c".into() };
        let plain = Ownership { uid: 0, gid: 0, file_mode: 0o444, dir_mode: 0o555 };
        let owned = Ownership { uid: 1000, ..plain };
        let key = |version: u8, context: Option<&str>, ownership: &Ownership, mode: MountMode| {
            MountKey::new("u-1".into(), VersionId([version; 16]), context.map(str::to_owned), ownership, mode)
        };
        let keys = [
            key(1, None, &plain, MountMode::Auto),
            key(2, None, &plain, MountMode::Auto),
            key(1, Some("system_u:object_r:x_t:s0"), &plain, MountMode::Auto),
            key(1, None, &owned, MountMode::Auto),
            key(1, None, &plain, MountMode::Packed),
        ];
        let points: std::collections::BTreeSet<PathBuf> =
            keys.iter().map(|key| folders.mount_point(key)).collect();
        assert_eq!(points.len(), keys.len());
        assert!(points.contains(Path::new("/s/mounts/u-1/01010101010101010101010101010101")));
    }
}
