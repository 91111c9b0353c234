//! Where does a Dataset keep what outlives its processes?
//!
//! ```text
//! <root>/<namespace>/<name>/
//!   lock               held by the supervisor, which is named in it
//!   run.json           the processes of the running system; not there after `down`
//!   uid master.key data.key control.key
//!   dataset.yaml       as it was last applied, without Secrets
//!   version.json       the version in use
//!   membership.json    the workers; its epoch only grows
//!   credentials/<secret>/<key>   removed by `down`
//!   workers/<worker>/{state,tier-0,..,addresses.json}
//!   indexes/ node-store/ mount/ logs/
//! /dev/shm/millrace-<uid>/<worker>/tier-0   tiers of Memory
//! ```

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use millrace_api::dataset::manifest::DEFAULT_NAMESPACE;

/// Datasets that are looked for in a root: far more than a machine can hold.
const MAX_DATASETS: usize = 1000;

/// Namespace and name of a Dataset.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DatasetName {
    /// `default` where none is given.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// The folder of all Datasets.
#[derive(Debug, Clone)]
pub struct Root(PathBuf);

/// The folder of one Dataset.
#[derive(Debug, Clone)]
pub struct Folder {
    /// Whose it is.
    pub name: DatasetName,
    path: PathBuf,
}

impl FromStr for DatasetName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, name) = text.split_once('/').unwrap_or((DEFAULT_NAMESPACE, text));
        let is_name = |text: &str| {
            !text.is_empty()
                && text.len() <= 253
                && !text.starts_with('.')
                && text
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
        };
        if is_name(namespace) && is_name(name) {
            Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
        } else {
            Err(format!("{text:?} names no Dataset: write NAME or NAMESPACE/NAME"))
        }
    }
}

impl fmt::Display for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name } = self;
        write!(f, "{namespace}/{name}")
    }
}

impl Root {
    /// The folder given, else `$XDG_STATE_HOME/millrace`, else `~/.local/state/millrace`.
    ///
    /// # Errors
    /// Where none can be told.
    pub fn find(given: Option<&Path>) -> anyhow::Result<Self> {
        let by_environment =
            |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let path = match given {
            Some(path) => path.to_owned(),
            None => match (by_environment("XDG_STATE_HOME"), by_environment("HOME")) {
                (Some(state), _) => state.join("millrace"),
                (None, Some(home)) => home.join(".local/state/millrace"),
                (None, None) => bail!("no folder for state: HOME is not set, give one with --state-dir"),
            },
        };
        Ok(Self(std::path::absolute(&path).with_context(|| format!("--state-dir {path:?}"))?))
    }

    /// The folder of a Dataset, there or not.
    pub fn folder(&self, name: &DatasetName) -> Folder {
        Folder { name: name.clone(), path: self.0.join(&name.namespace).join(&name.name) }
    }

