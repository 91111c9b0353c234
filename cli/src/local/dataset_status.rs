//! What is so of a Dataset, by what its workers say? Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use millrace_api::dataset::conditions::{self, Holds, Verdict, reason};
use millrace_api::dataset::spec::{DatasetSpec, WarmUpWhen};
use millrace_api::dataset::status::{
    CachedStatus, DatasetStatus, VersionStatus, WarmUpFailure, WarmUpStatus, WorkersStatus,
};
use millrace_control::warm_up::{self, Phase, WarmUp};
use millrace_control::{degraded, proto};

use super::version_file::VersionRecord;

/// What was seen.
#[derive(Debug)]
pub struct Seen<'a> {
    /// What the user wants.
    pub spec: &'a DatasetSpec,
    /// The version in use.
    pub version: Option<&'a VersionRecord>,
    /// What each worker says; `None` for one that does not answer.
    pub workers: &'a [Option<proto::WorkerStatus>],
    /// Whether the system is up.
    pub is_up: bool,
}

/// Gives the status, with the times of transition of the conditions told before.
pub fn of(seen: &Seen<'_>, told: Vec<Condition>, now: &Time) -> DatasetStatus {
    let warm_up =
        seen.version.map(|version| warm_up::merge(seen.workers.iter().map(Option::as_ref), &version.id));
    let mut conditions = told;
    for verdict in [accepted(), indexed(seen), ready(seen), warm(seen, warm_up.as_ref()), degraded(seen)] {
        conditions::set(&mut conditions, verdict, None, now);
    }
    let answering = seen.workers.iter().flatten();
    DatasetStatus {
        observed_generation: None,
        conditions,
        version: seen.version.map(version_status),
        workers: Some(WorkersStatus {
            desired: seen.workers.len().try_into().unwrap_or(i32::MAX),
            replicas: seen.workers.len().try_into().unwrap_or(i32::MAX),
            ready: answering.clone().count().try_into().unwrap_or(i32::MAX),
            selector: String::new(),
            epoch: signed(answering.clone().map(|worker| worker.epoch).max().unwrap_or(0)),
        }),
        cached: seen.version.filter(|_| seen.is_up).map(|version| cached(seen, version)),
        warm_up: warm_up.filter(|warm_up| seen.is_up && warm_up.phase != Phase::Idle).map(warm_up_status),
        mounts: None,
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn version_status(version: &VersionRecord) -> VersionStatus {
    VersionStatus {
        id: version.id.clone(),
        objects: signed(version.objects),
        bytes: signed(version.bytes),
        left_out: signed(version.left_out),
        since: version.since.clone(),
        sources: None,
        refresh: None,
    }
}

fn cached(seen: &Seen<'_>, version: &VersionRecord) -> CachedStatus {
    let of_version = seen.workers.iter().flatten().flat_map(|worker| &worker.versions);
    let cached = of_version.filter(|status| status.version == version.id).filter_map(|status| status.cached);
    let (bytes, objects) =
        cached.fold((0, 0), |(bytes, objects), cached| (bytes + cached.bytes, objects + cached.objects));
    CachedStatus {
        bytes: signed(bytes),
        percent: CachedStatus::percent_of(bytes, version.bytes),
        objects: signed(objects),
    }
}

fn warm_up_status(warm_up: WarmUp) -> WarmUpStatus {
    let failure = |failure: proto::ObjectFailure| WarmUpFailure {
        key: failure.path,
        reason: if failure.message.is_empty() {
            failure.reason
        } else {
            format!("{}: {}", failure.reason, failure.message)
        },
    };
    WarmUpStatus {
        id: None,
        completed_id: None,
        bytes_done: signed(warm_up.bytes_done),
        bytes_total: signed(warm_up.bytes_total),
        objects_failed: signed(warm_up.failed),
        failures: warm_up.failures.into_iter().map(failure).collect(),
    }
}

fn accepted() -> Verdict {
    // What is not valid is refused before it is kept.
    Verdict { kind: conditions::ACCEPTED, holds: Holds::True, reason: reason::VALID, message: String::new() }
}

fn indexed(seen: &Seen<'_>) -> Verdict {
    let (holds, reason, message) = match seen.version {
        None if seen.is_up => (Holds::False, reason::LISTING, "the buckets are being listed".to_owned()),
        None => (Holds::False, reason::LISTING_FAILED, "the buckets were never listed".to_owned()),
        Some(version) => (Holds::True, reason::LISTED, format!("{} objects", version.objects)),
    };
    Verdict { kind: conditions::INDEXED, holds, reason, message }
}

fn ready(seen: &Seen<'_>) -> Verdict {
    let verdict = |holds: bool, reason, message: String| Verdict {
        kind: conditions::READY,
        holds: holds.into(),
        reason,
        message,
    };
    let total = seen.workers.len();
    let answering = seen.workers.iter().flatten().count();
    if !seen.is_up {
        return verdict(
            false,
            reason::WAITING_FOR_WORKERS,
            "not running: start it with `millrace local up`".into(),
        );
    }
    let Some(version) = seen.version else {
        return verdict(false, reason::WAITING_FOR_INDEX, "there is no version yet".into());
    };
    if answering < total {
        return verdict(false, reason::WAITING_FOR_WORKERS, format!("{answering} of {total} workers answer"));
    }
    let has_index = |worker: &&proto::WorkerStatus| {
        worker.versions.iter().any(|status| status.version == version.id && status.index_ready)
    };
    let indexed = seen.workers.iter().flatten().filter(has_index).count();
    if indexed < total {
        return verdict(
            false,
            reason::WAITING_FOR_INDEX,
            format!("{indexed} of {total} workers have the index"),
        );
    }
    verdict(true, reason::SERVING, format!("{total} of {total} workers serve"))
}

fn warm(seen: &Seen<'_>, warm_up: Option<&WarmUp>) -> Verdict {
    let verdict =
        |holds: Holds, reason, message: String| Verdict { kind: conditions::WARM, holds, reason, message };
    let Some(warm_up) = warm_up else {
        return verdict(Holds::False, reason::WAITING_FOR_INDEX, "there is no version yet".into());
    };
    if !seen.is_up {
        return verdict(Holds::Unknown, reason::WAITING_FOR_WORKERS, "not running".into());
    }
    let WarmUp { phase, bytes_done, bytes_total, failed, failures: _ } = warm_up;
    let bytes = format!("{bytes_done} of {bytes_total} bytes");
    match phase {
        Phase::Idle if seen.spec.warm_up.when == WarmUpWhen::Never => {
            verdict(Holds::False, reason::NOT_ASKED_FOR, "spec.warmUp.when is Never".into())
        }
        Phase::Idle | Phase::Stopped => {
            verdict(Holds::False, reason::NOT_ASKED_FOR, "no warm-up runs".into())
        }
        Phase::Running => verdict(Holds::False, reason::WARMING, bytes),
        Phase::Full => {
            verdict(Holds::False, reason::CACHE_TOO_SMALL, format!("{bytes}: the caches are full"))
        }
        Phase::Done if *failed > 0 => {
            verdict(Holds::False, reason::OBJECTS_FAILED, format!("{failed} objects could not be loaded"))
        }
        Phase::Done => verdict(Holds::True, reason::WARMED, bytes),
    }
}

fn degraded(seen: &Seen<'_>) -> Verdict {
    let verdict = |holds: bool, reason, message: String| Verdict {
        kind: conditions::DEGRADED,
        holds: holds.into(),
        reason,
        message,
    };
    let answering = || seen.workers.iter().flatten();
    let lost = degraded::lost_objects(answering());
    if lost > 0 {
        let kinds = degraded::kinds(answering());
        let why = degraded::kinds_text(&kinds);
        let text = format!(
            "{lost} objects cannot be read from the bucket as listed{why}: `millrace local why PATH` tells more"
        );
        return verdict(true, conditions::of_lost_objects(kinds), text);
    }
    let broken = degraded::broken_stores(answering());
    if !broken.is_empty() {
        return verdict(
            true,
            reason::STORE_FAILED,
            format!("workers {broken:?} could not keep what they read: their logs tell why"),
        );
    }
    if let Some(error) = seen.version.and_then(|version| version.listing_error.as_ref()) {
        return verdict(true, reason::ORIGIN_UNAVAILABLE, format!("the version is an earlier one: {error}"));
    }
    verdict(false, reason::HEALTHY, String::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;
    use millrace_control::fixtures::worker;
    use proto::WarmUpState as State;

    fn spec() -> DatasetSpec {
        serde_json::from_value(serde_json::json!({
            "sources": [{"path": "/", "s3": {"bucket": "abc", "region": "r"}}],
        }))
        .unwrap()
    }

    fn version() -> VersionRecord {
        let made = proto::IndexMade {
            version: "v".into(),
            objects: 4,
            bytes: 100,
            left_out: 1,
            ..Default::default()
        };
        VersionRecord::new(&made, &spec(), at(1))
    }

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn status(
        version: Option<&VersionRecord>,
        workers: &[Option<proto::WorkerStatus>],
        is_up: bool,
    ) -> DatasetStatus {
        of(&Seen { spec: &spec(), version, workers, is_up }, Vec::new(), &at(9))
    }

    fn condition(status: &DatasetStatus, kind: &str) -> (String, String) {
        let found = status.conditions.iter().find(|condition| condition.type_ == kind).unwrap();
        (found.status.clone(), found.reason.clone())
    }

    fn says(status: &str, reason: &str) -> (String, String) {
        (status.to_owned(), reason.to_owned())
    }

    #[test]
    fn all_workers_through_is_ready_and_warm() {
        let version = version();
        let workers = [Some(worker(State::Done, 60, 60, &[])), Some(worker(State::Done, 40, 40, &[]))];
        let status = status(Some(&version), &workers, true);
        assert_eq!(condition(&status, "Indexed"), says("True", "Listed"));
        assert_eq!(condition(&status, "Ready"), says("True", "Serving"));
        assert_eq!(condition(&status, "Warm"), says("True", "Warmed"));
        assert_eq!(condition(&status, "Degraded"), says("False", "Healthy"));
        assert_eq!(status.warm_up.unwrap().bytes_total, 100);
        assert_eq!((status.version.unwrap().left_out, status.workers.unwrap().ready), (1, 2));
    }

    #[test]
    fn a_silent_worker_and_a_missing_index_are_not_ready() {
        let version = version();
        let one = worker(State::Running, 1, 2, &[]);
        let silent = status(Some(&version), &[Some(one.clone()), None], true);
        assert_eq!(condition(&silent, "Ready"), says("False", "WaitingForWorkers"));
        assert_eq!(condition(&silent, "Warm"), says("False", "Warming"));
        let mut fetching = one;
        fetching.versions[0].index_ready = false;
        let fetching = status(Some(&version), &[Some(fetching)], true);
        assert_eq!(condition(&fetching, "Ready"), says("False", "WaitingForIndex"));
        assert_eq!(condition(&status(None, &[None], true), "Indexed"), says("False", "Listing"));
    }

    #[test]
    fn ends_of_a_warm_up_are_told_apart() {
        let version = version();
        let reason = |worker| condition(&status(Some(&version), &[Some(worker)], true), "Warm");
        assert_eq!(reason(worker(State::Done, 1, 2, &["a"])), says("False", "ObjectsFailed"));
        assert_eq!(reason(worker(State::Full, 1, 2, &[])), says("False", "CacheTooSmall"));
        assert_eq!(reason(worker(State::Idle, 0, 0, &[])), says("False", "NotAskedFor"));
    }

    #[test]
    fn what_is_lost_broken_or_old_degrades() {
        let version = version();
        let failure =
            proto::ObjectFailure { path: "a".into(), reason: "AccessDenied".into(), ..Default::default() };
        let mut lost = worker(State::Done, 1, 1, &[]);
        lost.degraded = Some(proto::Degraded { objects: 1, last: vec![failure] });
        // The same object at two workers is one object.
        let twice = status(Some(&version), &[Some(lost.clone()), Some(lost)], true);
        assert_eq!(condition(&twice, "Degraded"), says("True", "ObjectsUnreadable"));
        assert!(twice.conditions.iter().any(|condition| {
            condition.message.starts_with("1 objects cannot be read from the bucket as listed (AccessDenied)")
        }));
        let mut broken = worker(State::Done, 1, 1, &[]);
        let not_kept = vec![proto::ReasonCount { reason: "read_only".into(), count: 1 }];
        broken.store = Some(proto::StoreUsage { not_kept, ..Default::default() });
        assert_eq!(
            condition(&status(Some(&version), &[Some(broken)], true), "Degraded"),
            says("True", "StoreFailed")
        );
        let mut old = version;
        old.listing_error = Some("no".into());
        let old = status(Some(&old), &[Some(worker(State::Done, 1, 1, &[]))], true);
        assert_eq!(condition(&old, "Degraded"), says("True", "OriginUnavailable"));
    }

    #[test]
    fn a_dataset_that_is_down_says_so_and_keeps_its_version() {
        let version = version();
        let down = status(Some(&version), &[None], false);
        assert_eq!(condition(&down, "Ready"), says("False", "WaitingForWorkers"));
        assert_eq!(condition(&down, "Warm"), says("Unknown", "WaitingForWorkers"));
        assert!(down.version.is_some() && down.cached.is_none() && down.warm_up.is_none());
    }
}
