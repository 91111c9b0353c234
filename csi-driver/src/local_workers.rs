//! Which workers run on this node, and where are their stores?
//!
//! Each worker tells whoever holds the data key which pod it is. If kubelet has a pod of that UID here, its tiers are read
//! where they lie: without a socket in between, and without a second copy on the node's disk. Only tiers that are plain
//! folders of the pod (`emptyDir` on the disk): kubelet could not unmount a volume in which we hold files open.

use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_api::names::WORKER_STORE_FOLDER;
use millrace_api::wire::is_pod_uid;
use millrace_store::{BorrowedFolder, Store};
use millrace_transport::client::Client;
use prometheus::{IntGauge, Registry};
use tokio_util::sync::CancellationToken;

use crate::files::LOOK_EVERY;

/// Where a pod's folders of that kind are, below its own.
const VOLUMES: &str = "volumes/kubernetes.io~empty-dir";

/// Time between two looks where connections come and go.
const REST: Duration = Duration::from_millis(20);

/// Makes the gauge of stores that are read where they lie.
///
/// # Errors
/// When the name is taken.
pub fn register(registry: &Registry) -> Result<IntGauge, prometheus::Error> {
    let gauge = IntGauge::new(
        "csi_driver_local_worker_tiers",
        "Tiers of workers on this node that are read where they lie.",
    )?;
    registry.register(Box::new(gauge.clone()))?;
    Ok(gauge)
}

/// Has the store read the tiers of the workers that are here now, until the token is cancelled.
pub async fn follow(
    client: Client,
    store: Store,
    pods_dir: PathBuf,
    gauge: IntGauge,
    token: CancellationToken,
) {
    let mut known = Vec::new();
    let mut changes = client.changes();
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    while !token.is_cancelled() {
        let (uids, pods_dir) = (client.worker_pods(), pods_dir.clone());
        // A panic in it was logged: nothing is known then.
        let found = tokio::task::spawn_blocking(move || find(&pods_dir, &uids)).await.unwrap_or_default();
        if found != known {
            let count = store.borrow(&found);
            tracing::info!(tiers = count, "workers of this node are read where they lie");
            gauge.set(count as i64);
            // One that is not there yet, or cannot be opened, is tried again.
            known = if count == found.len() { found } else { Vec::new() };
        }
        tokio::select! {
            _ = ticks.tick() => {}
            // The client is ours: there are changes as long as there is it.
            _ = changes.changed() => tokio::time::sleep(REST).await,
            () = token.cancelled() => {}
        }
    }
}

/// The folders of pods here in which a store lies.
fn find(pods_dir: &Path, uids: &[String]) -> Vec<BorrowedFolder> {
    // The folder may be a link of the administrator's; below it none is followed.
    let Ok(base) = pods_dir.canonicalize() else { return Vec::new() };
    let uids = uids.iter().filter(|uid| is_pod_uid(uid));
    let mut found: Vec<BorrowedFolder> = uids
        .flat_map(|uid| {
            let volumes = Path::new(uid).join(VOLUMES);
            let entries = std::fs::read_dir(base.join(&volumes)).into_iter().flatten().flatten();
            entries.map(move |entry| volumes.join(entry.file_name()).join(WORKER_STORE_FOLDER))
        })
        .filter(|below| base.join(below).symlink_metadata().is_ok_and(|found| found.is_dir()))
        .map(|below| BorrowedFolder { base: base.clone(), below })
        .collect();
    found.sort_by(|one, other| one.below.cmp(&other.below));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_of_the_pods_named_are_found_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let volume = |uid: &str, name: &str| dir.path().join(uid).join(VOLUMES).join(name);
        std::fs::create_dir_all(volume("6e9f-0", "tier-0").join("blocks")).unwrap();
        std::fs::create_dir_all(volume("6e9f-0", "state")).unwrap();
        std::fs::create_dir_all(volume("other", "tier-0").join("blocks")).unwrap();
        let uids = ["6e9f-0", "gone", "", ".", "../6e9f-0"].map(str::to_owned);
        let found = find(dir.path(), &uids);
        let paths: Vec<PathBuf> = found.iter().map(BorrowedFolder::path).collect();
        assert_eq!(paths, [volume("6e9f-0", "tier-0").join("blocks").canonicalize().unwrap()]);
        assert!(find(&dir.path().join("none"), &uids).is_empty());
    }
}
