//! Which processes make up the running system, and where are they reached?

use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::addresses::Addresses;
use super::folder::{self, Folder};
use super::process::ProcessId;

/// The running system, as the supervisor has written it last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Who starts the others again.
    pub supervisor: Option<ProcessId>,
    /// Where the dataset is, or will be, mounted.
    pub mount_point: PathBuf,
    /// The version that is mounted, once it is known.
    pub version: Option<String>,
    /// The workers, in order.
    pub workers: Vec<WorkerRun>,
    /// The mount process.
    pub mount: Option<ProcessId>,
    /// Admin address of the mount process, once it has mounted.
    pub mount_admin: Option<String>,
}

/// One worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerRun {
    /// Its name in the membership.
    pub name: String,
    /// Its process; `None` before its first start.
    pub process: Option<ProcessId>,
    /// Where it serves, once it does; those of the process before while it is started again.
    pub addresses: Option<Addresses>,
}

impl Run {
    /// Reads what is written; `None` where the system is down.
    ///
    /// # Errors
    /// Where the file cannot be read or understood.
    pub fn read(folder: &Folder) -> anyhow::Result<Option<Self>> {
        let path = folder.run_file();
        let Some(content) = folder::read_if_there(&path)? else { return Ok(None) };
        let run = serde_json::from_slice(&content)
            .with_context(|| format!("read {path:?}: it was not written by this program"))?;
        Ok(Some(run))
    }

    /// Writes it for the other commands.
    ///
    /// # Errors
    /// Names the file.
    pub fn write(&self, folder: &Folder) -> anyhow::Result<()> {
        folder::write_private(&folder.run_file(), &serde_json::to_vec_pretty(self)?)
    }

    /// All processes but the supervisor, with their names.
    pub fn children(&self) -> impl Iterator<Item = (&str, ProcessId)> {
        let workers = self.workers.iter().filter_map(|worker| Some((worker.name.as_str(), worker.process?)));
        self.mount.map(|process| ("mount", process)).into_iter().chain(workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::folder::Root;

    #[test]
    fn a_run_reads_back_and_a_broken_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Root::find(Some(dir.path())).unwrap().folder(&"a/b".parse().unwrap());
        folder.make().unwrap();
        assert_eq!(Run::read(&folder).unwrap(), None);
        let process = ProcessId { pid: 7, start_ticks: 9 };
        let worker = WorkerRun { name: "b-0".into(), process: Some(process), addresses: None };
        let run = Run {
            supervisor: Some(process),
            mount_point: "/mnt/b".into(),
            version: None,
            workers: vec![worker],
            mount: Some(process),
            mount_admin: None,
        };
        run.write(&folder).unwrap();
        assert_eq!(Run::read(&folder).unwrap().as_ref(), Some(&run));
        assert_eq!(run.children().map(|(name, _)| name).collect::<Vec<_>>(), ["mount", "b-0"]);
        std::fs::write(folder.run_file(), "{").unwrap();
        assert!(Run::read(&folder).unwrap_err().to_string().contains("run.json"));
    }
}
