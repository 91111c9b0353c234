//! What are the workers of a Dataset to do now? Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use millrace_api::dataset::spec::{DatasetSpec, WarmUpWhen};
use millrace_api::dataset::status::VersionStatus;
use millrace_api::placement::Membership;
use millrace_control::{dataset, proto};
use serde::Deserialize;
use tokio::time::Instant;

use super::listing::{Listing, Subject, pause};
use super::membership::{Candidate, Decision, State, decide};
use super::orders::{Orders, Show, Warm};
use super::seen::Seen;
use super::sources;

/// How long no worker may have the index before it is made again, where all workers have said so.
const INDEX_LOST: Duration = Duration::from_secs(2);

/// The same where some workers say nothing: one of them may have it.
const INDEX_LOST_MAYBE: Duration = Duration::from_secs(30);

/// A warm-up on request: the value of the annotation `millrace.dev/warm`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct WarmRequest {
    /// Chosen by who asks; another one is another request.
    pub id: String,
    /// Files and folders of the mount.
    pub paths: Vec<String>,
}

/// A worker's pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerPod {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its address.
    pub ip: String,
    /// Where its control port is.
    pub control_port: u16,
    /// Whether it is told to stop.
    pub is_leaving: bool,
}

impl WorkerPod {
    /// Its control port as a client takes it.
    pub fn control_address(&self) -> String {
        if self.ip.contains(':') {
            format!("[{}]:{}", self.ip, self.control_port)
        } else {
            format!("{}:{}", self.ip, self.control_port)
        }
    }
}

/// What is so.
#[derive(Debug)]
pub struct Facts<'a> {
    /// What the user wants.
    pub spec: &'a DatasetSpec,
    /// Generation of that.
    pub generation: i64,
    /// The version in use.
    pub version: Option<&'a VersionStatus>,
    /// The annotation by which the user asks for a listing.
    pub refresh: Option<&'a str>,
    /// The annotation by which the user asks for a warm-up.
    pub warm_request: Option<&'a WarmRequest>,
    /// Id of the last warm-up on request that is through.
    pub completed: Option<&'a str>,
    /// Pods with an address.
    pub pods: &'a [WorkerPod],
    /// What is known of each, by name.
    pub seen: &'a BTreeMap<String, Seen>,
    /// The membership that we told last.
    pub membership: Option<&'a Membership>,
    /// The latest epoch that anybody knows.
    pub epoch: u64,
    /// What the workers were told last to show.
    pub shown: Option<&'a Show>,
    /// How far the listing is.
    pub listing: &'a Listing,
    /// Since when no worker has the index.
    pub without_index: Option<Instant>,
    /// Now, for durations.
    pub instant: Instant,
    /// Now, for people.
    pub now: &'a Time,
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Steering {
    /// For all workers.
    pub orders: Orders,
    /// A listing to begin: by which worker, of what.
    pub list: Option<(String, Subject)>,
    /// The version from now on.
    pub version: Option<VersionStatus>,
    /// Whether the listing that is done is taken up by that.
    pub is_listing_taken: bool,
    /// Id of the last warm-up on request that is through.
    pub completed: Option<String>,
    /// When to look again.
    pub wake: Option<Duration>,
}

/// Decides.
pub fn steer(facts: &Facts<'_>) -> Steering {
    let subject = Subject {
        sources: sources::hash(facts.spec),
        refresh: facts.refresh.map(str::to_owned),
        generation: facts.generation,
    };
    let mut wakes = Vec::new();
    let taken = made(facts, &subject);
    let is_listing_taken = taken.is_some();
    let version = taken.or_else(|| facts.version.cloned());
    let membership = membership(facts, version.as_ref(), &mut wakes);
    let list = if is_listing_taken { None } else { listing(facts, &subject, &mut wakes) };
    let show = version.as_ref().map(|version| show(facts, version, &subject));
    let (warm_up, completed) = warm_up(facts, version.as_ref());
    Steering {
        orders: Orders { membership, version: show, warm_up },
        list,
        version,
        is_listing_taken,
        completed,
        wake: wakes.into_iter().min(),
    }
}

/// Candidates for the membership.
pub fn candidates(facts: &Facts<'_>, version: Option<&VersionStatus>) -> Vec<Candidate> {
    let candidate = |pod: &WorkerPod| {
        let seen = facts.seen.get(&pod.name).filter(|seen| seen.pod_uid == pod.uid && seen.ip == pod.ip);
        let state = match seen {
            _ if pod.is_leaving => State::Leaving,
            Some(seen) if seen.status.is_some() => {
                State::Connected { has_index: version.is_some_and(|version| seen.has_index(&version.id)) }
            }
            Some(seen) => State::Silent(facts.instant.saturating_duration_since(seen.since)),
            None => State::Silent(Duration::ZERO),
        };
        Candidate { name: pod.name.clone(), ip: pod.ip.clone(), state }
    };
    facts.pods.iter().map(candidate).collect()
}

fn membership(facts: &Facts<'_>, version: Option<&VersionStatus>, wakes: &mut Vec<Duration>) -> Membership {
    let candidates = candidates(facts, version);
    let current = facts.membership.cloned().unwrap_or_default();
    match decide(facts.membership, &candidates, facts.spec.workers.cache.weight()) {
        Decision::Keep => {}
        Decision::Wait(wait) => wakes.push(wait),
        Decision::Change(workers) => {
            return Membership { epoch: facts.epoch.max(current.epoch).saturating_add(1), workers };
        }
    }
    // Somebody knows a later epoch, of a time that we do not remember.
    if current.epoch > 0 && current.epoch < facts.epoch {
        return Membership { epoch: facts.epoch.saturating_add(1), workers: current.workers };
    }
    current
}

