//! What happens in one reconcile of a Dataset? The order of the steps; each is elsewhere.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use millrace_api::dataset::conditions::reason;
use millrace_api::dataset::spec::Dataset;
use millrace_api::dataset::status::DatasetStatus;
use millrace_api::names;
use millrace_control::proto;
use tokio::time::Instant;

use super::apply::Outcome;
use super::context::Context;
use super::error::ReconcileError;
use super::mounts::{self, Mounts};
use super::observe::{self, Observed};
use super::roll::{self, Roll};
use super::trouble::{self, Trouble, shortened};
use super::{cleanup, diff, events, fault, keys, nudge, status, validate};
use crate::build::stateful_set::cache_outlives_pods;
use crate::build::{Kind, Owner, Wanted, budget, service, stateful_set, volume};
use crate::workers::seen::Seen;
use crate::workers::steer::{self, Steering, steer};

/// Numbers that move all the time are written this often.
const NUMBERS_EVERY: Duration = Duration::from_secs(10);

/// When something that no watch tells of is looked at again: an object of another's that is in the way.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// For the first answer of a worker that is there.
const FIRST_ANSWER: Duration = Duration::from_millis(1500);

/// How long pods may take to be made before somebody is asked why, and how often then.
const PODS_LATE: Duration = Duration::from_secs(2);
const ASK_WHY_EVERY: Duration = Duration::from_secs(5);

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
        blocked = ensure_objects(context, owner, dataset, &observed, is_deleted).await?;
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
        nudge::claim(context, owner, &observed, &mut wakes).await?;
    }
    let trouble = trouble(context, owner, dataset, &observed, &mut wakes).await?;
    if blocked.is_some() {
        wakes.push(LOOK_AGAIN);
    }
    let mounts = mounts::merge(known.seen.values().filter_map(|seen| seen.status.as_ref()));
    let facts = status::Facts {
        owner,
        spec: &dataset.spec,
        generation: dataset.metadata.generation,
        problems: &problems,
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

/// Makes all objects as wanted; what is in the way of one, in words.
async fn ensure_objects(
    context: &Context,
    owner: &Owner,
    dataset: &Dataset,
    observed: &Observed,
    is_deleted: bool,
) -> Result<Option<Trouble>, ReconcileError> {
    let account = dataset.spec.workers.service_account_name.as_deref();
    let identity = observe::web_identity(context, owner, account).await?;
    let former = observed.object(Kind::StatefulSet).map(|set| {
        set.pointer("/spec/volumeClaimTemplates").cloned().unwrap_or_else(|| serde_json::json!([]))
    });
    // A StatefulSet refuses other claims than it was created with.
    let claims = former.filter(|former| {
        !diff::contains(former, &stateful_set::claim_templates(owner, &dataset.spec.workers.cache))
    });
    let workers = stateful_set::stateful_set(
        owner,
        &dataset.spec,
        &context.image,
        identity.as_ref(),
        annotation(dataset, names::ROLL_ANNOTATION),
        claims,
    );
    let all: Vec<Wanted> = vec![
        service::service(owner),
        workers,
        budget::budget(owner),
        volume::volume(owner),
        volume::claim(owner),
    ];
    let mut blocked: Option<Trouble> = None;
    for wanted in &all {
        let seen = observed.object(wanted.kind);
        let is_mounted = matches!(wanted.kind, Kind::PersistentVolume | Kind::PersistentVolumeClaim);
        if is_deleted && (seen.is_none() || is_mounted) {
            continue;
        }
        // A claim that is made before its volume waits for the next round of the volumes' controller: up to 15 s.
        if wanted.kind == Kind::PersistentVolumeClaim && seen.is_none() && !is_free(observed) {
            continue;
        }
        let outcome = context.writer.ensure(owner, wanted, seen.as_ref()).await?;
        fault::point("object")?;
        let trouble = match outcome {
            Outcome::Unchanged | Outcome::Written | Outcome::Going => None,
            Outcome::NameConflict { message } => Some(Trouble { reason: reason::NAME_CONFLICT, message }),
            Outcome::Refused { message } => {
                Some(Trouble { reason: reason::REFUSED, message: shortened(&message) })
            }
        };
        blocked = blocked.or(trouble);
    }
    rebind(context, owner, observed).await?;
    Ok(blocked)
}

/// Whether the volume waits for a claim.
fn is_free(observed: &Observed) -> bool {
    let status = observed.volume.as_ref().and_then(|volume| volume.status.as_ref());
    status.and_then(|status| status.phase.as_deref()) == Some("Available")
}

/// A volume whose claim was deleted waits for that one only, until it is made to forget it.
async fn rebind(context: &Context, owner: &Owner, observed: &Observed) -> Result<(), ReconcileError> {
    let Some(bound) = &observed.volume else { return Ok(()) };
    let phase = bound.status.as_ref().and_then(|status| status.phase.as_deref());
    let former = bound.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.as_deref());
    if let (Some("Released"), Some(former)) = (phase, former) {
        context.writer.rebind(&volume::volume(owner), former).await?;
    }
    Ok(())
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

/// What keeps workers from running. What keeps pods from being made only events say, which are read while pods are missing.
async fn trouble(
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
    let mut since = Instant::now();
    context.remember(&owner.uid, |memory| since = *memory.waiting_since.get_or_insert(since));
    let uid = observed.stateful_set.as_ref().and_then(|set| set.metadata.uid.clone());
    let (Some(uid), true) = (uid, since.elapsed() >= PODS_LATE) else {
        wakes.push(PODS_LATE);
        return Ok(None);
    };
    wakes.push(ASK_WHY_EVERY);
    let refusals = observe::refusals(context, owner, &uid).await?;
    let refusal = refusals.iter().find(|refusal| refusal.reason == "FailedCreate");
    if refusal.is_some() {
        nudge::workers(context, owner).await?;
    }
    Ok(refusal.map(trouble::of_refusal))
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
