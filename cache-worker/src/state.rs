//! What does a worker remember across restarts, besides blocks, indexes and ledgers?
//!
//! One small JSON file in the state folder: the dataset's UID, the sources, the versions in use, the membership,
//! how nodes mount it. With it a
//! restarted worker serves before the control port tells it anything.

use std::io::Write;
use std::path::{Path, PathBuf};

use millrace_api::mount::MountSettings;
use millrace_api::placement::Membership;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::sources::SourceConfig;

/// Name of the file in the state folder.
const FILE: &str = "worker.json";

/// Why the state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeepState {
    /// The folder is another dataset's.
    #[error(
        "state folder {dir:?} belongs to the Dataset with UID {found:?}, not {wanted:?}: give each worker its own --state-dir, or \
         remove what another Dataset has left there"
    )]
    OtherDataset {
        /// The folder.
        dir: PathBuf,
        /// Whose it is.
        found: String,
        /// Whose it should be.
        wanted: String,
    },
    /// The file cannot be read.
    #[error("read {path:?}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file cannot be written.
    #[error("write {path:?}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// What is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// UID of the Dataset.
    pub dataset_uid: String,
    /// Sources in use.
    pub sources: Vec<SourceConfig>,
    /// Versions in use, the one to show first.
    pub versions: Vec<String>,
    /// The membership.
    pub membership: Membership,
    /// How nodes mount the dataset.
    pub mount: Option<MountSettings>,
}

/// The state on disk.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    state: Mutex<State>,
}

impl StateFile {
    /// Opens the state of the dataset with this UID, or begins it. A damaged file is begun anew: the control port tells
    /// all of it again.
    ///
    /// # Errors
    /// [`KeepState::OtherDataset`], or the folder cannot be used.
    pub fn open(dir: &Path, dataset_uid: &str) -> Result<Self, KeepState> {
        let path = dir.join(FILE);
        std::fs::create_dir_all(dir).map_err(|source| KeepState::Write { path: dir.to_owned(), source })?;
        let state = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), error = %error, "state not readable, begun anew");
                State::default()
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => State::default(),
            Err(source) => return Err(KeepState::Read { path, source }),
        };
        if !state.dataset_uid.is_empty() && state.dataset_uid != dataset_uid {
            let (found, wanted) = (state.dataset_uid, dataset_uid.to_owned());
            return Err(KeepState::OtherDataset { dir: dir.to_owned(), found, wanted });
        }
        let file = Self { path, state: Mutex::new(State { dataset_uid: dataset_uid.to_owned(), ..state }) };
        file.update(|_| {})?;
        Ok(file)
    }

    /// What is remembered now.
    pub fn now(&self) -> State {
        self.state.lock().clone()
    }

    /// Changes what is remembered; on disk when this returns. Small, and rare.
    ///
    /// # Errors
    /// [`KeepState::Write`]; the change holds in memory all the same.
    pub fn update(&self, change: impl FnOnce(&mut State)) -> Result<(), KeepState> {
        let mut state = self.state.lock();
        change(&mut state);
        let write = || {
            let new = self.path.with_extension("new");
            let mut file = std::fs::File::create(&new)?;
            file.write_all(&serde_json::to_vec_pretty(&*state)?)?;
            file.sync_data()?;
            std::fs::rename(&new, &self.path)
        };
        write().map_err(|source| KeepState::Write { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_api::placement::Worker;

    #[test]
    fn the_state_outlives_the_process_and_another_dataset_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = StateFile::open(dir.path(), "uid-1").unwrap();
        let worker = Worker { name: "w-0".into(), address: "127.0.0.1:7".into(), weight: 2 };
        let membership = Membership { epoch: 5, workers: vec![worker] };
        file.update(|state| state.membership = membership.clone()).unwrap();
        let again = StateFile::open(dir.path(), "uid-1").unwrap();
        assert_eq!(again.now().membership, membership);
        assert!(matches!(StateFile::open(dir.path(), "uid-2"), Err(KeepState::OtherDataset { .. })));
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert_eq!(StateFile::open(dir.path(), "uid-1").unwrap().now().membership.epoch, 0);
    }
}
