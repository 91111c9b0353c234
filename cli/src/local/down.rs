//! How is a Dataset stopped, or forgotten, whatever state its processes are in?

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::Signal;

use super::clean::clean;
use super::folder::{self, Folder, Root};
use super::lock::{self, TakeLock};
use super::{identity, select};
use crate::args::NameArgs;
use crate::exit;

/// For a supervisor to stop: it gives its children 12 s.
const SUPERVISOR_GRACE: Duration = Duration::from_secs(20);

/// Stops a Dataset: through its supervisor, or in its place where that is dead. A Dataset that is down stays down.
///
/// # Errors
/// Where something cannot be stopped.
pub async fn down(root: &Root, args: &NameArgs) -> anyhow::Result<()> {
    if args.name.is_none() && root.folders()?.is_empty() {
        return exit::print("nothing is up\n");
    }
    let folder = select::one(root, args.name.as_ref())?;
    let stopped = tokio::task::spawn_blocking(move || stop(&folder)).await.context("stop")??;
    exit::print(&stopped)
}

fn stop(folder: &Folder) -> anyhow::Result<String> {
    let mut text = String::new();
    let supervisor = lock::holder(&folder.lock_file());
    if let Some(process) = supervisor.and_then(|holder| holder.open()) {
        process.signal(Signal::TERM);
        if !process.wait(Instant::now() + SUPERVISOR_GRACE) {
            process.signal(Signal::KILL);
            process.wait(Instant::now() + Duration::from_secs(2));
        }
    }
    let path = folder.lock_file();
    let lock = match lock::take(&path) {
        Ok(lock) => lock,
        Err(error @ TakeLock::Held { .. }) => bail!("stop dataset {}: {error}", folder.name),
        Err(error) => return Err(error.into()),
    };
    let found = clean(folder)?;
    lock.release(&path);
    for found in &found {
        text.push_str(&format!("left by a crash, ended: {found}\n"));
    }
    let was_up = supervisor.is_some() || !found.is_empty();
    text.push_str(&format!("{} {}\n", folder.name, if was_up { "is down" } else { "was not up" }));
    Ok(text)
}

/// Forgets a Dataset that is down: its identity, keys, tiers, node store, logs. The bucket is not touched.
///
/// # Errors
/// Where it is up.
pub async fn forget(root: &Root, args: &NameArgs) -> anyhow::Result<()> {
    let folder = select::one(root, args.name.as_ref())?;
    let name = folder.name.clone();
    tokio::task::spawn_blocking(move || remove(&folder)).await.context("forget")??;
    exit::print(&format!("{name} is forgotten\n"))
}

fn remove(folder: &Folder) -> anyhow::Result<()> {
    let lock = lock::take(&folder.lock_file()).with_context(|| format!("forget dataset {}", folder.name))?;
    clean(folder)?;
    let uid = identity::uid(folder);
    // Nothing of ours is named otherwise, and a damaged file may hold anything.
    if uuid::Uuid::parse_str(&uid).is_ok() {
        folder::remove(&folder::memory_dir(&uid))?;
    }
    folder::remove(folder.path())?;
    drop(lock);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::identity::Identity;

    #[test]
    fn stopping_twice_is_as_good_as_once_and_forgetting_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::find(Some(dir.path())).unwrap();
        let folder = root.folder(&"a/b".parse().unwrap());
        folder.make().unwrap();
        let uid = Identity::ensure(&folder).unwrap().uid;
        let memory = folder::memory_dir(&uid);
        std::fs::create_dir_all(memory.join("b-0/tier-0")).unwrap();
        assert_eq!(stop(&folder).unwrap(), "a/b was not up\n");
        assert_eq!(stop(&folder).unwrap(), "a/b was not up\n");
        let held = lock::take(&folder.lock_file()).unwrap();
        assert!(format!("{:#}", remove(&folder).unwrap_err()).contains("is up already"));
        drop(held);
        remove(&folder).unwrap();
        assert!(!memory.exists() && !folder.path().exists());
        assert!(root.folders().unwrap().is_empty());
    }
}
