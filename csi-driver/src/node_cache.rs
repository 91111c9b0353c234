//! How much may each Dataset keep on this node, and what goes when its Dataset is gone?
//!
//! Below the cache folder each Dataset has a folder of its UID, which outlives its pods. Its owner says how much it may
//! hold; the node has a bound for the sum. Each folder holds a small file with what was granted, so that the sum is known
//! after a restart too. Where a newcomer lacks room, the folders of Datasets without a mount here go first, the one unused
//! for the longest time before the others; what then still lacks is not granted.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use millrace_daemon::files::write_atomically;
use parking_lot::Mutex;

/// Name of the file that says how much was granted, in a Dataset's folder. Its age says when it was last used.
pub const GRANT_FILE: &str = "granted";

/// Less than this is not worth a store: eight blocks of the default size.
const LEAST_BYTES: u64 = 64 << 20;

/// The caches of this node. Clones share them.
#[derive(Debug, Clone)]
pub struct NodeCache {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    /// 0: none.
    limit_bytes: u64,
    active: Mutex<HashMap<String, Active>>,
}

#[derive(Debug, Clone, Copy)]
struct Active {
    mounts: usize,
    quota_bytes: u64,
}

/// The part of the node's cache that a mount process may use. Its Dataset counts as in use for as long as this lives.
#[derive(Debug)]
pub struct CacheShare {
    cache: NodeCache,
    uid: String,
    quota_bytes: u64,
}

/// A Dataset's folder without a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Idle {
    uid: String,
    granted_bytes: u64,
    used_last: SystemTime,
}

impl NodeCache {
    /// The caches below `dir`; `limit_bytes` bounds their sum, 0 does not.
    pub fn new(dir: PathBuf, limit_bytes: u64) -> Self {
        Self { inner: Arc::new(Inner { dir, limit_bytes, active: Mutex::default() }) }
    }

    /// Grants a mount process of a Dataset as much of `wanted_bytes` as the node has. Blocks for the files of the caches that
    /// have to go.
    pub fn share(&self, uid: &str, wanted_bytes: u64) -> CacheShare {
        let mut active = self.inner.active.lock();
        let quota_bytes = match active.get_mut(uid) {
            // Mounts of one Dataset share a store, and so a quota.
            Some(known) => {
                known.mounts += 1;
                known.quota_bytes
            }
            None => {
                let quota_bytes = self.grant(uid, wanted_bytes, &active);
                active.insert(uid.to_owned(), Active { mounts: 1, quota_bytes });
                quota_bytes
            }
        };
        drop(active);
        self.note(uid, quota_bytes);
        CacheShare { cache: self.clone(), uid: uid.to_owned(), quota_bytes }
    }

    /// Grants a Dataset with a mount here anew, after its owner has asked for another amount or others may have left room.
    /// Its mount processes follow the file. Blocks as [`NodeCache::share`]; answers what is granted, `None` where it has no
    /// mount here.
    pub fn share_anew(&self, uid: &str, wanted_bytes: u64) -> Option<u64> {
        let mut active = self.inner.active.lock();
        let known = active.remove(uid)?;
        let quota_bytes = self.grant(uid, wanted_bytes, &active);
        active.insert(uid.to_owned(), Active { quota_bytes, ..known });
        drop(active);
        if quota_bytes != known.quota_bytes {
            self.note(uid, quota_bytes);
        }
        Some(quota_bytes)
    }

    /// The file that says what a Dataset may keep now.
    pub fn grant_file(&self, uid: &str) -> PathBuf {
        self.inner.dir.join(uid).join(GRANT_FILE)
    }

    /// Bytes granted to all Datasets with a folder here.
    pub fn granted_bytes(&self) -> u64 {
        let active = self.inner.active.lock();
        let idle = self.idle(&active).into_iter().map(|idle| idle.granted_bytes);
        active.values().map(|active| active.quota_bytes).chain(idle).fold(0, u64::saturating_add)
    }

    /// The bound for the sum, 0 where there is none.
    pub fn limit_bytes(&self) -> u64 {
        self.inner.limit_bytes
    }

