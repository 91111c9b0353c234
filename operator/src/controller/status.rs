//! What is a user told about a Dataset? Pure: numbers from what was seen and done, and the conditions of [`super::verdicts`].

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use millrace_api::dataset::conditions::{self, reason};
use millrace_api::dataset::spec::DatasetSpec;
use millrace_api::dataset::status::{
    CachedStatus, DatasetStatus, MountsStatus, VersionStatus, WarmUpFailure, WarmUpStatus, WorkersStatus,
};
use millrace_api::names;
use millrace_control::proto;
use millrace_control::warm_up::{self, Phase, WarmUp};

use super::mounts::Mounts;
use super::roll::Roll;
use super::trouble::{Trouble, shortened};
use super::verdicts;
use crate::build::Owner;
use crate::workers::listing::Listing;
use crate::workers::seen::Seen;

/// What was seen and done.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Whose.
    pub owner: &'a Owner,
    /// What the user wants.
    pub spec: &'a DatasetSpec,
    /// Generation of that.
    pub generation: Option<i64>,
    /// What is wrong with it, or with an annotation.
    pub problems: &'a [String],
    /// Whether the spec itself has no problem, so that workers are made.
    pub is_valid: bool,
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
    for verdict in verdicts::of(facts, warm_up.as_ref()) {
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

/// The workers that are connected.
pub fn talking<'a>(facts: &'a Facts<'_>) -> impl Iterator<Item = &'a proto::WorkerStatus> + Clone {
    facts.seen.values().filter_map(|seen| seen.status.as_ref())
}

/// Members that talk and have the index.
pub fn serving(facts: &Facts<'_>) -> usize {
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
