//! What happens in one reconcile of a Dataset? The order of the steps; each is elsewhere.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use millrace_api::dataset::spec::Dataset;
use millrace_api::dataset::status::DatasetStatus;
use millrace_api::names;
use millrace_control::proto;
use tokio::time::Instant;

use super::context::Context;
use super::error::ReconcileError;
use super::mounts::{self, Mounts};
use super::observe::Observed;
use super::roll::{self, Roll};
use super::{cleanup, events, fault, keys, missing_pods, nudge, objects, status, validate};
use crate::build::Owner;
use crate::build::worker_volumes::cache_outlives_pods;
use crate::workers::membership::GRACE;
use crate::workers::seen::Seen;
use crate::workers::steer::{self, Steering, steer};

/// Numbers that move all the time are written this often.
const NUMBERS_EVERY: Duration = Duration::from_secs(10);

/// For the first answer of a worker that is there: as long as a silent one stays in the membership.
const FIRST_ANSWER: Duration = GRACE;

/// What was done for a Dataset, and what is so.
#[derive(Debug)]
pub struct Served {
    /// To be told.
    pub status: DatasetStatus,
    /// The mounts.
    pub mounts: Mounts,
    /// When to look again.
    pub wake: Option<Duration>,
    /// Whether every worker has answered, or had the time to.
    is_known: bool,
    /// Whether the status takes up a listing.
    is_listing_taken: bool,
}

impl Served {
    /// Forgets a listing whose version the status has.
    pub fn take_listing(&self, context: &Context, owner: &Owner) {
        if self.is_listing_taken {
            context.fleets.taken(owner);
        }
    }
}

/// Brings a Dataset a step nearer to what its user wants.
///
/// # Errors
/// What stopped it; the next one starts from what is there.
pub async fn reconcile(dataset: Arc<Dataset>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let owner = Owner::of(&dataset).ok_or(ReconcileError::Nameless)?;
    context.writer.may_write()?;
    let told = context.memory(&owner.uid).told.or_else(|| dataset.status.clone()).unwrap_or_default();
    if dataset.metadata.deletion_timestamp.is_some() {
        return cleanup::clean(&context, &owner, &dataset, &told).await;
    }
    if !dataset.finalizers().iter().any(|finalizer| finalizer == names::FINALIZER) {
        let mut finalizers = dataset.finalizers().to_vec();
        finalizers.push(names::FINALIZER.to_owned());
        context.writer.set_finalizers(&owner, &dataset, &finalizers).await?;
    }
    fault::point("finalizer")?;
    let served = serve(&context, &owner, &dataset, &told, false).await?;
    // After a start of ours, what is so is not known before the workers have answered: what was told stays.
    let wake = if served.is_known {
        let wake = publish(&context, &owner, &dataset, &told, served.status.clone()).await?;
        served.take_listing(&context, &owner);
        wake
    } else {
        Some(FIRST_ANSWER)
    };
    fault::point("status")?;
    Ok(match served.wake.into_iter().chain(wake).min() {
        Some(wake) => Action::requeue(wake),
        None => Action::await_change(),
    })
}