    /// The folders that are there, sorted.
    ///
    /// # Errors
    /// Where the root cannot be read; one that is not there has none.
    pub fn folders(&self) -> anyhow::Result<Vec<Folder>> {
        let mut found = Vec::new();
        for namespace in subfolders(&self.0)? {
            for name in subfolders(&self.0.join(&namespace))? {
                let Ok(name) = format!("{namespace}/{name}").parse() else { continue };
                let folder = self.folder(&name);
                if folder.uid_file().exists() && found.len() < MAX_DATASETS {
                    found.push(folder);
                }
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }
}

fn subfolders(path: &Path) -> anyhow::Result<Vec<String>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("read folder {path:?}")),
    };
    let folders =
        entries.filter_map(Result::ok).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(folders.filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

impl Folder {
    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a Dataset of this name was ever up.
    pub fn exists(&self) -> bool {
        self.uid_file().exists()
    }

    /// File with the Dataset's UID.
    pub fn uid_file(&self) -> PathBuf {
        self.path.join("uid")
    }

    /// File with the key that all others are derived from.
    pub fn master_key_file(&self) -> PathBuf {
        self.path.join("master.key")
    }

    /// File with the data key.
    pub fn data_key_file(&self) -> PathBuf {
        self.path.join("data.key")
    }

    /// File with the control key.
    pub fn control_key_file(&self) -> PathBuf {
        self.path.join("control.key")
    }

    /// The Dataset as it was last applied.
    pub fn dataset_file(&self) -> PathBuf {
        self.path.join("dataset.yaml")
    }

    /// The version in use.
    pub fn version_file(&self) -> PathBuf {
        self.path.join("version.json")
    }

    /// The workers as everybody sees them.
    pub fn membership_file(&self) -> PathBuf {
        self.path.join("membership.json")
    }

    /// The conditions as last told, for their times of transition.
    pub fn conditions_file(&self) -> PathBuf {
        self.path.join("conditions.json")
    }

    /// The lock of the supervisor.
    pub fn lock_file(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// The processes of the running system.
    pub fn run_file(&self) -> PathBuf {
        self.path.join("run.json")
    }

    /// Folder of credential folders.
    pub fn credentials_dir(&self) -> PathBuf {
        self.path.join("credentials")
    }

    /// Folder of one worker.
    pub fn worker_dir(&self, worker: &str) -> PathBuf {
        self.path.join("workers").join(worker)
    }

    /// Where a worker tells its addresses.
    pub fn addresses_file(&self, worker: &str) -> PathBuf {
        self.worker_dir(worker).join("addresses.json")
    }

    /// Where the mount process tells its address, once it has mounted.
    pub fn mount_addresses_file(&self) -> PathBuf {
        self.path.join("mount-addresses.json")
    }

    /// Folder of the mount's indexes.
    pub fn index_dir(&self) -> PathBuf {
        self.path.join("indexes")
    }

    /// Folder of what this node keeps of what was read.
    pub fn node_store_dir(&self) -> PathBuf {
        self.path.join("node-store")
    }

    /// Where the Dataset is mounted unless told otherwise.
    pub fn default_mount_point(&self) -> PathBuf {
        self.path.join("mount")
    }

    /// Log of a child.
    pub fn log_file(&self, child: &str) -> PathBuf {
        self.path.join("logs").join(format!("{child}.log"))
    }

    /// Makes the folder and those in it, readable by their user only.
    ///
    /// # Errors
    /// Names the folder.
    pub fn make(&self) -> anyhow::Result<()> {
        make_dir(&self.path)?;
        make_dir(&self.path.join("logs"))?;
        make_dir(&self.path.join("workers"))
    }
}

/// Where the tiers of Memory of a Dataset are; tmpfs on every Linux.
pub fn memory_dir(uid: &str) -> PathBuf {
    Path::new("/dev/shm").join(format!("millrace-{uid}"))
}

/// Makes a folder that only its user can read, and those above it.
///
/// # Errors
/// Names the folder.
pub fn make_dir(path: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("make folder {path:?}"))
}

/// Writes a file that only its user can read, beside its place, and renames it: a reader finds the old or the new whole.
///
/// # Errors
/// Names the file.
pub fn write_private(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let write = || -> io::Result<()> {
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        file.write_all(content)?;
        fs::rename(&partial, path)
    };
    write().with_context(|| format!("write {path:?}"))
}

/// Reads a file; `None` where there is none.
///
/// # Errors
/// Names the file.
pub fn read_if_there(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {path:?}")),
    }
}

/// Removes a file or a folder with all in it; nothing there is as good.
///
/// # Errors
/// Names it.
pub fn remove(path: &Path) -> anyhow::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {path:?}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_with_and_without_namespace_and_nothing_leads_out_of_the_root() {
        let name: DatasetName = "imagenet".parse().unwrap();
        assert_eq!(name.to_string(), "default/imagenet");
        assert_eq!("vision/a.b-c".parse::<DatasetName>().unwrap().namespace, "vision");
        for wrong in ["", "/", "a/", "/a", "..", "../x", "a/..", "a/b/c", "A", "a b"] {
            assert!(wrong.parse::<DatasetName>().unwrap_err().contains("NAMESPACE/NAME"), "{wrong:?}");
        }
    }

    #[test]
    fn datasets_are_found_sorted_and_other_folders_are_not_taken_for_one() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::find(Some(dir.path())).unwrap();
        assert!(root.folders().unwrap().is_empty());
        for name in ["b/y", "a/z", "b/x"] {
            let folder = root.folder(&name.parse().unwrap());
            folder.make().unwrap();
            fs::write(folder.uid_file(), "u").unwrap();
        }
        fs::create_dir_all(dir.path().join("b/nothing")).unwrap();
        let found: Vec<_> = root.folders().unwrap().iter().map(|folder| folder.name.to_string()).collect();
        assert_eq!(found, ["a/z", "b/x", "b/y"]);
    }

    #[test]
    fn what_is_private_is_so_from_the_first_byte() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.key");
        write_private(&file, b"secret").unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_if_there(&file).unwrap().unwrap(), b"secret");
        remove(&file).unwrap();
        remove(&file).unwrap();
        assert_eq!(read_if_there(&file).unwrap(), None);
    }
}
