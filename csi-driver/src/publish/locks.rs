//! How do calls on one target wait for each other, and those on different targets not?

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

/// One lock for each target that somebody works at. A tokio lock, since it is held while mounts come and go.
#[derive(Debug, Clone, Default)]
pub struct Locks {
    locks: Arc<Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>>,
}

/// A target that nobody else works at.
#[derive(Debug)]
pub struct Locked {
    locks: Locks,
    target: PathBuf,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Locks {
    /// Waits for a target; `None` where others work at it until the deadline. Cancel safe.
    pub async fn lock(&self, target: &Path, deadline: Instant) -> Option<Locked> {
        let lock = Arc::clone(self.locks.lock().entry(target.to_owned()).or_default());
        let guard = tokio::time::timeout_at(deadline, lock.lock_owned()).await.ok();
        // Also the one that came too late cleans up after itself.
        let locked = Locked { locks: self.clone(), target: target.to_owned(), guard };
        locked.guard.is_some().then_some(locked)
    }
}

impl Locked {
    /// The target.
    pub fn target(&self) -> &Path {
        &self.target
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.guard = None;
        let mut locks = self.locks.locks.lock();
        // Those who wait hold it too.
        if locks.get(&self.target).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            locks.remove(&self.target);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_target_is_worked_at_by_one_and_forgotten_after_the_last() {
        let locks = Locks::default();
        let (one, other) = (Path::new("/one"), Path::new("/other"));
        let later = Instant::now() + Duration::from_secs(60);
        let first = locks.lock(one, later).await.unwrap();
        assert!(locks.lock(one, Instant::now() + Duration::from_millis(20)).await.is_none());
        drop(locks.lock(other, later).await.unwrap());
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock(one, later).await.is_some() }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        assert!(waiting.await.unwrap());
        assert!(locks.locks.lock().is_empty());
    }
}
