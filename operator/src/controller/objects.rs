//! Which objects must be there for a Dataset, and what is in the way of one?

use std::time::Duration;

use millrace_api::dataset::conditions::reason;
use millrace_api::dataset::spec::Dataset;
use millrace_api::names;
use serde_json::Value;
use tokio::time::Instant;

use super::apply::Outcome;
use super::backoff::{Backoff, Pace, wish};
use super::context::Context;
use super::error::ReconcileError;
use super::observe::{self, Observed};
use super::trouble::{Trouble, shortened};
use super::{diff, fault};
use crate::build::worker_volumes::claim_templates;
use crate::build::{APPLIED_ANNOTATION, Kind, Owner, Wanted, budget, service, stateful_set, volume};

/// How often an object of another's that is in the way is looked at, by name: no watch of ours tells of it. Only a read.
const LOOK: Pace = Pace { first: Duration::from_secs(2), longest: Duration::from_secs(30) };

/// How often what the API server refuses is tried again: a quota, or a policy, of which no watch of ours tells.
const TRY: Pace = Pace { first: Duration::from_secs(5), longest: Duration::from_secs(300) };

/// An object of ours that a watch has not brought yet, or that was in the way a moment ago, is looked at again after this.
const SOON: Duration = Duration::from_secs(1);

/// What an object was refused for, and when it is tried again.
#[derive(Debug, Clone)]
pub struct Refused {
    trouble: Trouble,
    by: By,
    backoff: Backoff,
}

/// What is in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// An object of somebody else's.
    Another,
    /// An object that was ours, and whose end the watch tells.
    Former,
    /// The API server.
    Refusal,
}

/// Makes all objects as wanted; what is in the way of one, in words.
///
/// # Errors
/// Where the API server does not answer.
pub async fn ensure(
    context: &Context,
    owner: &Owner,
    dataset: &Dataset,
    observed: &Observed,
    is_deleted: bool,
    wakes: &mut Vec<Duration>,
) -> Result<Option<Trouble>, ReconcileError> {
    let wish = wish(dataset);
    let mut blocked: Option<Trouble> = None;
    for wanted in &wanted(context, owner, dataset, observed).await? {
        let seen = observed.object(wanted.kind);
        let is_mounted = matches!(wanted.kind, Kind::PersistentVolume | Kind::PersistentVolumeClaim);
        if is_deleted && (seen.is_none() || is_mounted) {
            continue;
        }
        // A claim that is made before its volume waits for the next round of the volumes' controller: up to 15 s.
        if wanted.kind == Kind::PersistentVolumeClaim && seen.is_none() && !is_free(observed) {
            continue;
        }
        let trouble = ensure_one(context, owner, &wish, wanted, seen.as_ref(), wakes).await?;
        fault::point("object")?;
        blocked = blocked.or(trouble);
    }
    rebind(context, owner, observed).await?;
    Ok(blocked)
}

async fn wanted(
    context: &Context,
    owner: &Owner,
    dataset: &Dataset,
    observed: &Observed,
) -> Result<Vec<Wanted>, ReconcileError> {
    let account = dataset.spec.workers.service_account_name.as_deref();
    let identity = observe::web_identity(context, owner, account).await?;
    let former = observed.object(Kind::StatefulSet).map(|set| {
        set.pointer("/spec/volumeClaimTemplates").cloned().unwrap_or_else(|| serde_json::json!([]))
    });
    // A StatefulSet refuses other claims than it was created with.
    let claims =
        former.filter(|former| !diff::contains(former, &claim_templates(owner, &dataset.spec.workers.cache)));
    let roll = dataset.metadata.annotations.as_ref().and_then(|all| all.get(names::ROLL_ANNOTATION));
    let workers = stateful_set::stateful_set(
        owner,
        &dataset.spec,
        &context.image,
        identity.as_ref(),
        roll.map(String::as_str),
        claims,
    );
    Ok(vec![
        service::service(owner),
        workers,
        budget::budget(owner),
        volume::volume(owner),
        volume::claim(owner),
    ])
}

/// Makes one object as wanted, or says what is in its way. What is in the way is not run against at every look.
async fn ensure_one(
    context: &Context,
    owner: &Owner,
    wish: &str,
    wanted: &Wanted,
    seen: Option<&Value>,
    wakes: &mut Vec<Duration>,
) -> Result<Option<Trouble>, ReconcileError> {
    let (subject, now) = (subject(wish, wanted, seen), Instant::now());
    let former = context.memory(&owner.uid).refused.get(&wanted.kind).cloned();
    if let Some(former) = &former {
        let left = former.backoff.left(&subject, former.by.pace(), now);
        if !left.is_zero() && former.by != By::Former {
            wakes.push(left);
            return Ok(Some(former.trouble.clone()));
        }
    }
    let is_another_there = former.as_ref().is_some_and(|former| former.by != By::Refusal);
    let in_the_way = match seen {
        None if is_another_there => context.writer.in_the_way(owner, wanted).await?,
        None | Some(_) => None,
    };
    let outcome = match in_the_way {
        Some(outcome) => outcome,
        None => context.writer.ensure(owner, wanted, seen).await?,
    };
    let refused = match outcome {
        Outcome::Unchanged | Outcome::Written => None,
        Outcome::Going => {
            if seen.is_none() {
                wakes.push(SOON);
            }
            None
        }
        Outcome::NameConflict { message, is_former } => {
            let trouble = Trouble { reason: reason::NAME_CONFLICT, message };
            Some((trouble, if is_former { By::Former } else { By::Another }))
        }
        Outcome::Refused { message } => {
            Some((Trouble { reason: reason::REFUSED, message: shortened(&message) }, By::Refusal))
        }
    };
    let Some((trouble, by)) = refused else {
        if former.is_some() {
            context.remember(&owner.uid, |memory| {
                memory.refused.remove(&wanted.kind);
            });
        }
        return Ok(None);
    };
    // Another reason is another matter.
    let mut backoff =
        former.filter(|former| former.by == by).map(|former| former.backoff).unwrap_or_default();
    backoff.tried(&subject, now);
    wakes.push(backoff.left(&subject, by.pace(), now));
    let refused = Refused { trouble: trouble.clone(), by, backoff };
    context.remember(&owner.uid, |memory| {
        memory.refused.insert(wanted.kind, refused);
    });
    Ok(Some(trouble))
}

impl By {
    fn pace(self) -> Pace {
        match self {
            By::Another | By::Former => LOOK,
            By::Refusal => TRY,
        }
    }
}

/// All that a refusal of an object could depend on and that we see: what its user wants, what we ask for, what is there.
fn subject(wish: &str, wanted: &Wanted, seen: Option<&Value>) -> String {
    let text = |value: Option<&Value>| value.map(ToString::to_string).unwrap_or_default();
    let annotations = wanted.object.pointer("/metadata/annotations");
    let asked = annotations.and_then(|all| all.get(APPLIED_ANNOTATION));
    let metadata = seen.and_then(|seen| seen.get("metadata"));
    let of = |field: &str| metadata.and_then(|metadata| metadata.get(field));
    // The generation, where there is one: a status changes the version too.
    let state = of("generation").or_else(|| of("resourceVersion"));
    format!("{wish} {} {} {}", text(asked), text(of("uid")), text(state))
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
