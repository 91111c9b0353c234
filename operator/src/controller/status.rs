//! What is a user told about a Dataset? Pure: numbers and conditions from what was seen and done.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use millrace_api::dataset::conditions::{self, Holds, Verdict, reason};
use millrace_api::dataset::spec::{DatasetSpec, WarmUpWhen};
use millrace_api::dataset::status::{
    CachedStatus, DatasetStatus, MountsStatus, VersionStatus, WarmUpFailure, WarmUpStatus, WorkersStatus,
};
use millrace_api::names;
use millrace_control::warm_up::{self, Phase, WarmUp};
use millrace_control::{degraded, proto};

use super::mounts::Mounts;
use super::roll::Roll;
use super::trouble::{Trouble, shortened};
use crate::build::Owner;
use crate::workers::listing::Listing;
use crate::workers::seen::{self, Seen};

/// What was seen and done.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Whose.
    pub owner: &'a Owner,
    /// What the user wants.
    pub spec: &'a DatasetSpec,
    /// Generation of that.
    pub generation: Option<i64>,
    /// What is wrong with it.
    pub problems: &'a [String],
    /// Objects that cannot be made: why.
    pub blocked: Option<&'a Trouble>,
    /// What keeps workers from running.
    pub trouble: Option<&'a Trouble>,
    /// The version in use.
    pub version: Option<&'a VersionStatus>,
    /// Whether that is of what is wanted now.
    pub is_current: bool,
    /// How far the listing is.
    pub listing: &'a Listing,
    /// Workers' pods that exist.
    pub replicas: usize,
    /// The workers, by name.
    pub seen: &'a BTreeMap<String, Seen>,
    /// Names of the members.
    pub members: &'a BTreeSet<String>,
    /// The epoch of the membership.
    pub epoch: u64,
    /// Whether the claim is bound to the volume.
    pub is_bound: bool,
    /// Pods that are made from an older template.
    pub roll: &'a Roll,
    /// Who has it mounted.
    pub mounts: &'a Mounts,
    /// Id of the warm-up on request.
    pub request: Option<&'a str>,
    /// Id of the last one that is through.
    pub completed: Option<&'a str>,
}

/// The status, with the times of transition of the one told before.
pub fn of(facts: &Facts<'_>, told: &DatasetStatus, now: &Time) -> DatasetStatus {
    let warm_up = facts.version.map(|version| merged(facts, &version.id));
    let mut conditions = told.conditions.clone();
    conditions.retain(|condition| condition.type_ != conditions::TERMINATING);
    for verdict in
        [accepted(facts), indexed(facts), ready(facts), warm(facts, warm_up.as_ref()), degraded(facts)]
    {
        conditions::set(&mut conditions, verdict, facts.generation, now);
    }
    DatasetStatus {
        observed_generation: facts.generation,
        conditions,
        version: facts.version.cloned(),
        workers: Some(WorkersStatus {
            desired: facts.spec.workers.replicas,
            replicas: small(facts.replicas),
            ready: small(serving(facts)),
            selector: names::workers_selector(&facts.owner.uid),
            epoch: signed(facts.epoch),
        }),
        cached: facts.version.map(|version| cached(facts, version, told)),
        warm_up: warm_up.and_then(|warm_up| warm_up_status(facts, warm_up, told)),
        mounts: Some(mounts(facts, told)),
    }
}