    /// Removes the caches of Datasets that are gone: not in `living`, and without a mount here. Blocks; answers how many.
    pub fn wipe_all_but(&self, living: &HashSet<String>) -> usize {
        let active = self.inner.active.lock();
        let gone = self.idle(&active).into_iter().filter(|idle| !living.contains(&idle.uid));
        gone.filter(|idle| self.wipe(&idle.uid)).count()
    }

    fn grant(&self, uid: &str, wanted_bytes: u64, active: &HashMap<String, Active>) -> u64 {
        let limit = self.inner.limit_bytes;
        if limit == 0 || wanted_bytes == 0 {
            return wanted_bytes;
        }
        let used: u64 = active.values().map(|active| active.quota_bytes).fold(0, u64::saturating_add);
        let free = limit.saturating_sub(used);
        let mut idle = self.idle(active);
        idle.retain(|idle| idle.uid != uid);
        let (granted, gone) = divide(free, wanted_bytes, idle);
        for uid in &gone {
            self.wipe(uid);
        }
        if granted < wanted_bytes {
            tracing::warn!(
                uid,
                wanted_bytes,
                granted,
                limit,
                "the node's cache limit leaves a dataset less than it may keep"
            );
        }
        granted
    }

    fn wipe(&self, uid: &str) -> bool {
        let dir = self.inner.dir.join(uid);
        match std::fs::remove_dir_all(&dir) {
            Ok(()) => {
                tracing::info!(uid, "a node cache is removed");
                true
            }
            Err(error) => {
                tracing::warn!(uid, error = %error, "remove a node cache");
                false
            }
        }
    }

    fn note(&self, uid: &str, quota_bytes: u64) {
        let file = self.grant_file(uid);
        let written = std::fs::create_dir_all(self.inner.dir.join(uid))
            .and_then(|()| write_atomically(&file, quota_bytes.to_string().as_bytes()));
        if let Err(error) = written {
            tracing::warn!(uid, error = %error, "note what a node cache may hold");
        }
    }

    /// Folders of Datasets without a mount here.
    fn idle(&self, active: &HashMap<String, Active>) -> Vec<Idle> {
        let Ok(folders) = std::fs::read_dir(&self.inner.dir) else { return Vec::new() };
        let names = folders.flatten().filter_map(|folder| folder.file_name().into_string().ok());
        names
            .filter(|uid| !active.contains_key(uid))
            .filter_map(|uid| {
                self.read_grant(&uid).ok().map(|(granted_bytes, used_last)| Idle {
                    uid,
                    granted_bytes,
                    used_last,
                })
            })
            .collect()
    }

    /// A folder without the file is none of ours.
    fn read_grant(&self, uid: &str) -> io::Result<(u64, SystemTime)> {
        let path = self.grant_file(uid);
        let granted = std::fs::read_to_string(&path)?;
        let used_last = std::fs::metadata(&path)?.modified()?;
        // Whatever was granted is a number; anything else takes no room that anybody knows of.
        Ok((granted.trim().parse().unwrap_or(0), used_last))
    }
}

/// Decides how much of what is wanted is granted, and which idle caches go for it.
fn divide(free_bytes: u64, wanted_bytes: u64, mut idle: Vec<Idle>) -> (u64, Vec<String>) {
    idle.sort_by_key(|idle| idle.used_last);
    let mut kept: u64 = idle.iter().map(|idle| idle.granted_bytes).fold(0, u64::saturating_add);
    let mut gone = Vec::new();
    for Idle { uid, granted_bytes, .. } in idle {
        if free_bytes.saturating_sub(kept) >= wanted_bytes {
            break;
        }
        kept = kept.saturating_sub(granted_bytes);
        gone.push(uid);
    }
    let granted = wanted_bytes.min(free_bytes.saturating_sub(kept));
    (if granted < LEAST_BYTES.min(wanted_bytes) { 0 } else { granted }, gone)
}

impl CacheShare {
    /// Bytes that the mount process may keep; 0: none.
    pub fn quota_bytes(&self) -> u64 {
        self.quota_bytes
    }
}

