//! How many workers may a drain take at once? One.

use millrace_api::names;
use serde_json::json;

use super::{Kind, Owner, Wanted, wanted};

/// The PodDisruptionBudget. Workers that are not ready never hold up a drain.
pub fn budget(owner: &Owner) -> Wanted {
    let body = json!({"spec": {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": owner.worker_selector()},
    }});
    wanted(owner, Kind::PodDisruptionBudget, names::workers(&owner.name), body)
}
