//! Who needs a mount process, and how is it?

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millrace_api::keys::Key;
use millrace_api::mount::Pod;
use millrace_daemon::files::{ReadKey, read_key, write_atomically};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::plan::MountPlan;

/// What a mount process is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountState {
    /// It is coming up; with what was wrong last.
    Starting(Option<String>),
    /// It serves.
    Ready(Ready),
    /// Nobody needs it; it is being taken away.
    Stopping,
    /// It is gone, and so is its mount.
    Gone,
}

/// A mount process that serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// Counts its starts, from 1.
    pub generation: u64,
    /// What the dataset holds.
    pub usage: Usage,
    /// It gave no answer when it was last looked at.
    pub is_silent: bool,
}

/// Size of a dataset version, as `df` shows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of all files.
    pub bytes: u64,
    /// Files and folders.
    pub inodes: u64,
}

/// One mount process of the node and those who need it.
#[derive(Debug)]
pub struct Slot {
    /// What it shows.
    pub plan: MountPlan,
    /// How it is.
    pub state: watch::Sender<MountState>,
    /// The file that lists its pods.
    pods_file: PathBuf,
    /// The newest key, where this driver was given one.
    data_key: Mutex<Option<Key>>,
    users: Mutex<Users>,
    changed: Notify,
}

#[derive(Debug)]
struct Users {
    /// Calls that are using it now.
    leases: usize,
    /// Where it is published. Bounded by the targets that kubelet publishes.
    targets: BTreeMap<PathBuf, Option<Pod>>,
    /// Since when there are none; `None` while there are.
    unused_since: Option<Instant>,
}

impl Users {
    fn note_change(&mut self) {
        let is_unused = self.leases == 0 && self.targets.is_empty();
        self.unused_since = is_unused.then(|| self.unused_since.unwrap_or_else(Instant::now));
    }
}

/// Keeps a mount process from being stopped as not needed.
#[derive(Debug)]
pub struct Lease {
    slot: Arc<Slot>,
}

impl Slot {
    /// A mount process that is not started yet.
    pub fn new(plan: MountPlan, pods_file: PathBuf) -> Self {
        let state = watch::Sender::new(MountState::Starting(None));
        let users = Users { leases: 0, targets: BTreeMap::new(), unused_since: Some(Instant::now()) };
        Self {
            plan,
            state,
            pods_file,
            data_key: Mutex::default(),
            users: Mutex::new(users),
            changed: Notify::new(),
        }
    }

    /// Takes a newer key; a process that runs keeps the one it has.
    pub fn set_key(&self, data_key: Option<&Key>) {
        if let Some(data_key) = data_key {
            *self.data_key.lock() = Some(data_key.clone());
        }
    }

    /// The newest key: the one that was given, else that in the file of a former driver. Blocks for a small file.
    ///
    /// # Errors
    /// When there is none.
    pub fn key(&self, file: &Path) -> Result<Key, ReadKey> {
        let given = self.data_key.lock().clone();
        given.map_or_else(|| read_key(file), Ok)
    }

