//! Where are the programs that we start?

use std::path::{Path, PathBuf};

use anyhow::Context;

/// The programs.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The worker.
    pub cache_worker: PathBuf,
    /// The mount.
    pub csi_driver: PathBuf,
}

impl Programs {
    /// Finds the programs beside this one, else in PATH.
    ///
    /// # Errors
    /// Names the one that is missing.
    pub fn find() -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("find the folder of this program")?;
        let beside = own.parent().map(Path::to_owned).into_iter();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> = beside.chain(std::env::split_paths(&path)).collect();
        let find = |name: &str| {
            let found = folders.iter().map(|folder| folder.join(name)).find(|program| program.is_file());
            found.with_context(|| {
                format!("program {name:?} is neither beside {own:?} nor in PATH: install it there")
            })
        };
        Ok(Self { cache_worker: find("cache-worker")?, csi_driver: find("csi-driver")? })
    }
}
