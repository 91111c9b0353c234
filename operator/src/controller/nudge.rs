//! Which controller of Kubernetes is slow to try again, and is made to? A change of an object makes its controller look at once.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use millrace_api::dataset::spec::Dataset;
use millrace_api::names;
use tokio::time::Instant;

use super::backoff::{Backoff, Pace, wish};
use super::context::{Context, Memory};
use super::error::ReconcileError;
use super::observe::Observed;
use crate::build::{Kind, Owner};

/// How often a refused creation is tried at least: until a user has raised a quota or the like, of which no watch of ours tells.
const WORKERS: Pace = Pace { first: Duration::from_secs(20), longest: Duration::from_secs(300) };

/// How long a claim may wait to be bound, and how often it is tried then. The volumes' controller loses a race with itself now and
/// then, and looks again after 15 s.
const CLAIM_LATE: Duration = Duration::from_secs(1);
const CLAIM: Pace = Pace { first: Duration::from_secs(3), longest: Duration::from_secs(300) };

/// Has the StatefulSet's controller try again to make pods: by itself it does so less and less often, up to a quarter of an hour.
/// `subject` is all that a refusal could depend on and that we see.
///
/// # Errors
/// Where the API server refuses.
pub async fn workers(
    context: &Context,
    owner: &Owner,
    subject: &str,
    wakes: &mut Vec<Duration>,
) -> Result<(), ReconcileError> {
    if is_time(context, owner, |memory| &mut memory.nudged, subject, WORKERS, wakes) {
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
    dataset: &Dataset,
    observed: &Observed,
    wakes: &mut Vec<Duration>,
) -> Result<(), ReconcileError> {
    let (Some(claim), Some(volume)) = (&observed.claim, &observed.volume) else { return Ok(()) };
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase == Some("Bound") || claim.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let made = claim.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_millisecond());
    let age = u64::try_from(Timestamp::now().as_millisecond().saturating_sub(made)).unwrap_or(0);
    let left = CLAIM_LATE.saturating_sub(Duration::from_millis(age));
    if !left.is_zero() {
        wakes.push(left);
        return Ok(());
    }
    let (claim_uid, volume_version) = (claim.uid().unwrap_or_default(), volume.resource_version());
    let subject = format!("{claim_uid} {} {}", volume_version.unwrap_or_default(), wish(dataset));
    if is_time(context, owner, |memory| &mut memory.claim_nudged, &subject, CLAIM, wakes) {
        context.writer.nudge(owner, Kind::PersistentVolumeClaim, names::claim(&owner.name)).await?;
    }
    Ok(())
}

/// Whether it is time to try, which is noted then. The next time is among the wakes.
fn is_time(
    context: &Context,
    owner: &Owner,
    tries: fn(&mut Memory) -> &mut Backoff,
    subject: &str,
    pace: Pace,
    wakes: &mut Vec<Duration>,
) -> bool {
    let (now, mut is_due) = (Instant::now(), false);
    context.remember(&owner.uid, |memory| {
        let tries = tries(memory);
        is_due = tries.left(subject, pace, now).is_zero();
        if is_due {
            tries.tried(subject, now);
        }
        wakes.push(tries.left(subject, pace, now));
    });
    is_due
}