fn small(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn talking<'a>(facts: &'a Facts<'_>) -> impl Iterator<Item = &'a proto::WorkerStatus> + Clone {
    facts.seen.values().filter_map(|seen| seen.status.as_ref())
}

/// Members that talk and have the index.
fn serving(facts: &Facts<'_>) -> usize {
    let Some(version) = facts.version else { return 0 };
    let serves = |(name, seen): &(&String, &Seen)| {
        seen.status.is_some() && facts.members.contains(*name) && seen.has_index(&version.id)
    };
    facts.seen.iter().filter(serves).count()
}

/// Whoever does not talk for a moment has not lost what he holds: the numbers wait for him.
fn all_talk(facts: &Facts<'_>) -> bool {
    !facts.seen.is_empty() && facts.seen.values().all(|seen| seen.status.is_some())
}

fn mounts(facts: &Facts<'_>, told: &DatasetStatus) -> MountsStatus {
    match &told.mounts {
        Some(told) if !all_talk(facts) && facts.mounts.is_empty() => told.clone(),
        _ => facts.mounts.status(),
    }
}

fn cached(facts: &Facts<'_>, version: &VersionStatus, told: &DatasetStatus) -> CachedStatus {
    if !all_talk(facts)
        && let Some(told) = &told.cached
    {
        return told.clone();
    }
    let of_version = talking(facts).flat_map(|worker| &worker.versions);
    let cached = of_version.filter(|status| status.version == version.id).filter_map(|status| status.cached);
    let (bytes, objects) =
        cached.fold((0, 0), |(bytes, objects), cached| (bytes + cached.bytes, objects + cached.objects));
    CachedStatus {
        bytes: signed(bytes),
        percent: CachedStatus::percent_of(bytes, u64::try_from(version.bytes).unwrap_or(0)),
        objects: signed(objects),
    }
}

fn merged(facts: &Facts<'_>, version: &str) -> WarmUp {
    let members = facts.seen.iter().filter(|(name, _)| facts.members.contains(*name));
    warm_up::merge(members.map(|(_, seen)| seen.status.as_ref()), version)
}

fn warm_up_status(facts: &Facts<'_>, warm_up: WarmUp, told: &DatasetStatus) -> Option<WarmUpStatus> {
    let failure = |failure: proto::ObjectFailure| WarmUpFailure {
        key: failure.path,
        reason: shortened(&if failure.message.is_empty() {
            failure.reason
        } else {
            format!("{}: {}", failure.reason, failure.message)
        }),
    };
    let unknown: BTreeSet<&String> = facts.seen.values().flat_map(|seen| &seen.unknown_paths).collect();
    let unknown = unknown.into_iter().map(|path| WarmUpFailure {
        key: path.clone(),
        reason: "NoSuchPath: the dataset has no such file or folder".to_owned(),
    });
    let mut failures: Vec<WarmUpFailure> = unknown.collect();
    failures.extend(warm_up.failures.into_iter().map(failure));
    failures.truncate(millrace_api::dataset::status::MAX_FAILURES);
    if warm_up.phase == Phase::Idle && facts.request.is_none() && failures.is_empty() {
        return None;
    }
    if !all_talk(facts)
        && let Some(told) = &told.warm_up
    {
        return Some(told.clone());
    }
    Some(WarmUpStatus {
        id: facts.request.map(str::to_owned),
        completed_id: facts.completed.map(str::to_owned),
        bytes_done: signed(warm_up.bytes_done),
        bytes_total: signed(warm_up.bytes_total),
        objects_failed: signed(warm_up.failed),
        failures,
    })
}

fn verdict(
    kind: &'static str,
    holds: impl Into<Holds>,
    reason: &'static str,
    message: impl Into<String>,
) -> Verdict {
    Verdict { kind, holds: holds.into(), reason, message: message.into() }
}

fn accepted(facts: &Facts<'_>) -> Verdict {
    if facts.problems.is_empty() {
        return verdict(conditions::ACCEPTED, true, reason::VALID, "");
    }
    verdict(conditions::ACCEPTED, false, reason::INVALID, facts.problems.join("; "))
}

/// A failure of the bucket as a user can act upon it: his field, what S3 says, and the Secret to look at.
fn origin_words(facts: &Facts<'_>, why: &str, message: &str, source: &str) -> String {
    let sources = &facts.spec.sources;
    let wanted = source.trim_matches('/');
    let at = sources.iter().position(|source| source.path.trim_matches('/') == wanted);
    let Some((at, source)) = at.and_then(|at| Some((at, sources.get(at)?))) else {
        return shortened(&format!("{message} ({why})"));
    };
    let mut words = shortened(&format!("spec.sources[{at}], bucket {}: {message} ({why})", source.s3.bucket));
    let is_about_keys = [
        "AccessDenied",
        "Credentials",
        "Signature",
        "AccessKey",
        "Token",
        "Forbidden",
        "Unauthorized",
        "Expired",
    ]
    .iter()
    .any(|word| why.contains(word));
    if let Some(secret) = source.s3.credentials.secret_ref.as_ref().filter(|_| is_about_keys) {
        words.push_str(&format!("; check secret {}/{}", facts.owner.namespace, secret.name));
    } else if let Some(account) = facts.spec.workers.service_account_name.as_ref().filter(|_| is_about_keys) {
        words.push_str(&format!("; check service account {}/{account}", facts.owner.namespace));
    }
    words
}

fn listing_failure(facts: &Facts<'_>) -> Option<String> {
    match facts.listing {
        // It is true until another try says otherwise.
        Listing::Failed { failure, .. } | Listing::Running { former: Some(failure), .. } => {
            Some(origin_words(facts, &failure.reason, &failure.message, &failure.source))
        }
        Listing::Idle | Listing::Running { former: None, .. } | Listing::Made { .. } => None,
    }
}

fn indexed(facts: &Facts<'_>) -> Verdict {
    if let Some(version) = facts.version {
        let left_out = match version.left_out {
            0 => String::new(),
            count => format!(", {count} keys left out"),
        };
        return verdict(
            conditions::INDEXED,
            true,
            reason::LISTED,
            format!("{} objects{left_out}", version.objects),
        );
    }
    if let Some(words) = listing_failure(facts) {
        return verdict(conditions::INDEXED, false, reason::LISTING_FAILED, words);
    }
    let trouble = talking(facts).find_map(|worker| worker.origin_trouble.as_ref());
    match facts.listing {
        Listing::Running { .. } if trouble.is_some() => {
            let words = trouble
                .map(|trouble| origin_words(facts, &trouble.reason, &trouble.message, &trouble.source));
            verdict(conditions::INDEXED, false, reason::LISTING, words.unwrap_or_default())
        }
        Listing::Running { worker, .. } => {
            verdict(conditions::INDEXED, false, reason::LISTING, format!("worker {worker} lists the buckets"))
        }
        _ => verdict(
            conditions::INDEXED,
            false,
            reason::WAITING_FOR_WORKERS,
            "no worker can list the buckets yet",
        ),
    }
}

fn ready(facts: &Facts<'_>) -> Verdict {
    let say = |holds: bool, reason, message: String| verdict(conditions::READY, holds, reason, message);
    let wanted = facts.spec.workers.replicas;
    let serving = serving(facts);
    if let Some(blocked) = facts.blocked {
        return say(false, blocked.reason, blocked.message.clone());
    }
    if serving > 0 && facts.is_bound {
        return say(true, reason::SERVING, format!("{serving} of {wanted} workers serve"));
    }
    if serving > 0 {
        return say(false, reason::WAITING_FOR_VOLUME, "the claim is not bound to its volume yet".to_owned());
    }
    if wanted == 0 && facts.replicas == 0 {
        return say(false, reason::NO_WORKERS, "spec.workers.replicas is 0: scale to 1 or more".to_owned());
    }
    if let Some(trouble) = facts.trouble {
        return say(false, trouble.reason, trouble.message.clone());
    }
    let refused = facts.seen.values().find_map(|seen| match &seen.trouble {
        Some(seen::Trouble::KeyRefused(why)) => Some((&seen.name, why)),
        Some(seen::Trouble::Unreachable(_)) | None => None,
    });
    if let Some((worker, why)) = refused {
        let secret = format!("{}/{}", facts.owner.namespace, names::control_secret(&facts.owner.name));
        let cure = format!("delete secret {secret} and the pod, both are made anew");
        return say(false, reason::KEY_REFUSED, format!("worker {worker}: {why}: {cure}"));
    }
    let talking = talking(facts).count();
    if talking == 0 {
        return say(false, reason::WAITING_FOR_WORKERS, format!("0 of {wanted} workers run"));
    }
    if facts.version.is_none() {
        let why = listing_failure(facts).unwrap_or_else(|| "there is no version yet".to_owned());
        return say(false, reason::WAITING_FOR_INDEX, why);
    }
    let complaint = facts.seen.values().find_map(|seen| seen.complaint.clone());
    let why = listing_failure(facts).or(complaint).map(|why| format!(": {why}")).unwrap_or_default();
    say(false, reason::WAITING_FOR_INDEX, format!("0 of {wanted} workers have the index{why}"))
}

fn warm(facts: &Facts<'_>, warm_up: Option<&WarmUp>) -> Verdict {
    let say = |holds: Holds, reason, message: String| verdict(conditions::WARM, holds, reason, message);
    let Some(warm_up) = warm_up else {
        return say(Holds::False, reason::WAITING_FOR_INDEX, "there is no version yet".into());
    };
    if talking(facts).next().is_none() {
        return say(Holds::Unknown, reason::WAITING_FOR_WORKERS, "no worker says what it holds".into());
    }
    let WarmUp { phase, bytes_done: _, bytes_total, failed, failures: _ } = warm_up;
    match phase {
        Phase::Idle | Phase::Stopped if facts.spec.warm_up.when == WarmUpWhen::Never => {
            say(Holds::False, reason::NOT_ASKED_FOR, "spec.warmUp.when is Never".into())
        }
        // No number that moves: a condition says what is so, and the status has the numbers.
        Phase::Idle | Phase::Running | Phase::Stopped => {
            say(Holds::False, reason::WARMING, format!("{bytes_total} bytes are to be loaded"))
        }
        Phase::Full => {
            say(Holds::False, reason::CACHE_TOO_SMALL, "the caches are full: raise quotas or replicas".into())
        }
        Phase::Done if *failed > 0 => {
            say(Holds::False, reason::OBJECTS_FAILED, format!("{failed} objects could not be loaded"))
        }
        Phase::Done => say(Holds::True, reason::WARMED, format!("{bytes_total} bytes")),
    }
}

fn degraded(facts: &Facts<'_>) -> Verdict {
    let say = |holds: bool, reason, message: String| verdict(conditions::DEGRADED, holds, reason, message);
    if let Some(trouble) = talking(facts).find_map(|worker| worker.origin_trouble.as_ref()) {
        let words = origin_words(facts, &trouble.reason, &trouble.message, &trouble.source);
        return say(true, reason::ORIGIN_UNAVAILABLE, words);
    }
    let lost = degraded::lost_objects(talking(facts));
    if lost > 0 {
        let kinds = degraded::kinds(talking(facts));
        let why = degraded::kinds_text(&kinds);
        let reason = conditions::of_lost_objects(kinds);
        let cure = match reason {
            reason::OBJECTS_CHANGED => format!("list again by annotation {}", names::REFRESH_ANNOTATION),
            _ => "permit or restore them in the bucket".to_owned(),
        };
        let text = format!("{lost} objects cannot be read from the bucket as listed{why}; {cure}");
        return say(true, reason, text);
    }
    let broken = degraded::broken_stores(talking(facts));
    if !broken.is_empty() {
        return say(
            true,
            reason::STORE_FAILED,
            format!("workers {} cannot write their tiers", broken.join(", ")),
        );
    }
    if facts.version.is_some()
        && !facts.is_current
        && let Some(words) = listing_failure(facts)
    {
        return say(true, reason::ORIGIN_UNAVAILABLE, format!("the version is an earlier one: {words}"));
    }
    match facts.roll {
        Roll::Pending { old } => {
            let text = format!(
                "{old} workers run with older settings, and their caches would go with their pods: annotate the Dataset with {}=<anything new> to restart them",
                names::ROLL_ANNOTATION
            );
            return say(true, reason::ROLL_PENDING, text);
        }
        Roll::Delete { .. } | Roll::Wait { .. } => {
            return say(true, reason::ROLLING, "workers are restarted one at a time".to_owned());
        }
        Roll::None => {}
    }
    let (serving, wanted) = (serving(facts), usize::try_from(facts.spec.workers.replicas).unwrap_or(0));
    if serving > 0 && serving < wanted {
        let why = facts.trouble.map(|trouble| format!(": {}", trouble.message)).unwrap_or_default();
        return say(true, reason::WORKERS_MISSING, format!("{serving} of {wanted} workers serve{why}"));
    }
    say(false, reason::HEALTHY, String::new())
}

/// Whether two statuses differ in more than numbers that move all the time. Those can wait.
pub fn matters(old: &DatasetStatus, new: &DatasetStatus) -> bool {
    let plain = |status: &DatasetStatus| {
        let mut status = status.clone();
        status.cached = None;
        if let Some(warm_up) = &mut status.warm_up {
            let WarmUpStatus { id, completed_id, .. } = warm_up.clone();
            *warm_up = WarmUpStatus { id, completed_id, ..WarmUpStatus::default() };
        }
        for condition in &mut status.conditions {
            // A count in a message is a number too; a reason or a status is not.
            let counts = [reason::OBJECTS_CHANGED, reason::OBJECTS_UNREADABLE];
            if condition.type_ == conditions::DEGRADED && counts.contains(&condition.reason.as_str()) {
                condition.message.clear();
            }
        }
        status
    };
    plain(old) != plain(new)
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
