//! Which Datasets live? What this node keeps of others goes.

use std::collections::HashSet;
use std::time::Duration;

use kube::api::{Api, ListParams};
use millrace_api::dataset::spec::Dataset;
use tokio_util::sync::CancellationToken;

use crate::node_cache::NodeCache;

/// How often the API server is asked: a node's disk can wait, and a thousand nodes ask.
const INTERVAL: Duration = Duration::from_secs(600);

/// Datasets of one answer; more come in further ones.
const PAGE: u32 = 500;

/// Most pages: a cluster has never so many Datasets, and an API server that always has another page is ill.
const MOST_PAGES: usize = 1000;

/// Removes the caches of Datasets that are gone, now and then, until the token is cancelled.
pub async fn wipe_gone(cache: NodeCache, token: CancellationToken) {
    loop {
        match living().await {
            Ok(living) => {
                let cache = cache.clone();
                let wiped = tokio::task::spawn_blocking(move || cache.wipe_all_but(&living)).await;
                if let Ok(wiped @ 1..) = wiped {
                    tracing::info!(wiped, "caches of datasets that are gone were removed");
                }
            }
            // Nothing goes on a guess.
            Err(error) => tracing::warn!(
                error = millrace_daemon::causes::with_causes(&error),
                "Datasets cannot be listed; no cache is removed"
            ),
        }
        // Spread, so that the nodes of a cluster do not ask all at once.
        let wait = INTERVAL.mul_f64(rand::random_range(0.8..1.2));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = token.cancelled() => return,
        }
    }
}

/// UIDs of all Datasets of the cluster.
async fn living() -> Result<HashSet<String>, kube::Error> {
    let api: Api<Dataset> = Api::all(kube::Client::try_default().await?);
    let mut living = HashSet::new();
    let mut page = ListParams::default().limit(PAGE);
    for _ in 0..MOST_PAGES {
        let list = api.list_metadata(&page).await?;
        living.extend(list.items.into_iter().filter_map(|dataset| dataset.metadata.uid));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = ListParams::default().limit(PAGE).continue_token(&token),
            None => break,
        }
    }
    Ok(living)
}