impl Drop for CacheShare {
    fn drop(&mut self) {
        let mut active = self.cache.inner.active.lock();
        if let Some(known) = active.get_mut(&self.uid) {
            known.mounts -= 1;
            if known.mounts == 0 {
                active.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn idle(uid: &str, granted_bytes: u64, age: u64) -> Idle {
        Idle {
            uid: uid.into(),
            granted_bytes,
            used_last: SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - age),
        }
    }

    #[test]
    fn a_newcomer_gets_what_is_left_after_the_longest_unused_caches_went() {
        let idle = || vec![idle("young", 2 * GIB, 1), idle("old", 2 * GIB, 9)];
        assert_eq!(divide(10 * GIB, 5 * GIB, idle()), (5 * GIB, vec![]));
        assert_eq!(divide(10 * GIB, 7 * GIB, idle()), (7 * GIB, vec!["old".into()]));
        assert_eq!(divide(10 * GIB, 11 * GIB, idle()), (10 * GIB, vec!["old".into(), "young".into()]));
        assert_eq!(divide(10 << 20, GIB, vec![]), (0, vec![]), "a store of 10 MiB is not worth it");
        assert_eq!(divide(10 << 20, 1 << 20, vec![]), (1 << 20, vec![]), "unless that is all that is wanted");
    }

    #[test]
    fn the_sum_stays_below_the_limit_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let cache = NodeCache::new(dir.path().to_owned(), 10 * GIB);
        let first = cache.share("a", 6 * GIB);
        let again = cache.share("a", 9 * GIB);
        assert_eq!((first.quota_bytes(), again.quota_bytes()), (6 * GIB, 6 * GIB), "one store, one quota");
        let second = cache.share("b", 6 * GIB);
        assert_eq!(second.quota_bytes(), 4 * GIB);
        assert_eq!(cache.granted_bytes(), 10 * GIB);
        drop(first);
        drop((again, second));
        let cache = NodeCache::new(dir.path().to_owned(), 10 * GIB);
        assert_eq!(cache.granted_bytes(), 10 * GIB);
        let third = cache.share("c", 10 * GIB);
        assert_eq!((third.quota_bytes(), cache.granted_bytes()), (10 * GIB, 10 * GIB));
        assert!(!dir.path().join("a").exists() && !dir.path().join("b").exists());
    }

    #[test]
    fn a_dataset_that_is_mounted_is_granted_anew_within_what_others_leave() {
        let dir = tempfile::tempdir().unwrap();
        let cache = NodeCache::new(dir.path().to_owned(), 10 * GIB);
        assert_eq!(cache.share_anew("a", GIB), None);
        let (first, second) = (cache.share("a", 8 * GIB), cache.share("b", 4 * GIB));
        assert_eq!((first.quota_bytes(), second.quota_bytes()), (8 * GIB, 2 * GIB));
        assert_eq!(cache.share_anew("a", 3 * GIB), Some(3 * GIB));
        assert_eq!(cache.share_anew("b", 4 * GIB), Some(4 * GIB), "what the first has left");
        assert_eq!(cache.share_anew("a", 20 * GIB), Some(6 * GIB));
        assert_eq!(std::fs::read_to_string(cache.grant_file("a")).unwrap(), (6 * GIB).to_string());
        assert_eq!(cache.granted_bytes(), 10 * GIB);
        assert_eq!(cache.share("a", GIB).quota_bytes(), 6 * GIB, "one store, one quota");
        drop(first);
        assert_eq!(cache.share_anew("a", GIB), None);
    }

    #[test]
    fn only_caches_of_datasets_that_are_gone_and_not_mounted_are_wiped() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("lost+found")).unwrap();
        let cache = NodeCache::new(dir.path().to_owned(), 0);
        let mounted = cache.share("mounted", GIB);
        drop((cache.share("living", GIB), cache.share("gone", GIB)));
        assert_eq!(cache.wipe_all_but(&HashSet::from(["living".to_owned()])), 1);
        let left = |name: &str| dir.path().join(name).exists();
        assert!(left("mounted") && left("living") && left("lost+found") && !left("gone"));
        drop(mounted);
    }
}
