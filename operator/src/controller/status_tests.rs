//! Is what is told so, and does every condition go both ways?

use k8s_openapi::jiff::Timestamp;
use millrace_control::fixtures::worker;
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::build::tests::{dataset, owner};
use crate::workers::listing::Subject;
use crate::workers::seen;
use millrace_api::dataset::spec::WarmUpWhen;
use proto::WarmUpState as State;

struct Scene {
    spec: DatasetSpec,
    problems: Vec<String>,
    is_valid: bool,
    blocked: Option<Trouble>,
    trouble: Option<Trouble>,
    version: Option<VersionStatus>,
    is_current: bool,
    listing: Listing,
    seen: BTreeMap<String, Seen>,
    is_bound: bool,
    roll: Roll,
}

impl Scene {
    /// Everything is well.
    fn new(workers: &[proto::WorkerStatus]) -> Self {
        let seen = |(at, status): (usize, &proto::WorkerStatus)| {
            let name = format!("w-{at}");
            let mut seen = Seen::new(&name, "u", "10.0.0.1");
            seen.status = Some(status.clone());
            (name, seen)
        };
        let source = json!({"path": "/", "s3": {
            "bucket": "abc", "region": "r", "credentials": {"secretRef": {"name": "imagenet-s3"}},
        }});
        Self {
            spec: dataset(json!({"sources": [source], "workers": {"replicas": workers.len()}})).spec,
            problems: Vec::new(),
            is_valid: true,
            blocked: None,
            trouble: None,
            version: Some(VersionStatus {
                id: "v".into(),
                objects: 4,
                bytes: 100,
                left_out: 0,
                since: at(1),
                sources: None,
                refresh: None,
            }),
            is_current: true,
            listing: Listing::Idle,
            seen: workers.iter().enumerate().map(seen).collect(),
            is_bound: true,
            roll: Roll::None,
        }
    }

    fn status(&self) -> DatasetStatus {
        let facts = Facts {
            owner: &owner(),
            spec: &self.spec,
            generation: Some(3),
            problems: &self.problems,
            is_valid: self.is_valid,
            blocked: self.blocked.as_ref(),
            trouble: self.trouble.as_ref(),
            version: self.version.as_ref(),
            is_current: self.is_current,
            listing: &self.listing,
            replicas: self.seen.len(),
            seen: &self.seen,
            members: &self.seen.keys().cloned().collect(),
            epoch: 5,
            is_bound: self.is_bound,
            roll: &self.roll,
            mounts: &Mounts::default(),
            request: None,
            completed: None,
        };
        of(&facts, &DatasetStatus::default(), &at(9))
    }

    fn says(&self, kind: &str) -> (String, String, String) {
        let status = self.status();
        let found = status.conditions.iter().find(|condition| condition.type_ == kind).unwrap();
        assert_eq!(found.observed_generation, Some(3));
        (found.status.clone(), found.reason.clone(), found.message.clone())
    }

    fn assert(&self, kind: &str, status: &str, reason: &str, message: &str) {
        let (found_status, found_reason, found_message) = self.says(kind);
        assert_eq!((found_status.as_str(), found_reason.as_str()), (status, reason), "{found_message}");
        assert!(found_message.contains(message), "{found_message}");
    }
}

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

fn failed(reason: &str, message: &str) -> Listing {
    let failure = proto::Failure { reason: reason.into(), message: message.into(), source: "/".into() };
    let subject = Subject { sources: String::new(), refresh: None, generation: 1 };
    Listing::Failed { subject, failure, at: Instant::now(), tries: 1 }
}

#[test]
fn all_is_well() {
    let scene = Scene::new(&[worker(State::Done, 60, 60, &[]), worker(State::Done, 40, 40, &[])]);
    scene.assert("Accepted", "True", "Valid", "");
    scene.assert("Indexed", "True", "Listed", "4 objects");
    scene.assert("Ready", "True", "Serving", "2 of 2");
    scene.assert("Warm", "True", "Warmed", "100 bytes");
    scene.assert("Degraded", "False", "Healthy", "");
    let status = scene.status();
    let workers = status.workers.unwrap();
    assert_eq!((workers.desired, workers.ready, workers.epoch), (2, 2, 5));
    assert_eq!(status.observed_generation, Some(3));
}

#[test]
fn a_refusal_of_the_bucket_names_the_secret_to_check() {
    let mut scene = Scene::new(&[worker(State::Idle, 0, 0, &[])]);
    scene.version = None;
    scene.listing = failed("AccessDenied", "403 AccessDenied for key id ...7QXA");
    let words =
        "bucket abc: 403 AccessDenied for key id ...7QXA (AccessDenied); check secret vision/imagenet-s3";
    scene.assert("Indexed", "False", "ListingFailed", words);
    scene.assert("Ready", "False", "WaitingForIndex", words);
    scene.assert("Warm", "False", "WaitingForIndex", "");
    // A further try is no news.
    if let Listing::Failed { subject, failure, .. } = &scene.listing {
        let former = Some(failure.clone());
        let again = Listing::Running { subject: subject.clone(), worker: "w-0".into(), objects: 0, former };
        let before = scene.says("Indexed");
        scene.listing = again;
        assert_eq!(scene.says("Indexed"), before);
    }
    scene.listing = failed("NoSuchBucket", "no such bucket");
    assert!(!scene.says("Indexed").2.contains("check secret"));
}

