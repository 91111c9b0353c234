//! Which Datasets live? What this node keeps of others goes.

use std::collections::HashSet;
use std::time::Duration;

use kube::api::{Api, ListParams};
use millrace_api::dataset::spec::Dataset;
use tokio_util::sync::CancellationToken;

use crate::node_cache::NodeCache;

/// Datasets of one answer; more come in further ones.
const PAGE: u32 = 500;

/// Most pages: a cluster has never so many Datasets, and an API server that always has another page is ill.
const MOST_PAGES: usize = 1000;

/// Removes the caches of Datasets that are gone, now and then, until the token is cancelled.
pub async fn wipe_gone(cache: NodeCache, interval: Duration, token: CancellationToken) {
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
        let wait = interval.mul_f64(rand::random_range(0.8..1.2));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = token.cancelled() => return,
        }
    }
}

/// Why it is not known which Datasets live.
#[derive(Debug, thiserror::Error)]
enum ListDatasets {
    /// The API server cannot be asked, or has refused.
    #[error("ask the API server for all Datasets")]
    Ask {
        /// What it said, or what is wrong.
        source: kube::Error,
    },
    /// The list does not end. A part of it would make caches of the rest go.
    #[error("the API server lists more than {} Datasets", MOST_PAGES * PAGE as usize)]
    Endless,
}

/// UIDs of all Datasets of the cluster.
async fn living() -> Result<HashSet<String>, ListDatasets> {
    let ask = |source| ListDatasets::Ask { source };
    let api: Api<Dataset> = Api::all(kube::Client::try_default().await.map_err(ask)?);
    let mut living = HashSet::new();
    let mut page = ListParams::default().limit(PAGE);
    for _ in 0..MOST_PAGES {
        let list = api.list_metadata(&page).await.map_err(ask)?;
        living.extend(list.items.into_iter().filter_map(|dataset| dataset.metadata.uid));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = ListParams::default().limit(PAGE).continue_token(&token),
            None => return Ok(living),
        }
    }
    Err(ListDatasets::Endless)
}