/// Makes and steers all that a Dataset needs, and says what is so. Of one that is deleted, what serves its readers.
///
/// # Errors
/// What stopped it.
pub async fn serve(
    context: &Context,
    owner: &Owner,
    dataset: &Dataset,
    told: &DatasetStatus,
    is_deleted: bool,
) -> Result<Served, ReconcileError> {
    let mut wakes = Vec::new();
    let mut problems = validate::problems(dataset);
    let is_valid = problems.is_empty();
    let warm_request = validate::warm_request(dataset).unwrap_or_else(|problem| {
        problems.push(problem);
        None
    });
    let observed = Observed::of(&context.stores, owner);
    let mut blocked = None;
    if is_valid && !is_deleted {
        keys::ensure(context, owner, &observed, &mut wakes).await?;
        fault::point("secrets")?;
    }
    if is_valid {
        blocked = objects::ensure(context, owner, dataset, &observed, is_deleted, &mut wakes).await?;
        fault::point("objects")?;
    }
    let pods = observed.worker_pods();
    let version = told.version.as_ref().map(|version| version.id.as_str());
    let known = context.fleets.sync(owner, &context.master, &pods, version);
    if is_valid && !is_deleted {
        keys::replace(context, owner, &known, &mut wakes).await?;
    }
    let refresh = annotation(dataset, names::REFRESH_ANNOTATION);
    let completed =
        known.completed.clone().or_else(|| told.warm_up.as_ref().and_then(|now| now.completed_id.clone()));
    let now = Time(Timestamp::now());
    let told_epoch = told.workers.as_ref().and_then(|workers| u64::try_from(workers.epoch).ok()).unwrap_or(0);
    let epochs = known.seen.values().map(|seen| seen.told.epoch);
    let steering = steer(&steer::Facts {
        spec: &dataset.spec,
        generation: dataset.metadata.generation.unwrap_or(0),
        version: told.version.as_ref(),
        refresh,
        warm_request: warm_request.as_ref(),
        completed: completed.as_deref(),
        pods: &pods,
        seen: &known.seen,
        membership: Some(&known.orders.membership).filter(|membership| membership.epoch > 0),
        epoch: epochs.max().unwrap_or(0).max(told_epoch),
        shown: known.orders.version.as_ref(),
        listing: &known.listing,
        without_index: known.without_index,
        instant: Instant::now(),
        now: &now,
    });
    wakes.extend(steering.wake);
    if is_valid {
        order(context, owner, dataset, &steering);
    }
    fault::point("ordered")?;
    let members: BTreeSet<String> =
        steering.orders.membership.workers.iter().map(|worker| worker.name.clone()).collect();
    let version = steering.version.as_ref();
    let serves = |name: &str| {
        members.contains(name)
            && known
                .seen
                .get(name)
                .is_some_and(|seen| version.is_some_and(|version| seen.has_index(&version.id)))
    };
    let roll = if is_valid && !is_deleted {
        roll(context, owner, dataset, &observed, serves).await?
    } else {
        Roll::None
    };
    fault::point("rolled")?;
    if !is_deleted {
        nudge::claim(context, owner, dataset, &observed, &mut wakes).await?;
    }
    let trouble = missing_pods::trouble(context, owner, dataset, &observed, &mut wakes).await?;
    let mounts = mounts::merge(known.seen.values().filter_map(|seen| seen.status.as_ref()));
    let facts = status::Facts {
        owner,
        spec: &dataset.spec,
        generation: dataset.metadata.generation,
        problems: &problems,
        is_valid,
        blocked: blocked.as_ref(),
        trouble: trouble.as_ref(),
        version,
        is_current: version.is_some_and(|version| steer::is_current(version, &dataset.spec, refresh)),
        listing: &known.listing,
        replicas: observed.pods.len(),
        seen: &known.seen,
        members: &members,
        epoch: steering.orders.membership.epoch.max(told_epoch),
        is_bound: is_bound(&observed),
        roll: &roll,
        mounts: &mounts,
        request: warm_request.as_ref().map(|request| request.id.as_str()),
        completed: steering.completed.as_deref(),
    };
    let status = status::of(&facts, told, &now);
    let is_first_try = |seen: &Seen| {
        seen.status.is_none()
            && !seen.was_connected
            && seen.trouble.is_none()
            && seen.since.elapsed() < FIRST_ANSWER
    };
    let is_known = !known.seen.values().any(is_first_try);
    let is_listing_taken = steering.is_listing_taken;
    Ok(Served { status, mounts, wake: wakes.into_iter().min(), is_known, is_listing_taken })
}

fn annotation<'a>(dataset: &'a Dataset, key: &str) -> Option<&'a str> {
    dataset.annotations().get(key).map(String::as_str)
}

fn is_bound(observed: &Observed) -> bool {
    observed.claim.as_ref().is_some_and(|claim| {
        claim.metadata.deletion_timestamp.is_none()
            && claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
    })
}

fn order(context: &Context, owner: &Owner, dataset: &Dataset, steering: &Steering) {
    context.fleets.order(owner, steering.orders.clone(), steering.completed.clone());
    if let Some((worker, subject)) = &steering.list {
        let request = proto::MakeIndexRequest {
            sources: millrace_control::dataset::sources(&dataset.spec),
            block_size_bytes: dataset.spec.workers.cache.block_size().bytes(),
        };
        context.fleets.list(owner, worker, subject.clone(), request);
    }
}

async fn roll(
    context: &Context,
    owner: &Owner,
    dataset: &Dataset,
    observed: &Observed,
    serves: impl Fn(&str) -> bool,
) -> Result<Roll, ReconcileError> {
    let outlives = cache_outlives_pods(&dataset.spec.workers.cache);
    let word = annotation(dataset, names::ROLL_ANNOTATION);
    let roll = roll::roll(observed.stateful_set.as_deref(), &observed.pods, outlives, word, serves);
    if let Roll::Delete { name, uid, old } = &roll {
        tracing::info!(
            dataset = owner.name,
            namespace = owner.namespace,
            worker = name,
            old,
            "worker is made anew"
        );
        context.writer.delete_pod(owner, name, uid).await?;
    }
    Ok(roll)
}

/// Writes the status where it says something new, and events for what has changed. When to look again, where numbers wait.
///
/// # Errors
/// Where it cannot be written.
pub async fn publish(
    context: &Context,
    owner: &Owner,
    dataset: &Dataset,
    told: &DatasetStatus,
    status: DatasetStatus,
) -> Result<Option<Duration>, ReconcileError> {
    if status == *told {
        return Ok(None);
    }
    let written = context.memory(&owner.uid).status_written;
    let left = written.map_or(Duration::ZERO, |at| NUMBERS_EVERY.saturating_sub(at.elapsed()));
    if !status::matters(told, &status) && !left.is_zero() {
        return Ok(Some(left));
    }
    let value = serde_json::to_value(&status).expect("a status is maps, lists and texts");
    context.writer.set_status(owner, &value).await?;
    fault::point("told")?;
    let transitions = events::transitions(&told.conditions, &status.conditions);
    context.remember(&owner.uid, |memory| {
        memory.status_written = Some(Instant::now());
        memory.told = Some(status);
    });
    events::publish(&context.recorder, dataset, transitions).await;
    Ok(None)
}
