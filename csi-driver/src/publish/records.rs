//! Which targets are published, as a restart of the driver must know?
//!
//! One file for each target, written before the target is mounted and removed after it is gone: between any two steps a
//! restart finds either the file, and makes good what it says, or nothing to do.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use millrace_api::mount::{MountMode, Pod};
use millrace_daemon::files::write_atomically;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::dataset_fs::Ownership;
use crate::files;
use crate::node_mounts::plan::{MountKey, MountPlan, name_of};

/// A published target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Where.
    pub target: PathBuf,
    /// Name of the volume, for kubelet.
    pub volume_id: String,
    /// What.
    pub plan: MountPlan,
    /// For whom.
    pub pod: Option<Pod>,
}

/// The form of the file. Fields are only ever added, with a default.
#[derive(Serialize, Deserialize)]
struct RecordFile {
    /// Of the running kernel: no mount outlives it.
    boot_id: String,
    target: PathBuf,
    volume_id: String,
    uid: String,
    version: String,
    context: Option<String>,
    dataset: String,
    workers: String,
    owner: (u32, u32),
    modes: (u16, u16),
    cache_quota_bytes: u64,
    #[serde(default)]
    mode: MountMode,
    pod: Option<Pod>,
}

/// The records of this node.
#[derive(Debug)]
pub struct Records {
    dir: PathBuf,
    boot_id: String,
    /// Bounded by the targets that kubelet publishes.
    known: Mutex<BTreeMap<PathBuf, Record>>,
}

impl Records {
    /// Reads what a former driver wrote down. Records of an earlier boot are void, and removed; so are unreadable ones.
    ///
    /// # Errors
    /// When the folder cannot be made or listed.
    pub fn open(dir: PathBuf, boot_id: String) -> io::Result<Self> {
        std::fs::create_dir_all(&dir)?;
        let mut known = BTreeMap::new();
        for entry in std::fs::read_dir(&dir)? {
            let path = entry?.path();
            match read(&path, &boot_id) {
                Ok(record) => drop(known.insert(record.target.clone(), record)),
                Err(reason) => {
                    tracing::info!(path = %path.display(), reason, "a record of a target is void");
                    files::remove(&path)?;
                }
            }
        }
        Ok(Self { dir, boot_id, known: Mutex::new(known) })
    }

    /// The record of a target.
    pub fn get(&self, target: &Path) -> Option<Record> {
        self.known.lock().get(target).cloned()
    }

    /// All records.
    pub fn all(&self) -> Vec<Record> {
        self.known.lock().values().cloned().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.known.lock().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes down a target. Blocks for a small file.
    ///
    /// # Errors
    /// When the file cannot be written; then it is not known either.
    pub fn put(&self, record: Record) -> io::Result<()> {
        let Record { target, volume_id, plan, pod } = record.clone();
        let MountPlan { key, dataset, workers, ownership, cache_quota_bytes, mode } = plan;
        let path = self.path(&target);
        // What else is in it follows from the rest.
        let MountKey { uid, version, context, .. } = key;
        let content = RecordFile {
            boot_id: self.boot_id.clone(),
            target,
            volume_id,
            uid,
            version: version.to_string(),
            context,
            dataset,
            workers,
            owner: (ownership.uid, ownership.gid),
            modes: (ownership.file_mode, ownership.dir_mode),
            cache_quota_bytes,
            mode,
            pod,
        };
        write_atomically(&path, &serde_json::to_vec(&content)?)?;
        self.known.lock().insert(record.target.clone(), record);
        Ok(())
    }

    /// Forgets a target. Blocks for a small file.
    ///
    /// # Errors
    /// When the file cannot be removed; then it is known still.
    pub fn remove(&self, target: &Path) -> io::Result<()> {
        files::remove(&self.path(target))?;
        self.known.lock().remove(target);
        Ok(())
    }

    fn path(&self, target: &Path) -> PathBuf {
        self.dir.join(name_of(target)).with_extension("json")
    }
}

fn read(path: &Path, boot_id: &str) -> Result<Record, String> {
    if path.extension().is_none_or(|extension| extension != "json") {
        return Err("half written".to_owned());
    }
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    let file: RecordFile = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if file.boot_id != boot_id {
        return Err("of an earlier boot".to_owned());
    }
    let RecordFile {
        boot_id: _,
        target,
        volume_id,
        uid,
        version,
        context,
        dataset,
        workers,
        owner,
        modes,
        ..
    } = file;
    let version = version.parse().map_err(|error: millrace_api::ids::ParseId| error.to_string())?;
    let ownership = Ownership { uid: owner.0, gid: owner.1, file_mode: modes.0, dir_mode: modes.1 };
    let (mode, cache_quota_bytes, pod) = (file.mode, file.cache_quota_bytes, file.pod);
    let key = MountKey::new(uid, version, context, &ownership, mode);
    let plan = MountPlan { key, dataset, workers, ownership, cache_quota_bytes, mode };
    Ok(Record { target, volume_id, plan, pod })
}

/// The id of the running kernel's boot.
///
/// # Errors
/// When /proc has it not.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use millrace_api::ids::VersionId;

    use super::*;

    fn record(target: &str) -> Record {
        let ownership = Ownership { uid: 1, gid: 2, file_mode: 0o440, dir_mode: 0o550 };
        let (dataset, workers) = ("ns/d".into(), "w:1".into());
        let (mode, context) = (MountMode::Packed, Some("a:b:c:s0".into()));
        let key = MountKey::new("u".into(), VersionId([3; 16]), context, &ownership, mode);
        let plan = MountPlan { key, dataset, workers, ownership, cache_quota_bytes: 7, mode };
        let pod = Some(Pod { namespace: "ns".into(), name: "p".into(), uid: "pu".into() });
        Record { target: target.into(), volume_id: "v".into(), plan, pod }
    }

    #[test]
    fn a_restart_finds_what_was_written_and_a_reboot_finds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let open = |boot: &str| Records::open(dir.path().join("targets"), boot.into()).unwrap();
        let records = open("boot-1");
        records.put(record("/t/1")).unwrap();
        records.put(record("/t/2")).unwrap();
        records.remove(Path::new("/t/2")).unwrap();
        records.remove(Path::new("/t/none")).unwrap();
        std::fs::write(dir.path().join("targets/half.partial"), "{").unwrap();
        std::fs::write(dir.path().join("targets/broken.json"), "{").unwrap();
        assert_eq!(open("boot-1").all(), [record("/t/1")]);
        assert_eq!(std::fs::read_dir(dir.path().join("targets")).unwrap().count(), 1);
        assert!(open("boot-2").is_empty());
        assert!(open("boot-1").is_empty());
    }
}