/// The version that the listing has made, if it is one of what is wanted now.
fn made(facts: &Facts<'_>, subject: &Subject) -> Option<VersionStatus> {
    let Listing::Made { subject: of, made } = facts.listing else { return None };
    if (&of.sources, &of.refresh) != (&subject.sources, &subject.refresh) {
        return None;
    }
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let since =
        facts.version.filter(|version| version.id == made.version).map(|version| version.since.clone());
    Some(VersionStatus {
        id: made.version.clone(),
        objects: signed(made.objects),
        bytes: signed(made.bytes),
        left_out: signed(made.left_out),
        since: since.unwrap_or_else(|| facts.now.clone()),
        sources: Some(subject.sources.clone()),
        refresh: subject.refresh.clone(),
    })
}

/// Whether the version in use is of what is wanted now.
pub fn is_current(version: &VersionStatus, spec: &DatasetSpec, refresh: Option<&str>) -> bool {
    version.sources.as_deref() == Some(sources::hash(spec).as_str())
        && (refresh.is_none() || version.refresh.as_deref() == refresh)
}

fn listing(facts: &Facts<'_>, subject: &Subject, wakes: &mut Vec<Duration>) -> Option<(String, Subject)> {
    let is_lost = index_is_lost(facts, wakes);
    let is_wanted = match facts.version {
        None => true,
        Some(version) => is_lost || !is_current(version, facts.spec, facts.refresh),
    };
    if !is_wanted {
        return None;
    }
    match facts.listing {
        Listing::Running { subject: of, worker, .. } => {
            let is_there = facts.pods.iter().any(|pod| pod.name == *worker && !pod.is_leaving);
            if is_there && (&of.sources, &of.refresh) == (&subject.sources, &subject.refresh) {
                return None;
            }
        }
        Listing::Failed { subject: of, at, tries, .. } if of == subject => {
            let left = pause(*tries).saturating_sub(facts.instant.saturating_duration_since(*at));
            if !left.is_zero() {
                wakes.push(left);
                return None;
            }
        }
        Listing::Idle | Listing::Made { .. } | Listing::Failed { .. } => {}
    }
    let worker = facts
        .pods
        .iter()
        .find(|pod| !pod.is_leaving && facts.seen.get(&pod.name).is_some_and(|seen| seen.status.is_some()))?;
    Some((worker.name.clone(), subject.clone()))
}

fn index_is_lost(facts: &Facts<'_>, wakes: &mut Vec<Duration>) -> bool {
    let Some(since) = facts.without_index else { return false };
    let all_talk =
        facts.pods.iter().all(|pod| facts.seen.get(&pod.name).is_some_and(|seen| seen.status.is_some()));
    let patience = if all_talk { INDEX_LOST } else { INDEX_LOST_MAYBE };
    let left = patience.saturating_sub(facts.instant.saturating_duration_since(since));
    if !left.is_zero() {
        wakes.push(left);
    }
    left.is_zero()
}

fn show(facts: &Facts<'_>, version: &VersionStatus, subject: &Subject) -> Show {
    let mount = dataset::mount_settings(&facts.spec.mount, &version.id);
    // Sources that are not listed yet do not fit the index that is in use.
    let sources = match facts.shown {
        Some(shown) if version.sources.as_deref() != Some(subject.sources.as_str()) => shown.sources.clone(),
        _ => dataset::sources(facts.spec),
    };
    Show { version: version.id.clone(), sources, mount }
}

fn warm_up(facts: &Facts<'_>, version: Option<&VersionStatus>) -> (Warm, Option<String>) {
    let completed = facts.completed.map(str::to_owned);
    let of_spec = match facts.spec.warm_up.when {
        WarmUpWhen::Created => {
            Some(Warm::Load { id: "spec".to_owned(), paths: facts.spec.warm_up.paths.clone() })
        }
        WarmUpWhen::Never => None,
    };
    let Some(request) = facts.warm_request else { return (of_spec.unwrap_or(Warm::Stop), completed) };
    if completed.as_deref() == Some(&request.id) {
        return (of_spec.unwrap_or(Warm::Leave), completed);
    }
    let order = Warm::Load { id: format!("request {}", request.id), paths: request.paths.clone() };
    match version {
        Some(version) if is_through(facts, version, &order) => {
            (of_spec.unwrap_or(Warm::Leave), Some(request.id.clone()))
        }
        _ => (order, completed),
    }
}

fn is_through(facts: &Facts<'_>, version: &VersionStatus, order: &Warm) -> bool {
    use proto::WarmUpState as State;
    let is_member = |seen: &&Seen| {
        seen.status.is_some()
            && facts.membership.is_some_and(|now| now.workers.iter().any(|worker| worker.name == seen.name))
    };
    let mut talking = facts.seen.values().filter(is_member).peekable();
    talking.peek().is_some()
        && talking.all(|seen| {
            let is_told = seen
                .told
                .warmed
                .as_ref()
                .is_some_and(|warmed| warmed.version == version.id && warmed.order == *order);
            let state = seen.status.iter().flat_map(|status| &status.versions);
            let state =
                state.filter(|known| known.version == version.id).find_map(|known| known.warm_up.as_ref());
            let has_ended =
                state.is_some_and(|state| !matches!(state.state(), State::Running | State::Unspecified));
            is_told && (has_ended || !seen.unknown_paths.is_empty())
        })
}

#[cfg(test)]
#[path = "steer_tests.rs"]
mod tests;
