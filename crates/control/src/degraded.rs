//! What do the workers of a dataset no longer get, or no longer keep? Pure.

use std::collections::BTreeSet;

use crate::proto;

/// Reasons for which a store keeps nothing that say it is broken, not full.
const BROKEN: [&str; 5] = ["no_space", "read_only", "io", "free_space", "free_inodes"];

/// Objects that can no longer be read. A large one may be named by several workers; where not all are named, it may count
/// more than once.
pub fn lost_objects<'a>(workers: impl Iterator<Item = &'a proto::WorkerStatus> + Clone) -> u64 {
    let all = || workers.clone().filter_map(|worker| worker.degraded.as_ref());
    if all().all(|degraded| degraded.objects == degraded.last.len() as u64) {
        let paths: BTreeSet<&str> =
            all().flat_map(|degraded| &degraded.last).map(|failure| failure.path.as_str()).collect();
        return paths.len() as u64;
    }
    all().map(|degraded| degraded.objects).sum()
}

/// Why objects cannot be read: expired credentials are cured elsewhere than changed objects.
pub fn kinds<'a>(workers: impl Iterator<Item = &'a proto::WorkerStatus>) -> BTreeSet<&'a str> {
    let failures = workers.filter_map(|worker| worker.degraded.as_ref());
    failures.flat_map(|degraded| &degraded.last).map(|failure| failure.reason.as_str()).collect()
}

/// The kinds in brackets, for a message; nothing where none has a name.
pub fn kinds_text(kinds: &BTreeSet<&str>) -> String {
    let named: Vec<&str> = kinds.iter().copied().filter(|kind| !kind.is_empty()).collect();
    if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) }
}

/// The names of those that cannot keep what they read.
pub fn broken_stores<'a>(workers: impl Iterator<Item = &'a proto::WorkerStatus>) -> Vec<&'a str> {
    workers.filter(|worker| is_broken(worker)).map(|worker| worker.worker.as_str()).collect()
}

fn is_broken(worker: &proto::WorkerStatus) -> bool {
    let not_kept = worker.store.iter().flat_map(|store| &store.not_kept);
    not_kept.into_iter().any(|not_kept| not_kept.count > 0 && BROKEN.contains(&not_kept.reason.as_str()))
}