    /// Puts the key where the process reads it. Blocks for a small file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_key(&self, file: &Path) -> std::io::Result<()> {
        let data_key = self.data_key.lock().clone();
        data_key.map_or(Ok(()), |key| write_atomically(file, key.to_hex().as_bytes()))
    }

    /// A lease on it.
    pub fn lease(self: &Arc<Self>) -> Lease {
        let mut users = self.users.lock();
        users.leases += 1;
        users.note_change();
        self.changed.notify_one();
        Lease { slot: Arc::clone(self) }
    }

    /// Notes that it is published at a target. Blocks for a small file.
    ///
    /// # Errors
    /// When the list of pods cannot be written; it is noted all the same.
    pub fn add_target(&self, target: &Path, pod: Option<Pod>) -> std::io::Result<()> {
        let mut users = self.users.lock();
        users.targets.insert(target.to_owned(), pod);
        users.note_change();
        self.changed.notify_one();
        self.write_pods(&users)
    }

    /// Notes that it is not published at a target any more. Blocks for a small file.
    ///
    /// # Errors
    /// When the list of pods cannot be written; it is noted all the same.
    pub fn remove_target(&self, target: &Path) -> std::io::Result<()> {
        let mut users = self.users.lock();
        if users.targets.remove(target).is_none() {
            return Ok(());
        }
        users.note_change();
        self.changed.notify_one();
        self.write_pods(&users)
    }

    /// Writes the list of pods as it is now. Blocks for a small file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn refresh_pods(&self) -> std::io::Result<()> {
        self.write_pods(&self.users.lock())
    }

    fn write_pods(&self, users: &Users) -> std::io::Result<()> {
        // One pod may have it at two targets.
        let mut pods: Vec<&Pod> = users.targets.values().flatten().collect();
        pods.sort();
        pods.dedup();
        write_atomically(&self.pods_file, &serde_json::to_vec(&pods)?)
    }

    /// Whether nobody needs it.
    pub fn is_unused(&self) -> bool {
        self.users.lock().unused_since.is_some()
    }

    /// How many targets it is published at.
    pub fn targets(&self) -> usize {
        self.users.lock().targets.len()
    }

    /// Waits until nobody has needed it for so long. Cancel safe.
    pub async fn unused_for(&self, idle: Duration) {
        loop {
            let unused_since = self.users.lock().unused_since;
            let changed = self.changed.notified();
            match unused_since {
                None => changed.await,
                Some(since) if since.elapsed() >= idle => return,
                Some(since) => tokio::select! {
                    () = tokio::time::sleep_until(since + idle) => {}
                    () = changed => {}
                },
            }
        }
    }
}

impl Lease {
    /// The mount process.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Waits until it serves; answers what was wrong last where it does not in time. Cancel safe.
    ///
    /// # Errors
    /// What was wrong last.
    pub async fn ready(&self, deadline: Instant) -> Result<Ready, String> {
        let mut states = self.slot.state.subscribe();
        let is_ready = |state: &MountState| matches!(state, MountState::Ready(_));
        // The sender lives as long as the slot that is held here.
        let _ = tokio::time::timeout_at(deadline, states.wait_for(is_ready)).await;
        let state = states.borrow().clone();
        match state {
            MountState::Ready(ready) => Ok(ready),
            MountState::Starting(Some(trouble)) => Err(trouble),
            MountState::Starting(None) => {
                Err("it is still coming up, most likely it fetches a large index from the workers".to_owned())
            }
            MountState::Stopping | MountState::Gone => Err("the driver stops".to_owned()),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut users = self.slot.users.lock();
        users.leases -= 1;
        users.note_change();
        self.slot.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(folder: &Path) -> Arc<Slot> {
        Arc::new(Slot::new(MountPlan::example("u"), folder.join("pods.json")))
    }

    fn pod(name: &str) -> Pod {
        Pod { namespace: "ns".into(), name: name.into(), uid: format!("uid-{name}") }
    }

    #[test]
    fn each_pod_is_listed_once_whatever_targets_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let slot = slot(folder.path());
        for (target, name) in [("/a", "x"), ("/b", "x"), ("/c", "y")] {
            slot.add_target(Path::new(target), Some(pod(name))).unwrap();
        }
        let listed = || -> Vec<Pod> {
            serde_json::from_slice(&std::fs::read(folder.path().join("pods.json")).unwrap()).unwrap()
        };
        assert_eq!(listed(), [pod("x"), pod("y")]);
        slot.remove_target(Path::new("/c")).unwrap();
        slot.remove_target(Path::new("/a")).unwrap();
        assert_eq!(listed(), [pod("x")]);
        assert!(!slot.is_unused());
    }

    #[tokio::test]
    async fn a_mount_is_kept_for_the_next_pod_and_stopped_only_after_a_while_without() {
        let folder = tempfile::tempdir().unwrap();
        let slot = slot(folder.path());
        let lease = slot.lease();
        let idle = Duration::from_millis(100);
        let waiting = tokio::spawn({
            let slot = Arc::clone(&slot);
            async move { slot.unused_for(idle).await }
        });
        tokio::time::sleep(idle * 3).await;
        assert!(!waiting.is_finished());
        drop(lease);
        let next = slot.lease();
        tokio::time::sleep(idle * 3).await;
        assert!(!waiting.is_finished());
        let alone = Instant::now();
        drop(next);
        waiting.await.unwrap();
        assert!(alone.elapsed() >= idle);
    }
}