#[test]
fn what_keeps_workers_away_is_in_ready_and_with_some_left_in_degraded() {
    let mut scene = Scene::new(&[]);
    scene.spec.workers.replicas = 2;
    scene.assert("Ready", "False", "WaitingForWorkers", "0 of 2");
    scene.trouble = Some(Trouble { reason: reason::QUOTA_EXCEEDED, message: "exceeded quota".into() });
    scene.assert("Ready", "False", "QuotaExceeded", "exceeded quota");
    let mut some = Scene::new(&[worker(State::Done, 1, 1, &[])]);
    some.spec.workers.replicas = 2;
    some.trouble = scene.trouble.clone();
    some.assert("Ready", "True", "Serving", "1 of 2");
    some.assert("Degraded", "True", "WorkersMissing", "exceeded quota");
    some.blocked = Some(Trouble { reason: reason::NAME_CONFLICT, message: "Service x is not ours".into() });
    some.assert("Ready", "False", "NameConflict", "not ours");
}

#[test]
fn a_spec_that_is_not_accepted_is_what_workers_wait_for() {
    let mut scene = Scene::new(&[]);
    scene.spec.workers.replicas = 1;
    scene.is_valid = false;
    scene.problems = vec!["spec.workers.template.affinity: it is none of a pod".into()];
    scene.assert("Accepted", "False", "Invalid", "template.affinity");
    scene.assert("Ready", "False", "WaitingForWorkers", "see condition Accepted");
}

#[test]
fn workers_that_run_without_index_or_volume_are_not_ready() {
    let mut bare = worker(State::Idle, 0, 0, &[]);
    bare.versions[0].index_ready = false;
    Scene::new(&[bare]).assert("Ready", "False", "WaitingForIndex", "0 of 1");
    let mut unbound = Scene::new(&[worker(State::Done, 1, 1, &[])]);
    unbound.is_bound = false;
    unbound.assert("Ready", "False", "WaitingForVolume", "claim");
    let mut none = Scene::new(&[]);
    none.assert("Ready", "False", "NoWorkers", "scale");
    none.assert("Warm", "Unknown", "WaitingForWorkers", "no worker");
    none.spec.workers.replicas = 1;
    let mut seen = Seen::new("w-0", "u", "ip");
    seen.trouble = Some(seen::Trouble::KeyRefused("not of this key".into()));
    none.seen.insert("w-0".into(), seen);
    none.assert("Ready", "False", "KeyRefused", "delete secret vision/millrace-imagenet-control");
}

#[test]
fn ends_of_a_warm_up_are_told_apart() {
    Scene::new(&[worker(State::Running, 1, 2, &[])]).assert("Warm", "False", "Warming", "2 bytes");
    Scene::new(&[worker(State::Done, 1, 2, &["a"])]).assert("Warm", "False", "ObjectsFailed", "1 objects");
    Scene::new(&[worker(State::Full, 1, 2, &[])]).assert("Warm", "False", "CacheTooSmall", "full");
    let mut never = Scene::new(&[worker(State::Idle, 0, 0, &[])]);
    never.spec.warm_up.when = WarmUpWhen::Never;
    never.assert("Warm", "False", "NotAskedFor", "Never");
}

#[test]
fn what_is_lost_old_or_waits_degrades() {
    let fine = || worker(State::Done, 1, 1, &[]);
    let mut outage = fine();
    outage.origin_trouble = Some(proto::OriginTrouble {
        reason: "AccessDenied".into(),
        message: "403".into(),
        source: "/".into(),
        since_ms: 1,
    });
    Scene::new(&[outage]).assert("Degraded", "True", "OriginUnavailable", "check secret vision/imagenet-s3");
    let mut lost = fine();
    let failure = proto::ObjectFailure { path: "a".into(), ..Default::default() };
    lost.degraded = Some(proto::Degraded { objects: 1, last: vec![failure] });
    Scene::new(&[lost.clone(), lost]).assert("Degraded", "True", "ObjectsChanged", "1 objects cannot");
    let mut denied = fine();
    let failure =
        proto::ObjectFailure { path: "a".into(), reason: "AccessDenied".into(), ..Default::default() };
    denied.degraded = Some(proto::Degraded { objects: 1, last: vec![failure] });
    Scene::new(&[denied]).assert("Degraded", "True", "ObjectsUnreadable", "as listed (AccessDenied); permit");
    for reason in ["read_only", "free_space"] {
        let mut broken = fine();
        let not_kept = vec![proto::ReasonCount { reason: reason.into(), count: 1 }];
        broken.store = Some(proto::StoreUsage { not_kept, ..Default::default() });
        Scene::new(&[broken]).assert("Degraded", "True", "StoreFailed", "cannot write");
    }
    let mut old = Scene::new(&[fine()]);
    assert!(!old.says("Indexed").2.contains("since"));
    old.is_current = false;
    old.assert("Indexed", "True", "Listed", "4 objects; what was asked for since is not listed yet");
    old.listing = failed("NoSuchBucket", "gone");
    old.assert("Degraded", "True", "OriginUnavailable", "the version is an earlier one");
    let mut pending = Scene::new(&[fine()]);
    pending.roll = Roll::Pending { old: 1 };
    pending.assert("Degraded", "True", "RollPending", "millrace.dev/roll");
}

#[test]
fn numbers_that_move_can_wait() {
    let old = Scene::new(&[worker(State::Running, 1, 100, &[])]).status();
    let more = Scene::new(&[worker(State::Running, 50, 100, &[])]).status();
    assert_ne!(old, more);
    assert!(!matters(&old, &more));
    assert!(matters(&old, &Scene::new(&[worker(State::Done, 100, 100, &[])]).status()));
}
