//! Who serves the dataset, and which blocks are ours?

use std::sync::Arc;

use millrace_api::placement::{Membership, PlacementKey};
use millrace_store::Class;
use tokio::sync::watch;

/// The membership in use, as this worker sees it.
#[derive(Debug)]
pub struct Members {
    name: String,
    current: watch::Sender<Arc<Membership>>,
}

impl Members {
    /// A worker called `name` in `membership` (the default one where none is known yet).
    pub fn new(name: String, membership: Membership) -> Self {
        Self { name, current: watch::Sender::new(Arc::new(membership)) }
    }

    /// This worker's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The membership in use.
    pub fn current(&self) -> Arc<Membership> {
        Arc::clone(&self.current.borrow())
    }

    /// The membership in use without this worker: whom it may ask.
    pub fn others(&self) -> Membership {
        let current = self.current();
        let others = current.workers.iter().filter(|worker| worker.name != self.name);
        Membership { epoch: current.epoch, workers: others.cloned().collect() }
    }

    /// Follows the membership.
    pub fn watch(&self) -> watch::Receiver<Arc<Membership>> {
        self.current.subscribe()
    }

    /// Takes a newer membership; false where the one in use is as new.
    pub fn set(&self, membership: Membership) -> bool {
        self.current.send_if_modified(|current| {
            let is_newer = membership.epoch > current.epoch;
            if is_newer {
                *current = Arc::new(membership);
            }
            is_newer
        })
    }

    /// Whether a block is this worker's share. Before any membership is known all are: somebody asks, so serve.
    pub fn owns(&self, key: PlacementKey) -> bool {
        self.owned_in(&self.current(), key)
    }

    /// Whether a block is this worker's share in `membership`.
    pub fn owned_in(&self, membership: &Membership, key: PlacementKey) -> bool {
        match membership.owner(key) {
            None => true,
            Some(owner) => membership.workers.get(owner).is_some_and(|worker| worker.name == self.name),
        }
    }

    /// How the store should keep a block's chunks.
    pub fn class(&self, key: PlacementKey) -> Class {
        if self.owns(key) { Class::Owned } else { Class::ReadThrough }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_api::placement::Worker;

    fn membership(epoch: u64, names: &[&str]) -> Membership {
        let worker = |name: &&str| Worker { name: (*name).into(), address: "127.0.0.1:1".into(), weight: 1 };
        Membership { epoch, workers: names.iter().map(worker).collect() }
    }

    #[test]
    fn an_older_membership_changes_nothing() {
        let members = Members::new("a".into(), Membership::default());
        assert!(members.owns(PlacementKey(7)));
        assert!(members.set(membership(2, &["b"])));
        assert!(!members.owns(PlacementKey(7)));
        assert!(!members.set(membership(2, &["a"])) && !members.set(membership(1, &["a"])));
        assert_eq!(members.class(PlacementKey(7)), Class::ReadThrough);
    }
}
