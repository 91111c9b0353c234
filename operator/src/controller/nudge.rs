//! Which controller of Kubernetes is slow to try again, and is made to? A change of an object makes its controller look at once.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use millrace_api::names;
use tokio::time::Instant;

use super::context::Context;
use super::error::ReconcileError;
use super::observe::Observed;
use crate::build::{Kind, Owner};

/// How often a refused creation is tried at least.
const NUDGE_EVERY: Duration = Duration::from_secs(20);

/// How long a claim may wait to be bound, and how often it is tried then. The volumes' controller loses a race with itself now and
/// then, and looks again after 15 s.
const CLAIM_LATE: Duration = Duration::from_secs(1);
const CLAIM_EVERY: Duration = Duration::from_secs(3);

/// Has the StatefulSet's controller try again to make pods: by itself it does so less and less often, up to a quarter of an hour.
///
/// # Errors
/// Where the API server refuses.
pub async fn workers(context: &Context, owner: &Owner) -> Result<(), ReconcileError> {
    let mut is_due = false;
    context.remember(&owner.uid, |memory| {
        is_due = memory.nudged.is_none_or(|at| at.elapsed() >= NUDGE_EVERY);
        if is_due {
            memory.nudged = Some(Instant::now());
        }
    });
    if is_due {
        context.writer.nudge(owner, Kind::StatefulSet, &names::workers(&owner.name)).await?;
    }
    Ok(())
}

/// Has the volumes' controller look again at a claim that waits to be bound.
///
/// # Errors
/// Where the API server refuses.
pub async fn claim(
    context: &Context,
    owner: &Owner,
    observed: &Observed,
    wakes: &mut Vec<Duration>,
) -> Result<(), ReconcileError> {
    let Some(claim) = &observed.claim else { return Ok(()) };
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase == Some("Bound") || claim.metadata.deletion_timestamp.is_some() || observed.volume.is_none() {
        return Ok(());
    }
    let made = claim.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_millisecond());
    let age = u64::try_from(Timestamp::now().as_millisecond().saturating_sub(made)).unwrap_or(0);
    let left = CLAIM_LATE.saturating_sub(Duration::from_millis(age));
    if !left.is_zero() {
        wakes.push(left);
        return Ok(());
    }
    wakes.push(CLAIM_EVERY);
    let mut is_due = false;
    context.remember(&owner.uid, |memory| {
        is_due = memory.claim_nudged.is_none_or(|at| at.elapsed() >= CLAIM_EVERY);
        if is_due {
            memory.claim_nudged = Some(Instant::now());
        }
    });
    if is_due {
        context.writer.nudge(owner, Kind::PersistentVolumeClaim, names::claim(&owner.name)).await?;
    }
    Ok(())
}
