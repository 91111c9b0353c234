//! Why are workers' pods missing? What keeps pods from being made only events say, which are read while pods are missing.

use std::time::Duration;

use millrace_api::dataset::spec::Dataset;
use tokio::time::Instant;

use super::backoff::{Pace, wish};
use super::context::Context;
use super::error::ReconcileError;
use super::nudge;
use super::observe::{self, Observed};
use super::trouble::{self, Trouble};
use crate::build::Owner;

/// How long pods may take to be made before somebody is asked why.
const PODS_LATE: Duration = Duration::from_secs(2);

/// How often that is asked.
const ASK: Pace = Pace { first: Duration::from_secs(5), longest: Duration::from_secs(30) };

/// What keeps workers from running.
///
/// # Errors
/// Where the API server does not answer.
pub async fn trouble(
    context: &Context,
    owner: &Owner,
    dataset: &Dataset,
    observed: &Observed,
    wakes: &mut Vec<Duration>,
) -> Result<Option<Trouble>, ReconcileError> {
    if let Some(trouble) = trouble::of_pods(&observed.pods) {
        return Ok(Some(trouble));
    }
    let wanted = usize::try_from(dataset.spec.workers.replicas).unwrap_or(0);
    if observed.pods.len() >= wanted {
        context.remember(&owner.uid, |memory| memory.waiting_since = None);
        return Ok(None);
    }
    // Without a StatefulSet something else is in the way, and its creation is seen.
    let Some(set) = &observed.stateful_set else { return Ok(None) };
    let now = Instant::now();
    let mut since = now;
    context.remember(&owner.uid, |memory| since = *memory.waiting_since.get_or_insert(now));
    let left = PODS_LATE.saturating_sub(now.saturating_duration_since(since));
    if !left.is_zero() {
        wakes.push(left);
        return Ok(None);
    }
    let uid = set.metadata.uid.as_deref().unwrap_or_default();
    let generation = set.metadata.generation.unwrap_or(0);
    let subject = format!("{uid} {generation} {} {}", observed.pods.len(), wish(dataset));
    let memory = context.memory(&owner.uid);
    let mut asked = memory.asked;
    let refusal = if asked.left(&subject, ASK, now).is_zero() {
        let refusals = observe::refusals(context, owner, uid).await?;
        let refusal = refusals.into_iter().find(|refusal| refusal.reason == "FailedCreate");
        asked.tried(&subject, now);
        context.remember(&owner.uid, |memory| {
            memory.asked = asked.clone();
            memory.refusal = refusal.clone();
        });
        refusal
    } else {
        memory.refusal
    };
    wakes.push(asked.left(&subject, ASK, now));
    if refusal.is_some() {
        nudge::workers(context, owner, &subject, wakes).await?;
    }
    Ok(refusal.as_ref().map(trouble::of_refusal))
}
