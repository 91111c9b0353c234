//! Do the workers get the orders that the facts ask for?

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::build::tests::dataset;
use crate::workers::orders::{Told, Warmed};

const V1: &str = "11111111111111111111111111111111";

struct Scene {
    spec: DatasetSpec,
    version: Option<VersionStatus>,
    refresh: Option<&'static str>,
    warm_request: Option<WarmRequest>,
    completed: Option<&'static str>,
    pods: Vec<WorkerPod>,
    seen: BTreeMap<String, Seen>,
    membership: Option<Membership>,
    epoch: u64,
    listing: Listing,
    without_index: Option<Instant>,
    instant: Instant,
}

impl Scene {
    fn new(workers: usize) -> Self {
        let names: Vec<String> = (0..workers).map(|at| format!("w-{at}")).collect();
        let pod = |name: &String| WorkerPod {
            name: name.clone(),
            uid: format!("uid-{name}"),
            control_port: 7421,
            ip: "10.0.0.1".into(),
            is_leaving: false,
        };
        let seen = |name: &String| {
            let mut seen = Seen::new(name, &format!("uid-{name}"), "10.0.0.1");
            seen.status = Some(proto::WorkerStatus::default());
            (name.clone(), seen)
        };
        Self {
            spec: dataset(json!({})).spec,
            version: None,
            refresh: None,
            warm_request: None,
            completed: None,
            pods: names.iter().map(pod).collect(),
            seen: names.iter().map(seen).collect(),
            membership: None,
            epoch: 0,
            listing: Listing::Idle,
            without_index: None,
            instant: Instant::now(),
        }
    }

    fn listed(mut self) -> Self {
        let made = proto::IndexMade { version: V1.into(), objects: 2, bytes: 7, ..Default::default() };
        self.listing = Listing::Made { subject: self.subject(), made };
        self.version = self.steer().version;
        self.listing = Listing::Idle;
        for seen in self.seen.values_mut() {
            let known = proto::VersionStatus { version: V1.into(), index_ready: true, ..Default::default() };
            seen.status = Some(proto::WorkerStatus { versions: vec![known], ..Default::default() });
        }
        self
    }

    fn subject(&self) -> Subject {
        let refresh = self.refresh.map(str::to_owned);
        Subject { sources: sources::hash(&self.spec), refresh, generation: 1 }
    }

    fn steer(&self) -> Steering {
        steer(&Facts {
            spec: &self.spec,
            generation: 1,
            version: self.version.as_ref(),
            refresh: self.refresh,
            warm_request: self.warm_request.as_ref(),
            completed: self.completed,
            pods: &self.pods,
            seen: &self.seen,
            membership: self.membership.as_ref(),
            epoch: self.epoch,
            shown: None,
            listing: &self.listing,
            without_index: self.without_index,
            instant: self.instant,
            now: &Time(Timestamp::from_second(1_700_000_000).unwrap()),
        })
    }
}

#[test]
fn the_first_worker_lists_and_the_version_is_shown_to_all() {
    let scene = Scene::new(2);
    let first = scene.steer();
    assert_eq!(first.list, Some(("w-0".to_owned(), scene.subject())));
    assert_eq!((first.orders.membership.epoch, first.orders.membership.workers.len()), (1, 2));
    assert_eq!(first.orders.version, None);
    let scene = scene.listed();
    let then = scene.steer();
    assert_eq!((then.list, then.version.unwrap().objects), (None, 2));
    assert_eq!(then.orders.version.unwrap().mount.version, V1);
}

#[test]
fn nothing_is_listed_twice_at_once_and_a_failure_is_tried_again_later() {
    let mut scene = Scene::new(1);
    scene.listing =
        Listing::Running { subject: scene.subject(), worker: "w-0".into(), objects: 0, former: None };
    assert_eq!(scene.steer().list, None);
    scene.listing =
        Listing::Running { subject: scene.subject(), worker: "gone".into(), objects: 0, former: None };
    assert!(scene.steer().list.is_some(), "the worker that listed is gone");
    let failure = proto::Failure::default();
    scene.listing =
        Listing::Failed { subject: scene.subject(), failure: failure.clone(), at: scene.instant, tries: 1 };
    let wait = scene.steer();
    assert_eq!((wait.list, wait.wake), (None, Some(pause(1))));
    scene.instant += pause(1);
    assert!(scene.steer().list.is_some());
    let other = Subject { generation: 0, ..scene.subject() };
    scene.listing = Listing::Failed { subject: other, failure, at: scene.instant, tries: 9 };
    assert!(scene.steer().list.is_some(), "the user has changed something");
}

#[test]
fn a_new_word_or_other_sources_list_again_and_the_version_stays_meanwhile() {
    let mut scene = Scene::new(1).listed();
    assert_eq!(scene.steer().list, None);
    scene.refresh = Some("today");
    let steering = scene.steer();
    assert_eq!((steering.list.is_some(), steering.version.unwrap().id), (true, V1.to_owned()));
    scene.refresh = None;
    scene.spec = dataset(json!({"sources": [{"path": "/", "s3": {"bucket": "new", "region": "r"}}]})).spec;
    assert!(scene.steer().list.is_some());
}

#[test]
fn an_index_that_all_workers_lost_is_made_again() {
    let mut scene = Scene::new(2).listed();
    for seen in scene.seen.values_mut() {
        seen.status = Some(proto::WorkerStatus::default());
    }
    scene.without_index = Some(scene.instant);
    let early = scene.steer();
    assert_eq!((early.list, early.wake), (None, Some(INDEX_LOST)));
    scene.instant += INDEX_LOST;
    assert!(scene.steer().list.is_some());
    // One that says nothing may have it.
    scene.seen.get_mut("w-1").unwrap().status = None;
    assert_eq!(scene.steer().list, None);
    scene.instant += INDEX_LOST_MAYBE;
    assert!(scene.steer().list.is_some());
}

#[test]
fn an_epoch_only_grows() {
    let mut scene = Scene::new(1).listed();
    scene.epoch = 7;
    let first = scene.steer().orders.membership;
    assert_eq!(first.epoch, 8, "after a start, from what the status and the workers know");
    scene.membership = Some(first.clone());
    scene.epoch = 8;
    assert_eq!(scene.steer().orders.membership, first);
    scene.epoch = 12;
    assert_eq!(scene.steer().orders.membership.epoch, 13, "a worker knows a later one");
}

#[test]
fn a_request_is_warmed_before_the_spec_goes_on() {
    let mut scene = Scene::new(1).listed();
    let of_spec = Warm::Load { id: "spec".into(), paths: vec!["/".into()] };
    assert_eq!(scene.steer().orders.warm_up, of_spec);
    scene.warm_request = Some(WarmRequest { id: "7".into(), paths: vec!["/a".into()] });
    let first = scene.steer().orders;
    let order = first.warm_up;
    scene.membership = Some(first.membership);
    assert_eq!(order, Warm::Load { id: "request 7".into(), paths: vec!["/a".into()] });
    let seen = scene.seen.get_mut("w-0").unwrap();
    seen.told = Told { warmed: Some(Warmed { version: V1.into(), epoch: 1, order }), ..Told::default() };
    let state = |state: proto::WarmUpState| {
        let warm_up = proto::WarmUp { state: state.into(), ..Default::default() };
        let known = proto::VersionStatus {
            version: V1.into(),
            index_ready: true,
            warm_up: Some(warm_up),
            ..Default::default()
        };
        Some(proto::WorkerStatus { versions: vec![known], ..Default::default() })
    };
    seen.status = state(proto::WarmUpState::Running);
    assert_eq!(scene.steer().completed, None);
    scene.seen.get_mut("w-0").unwrap().status = state(proto::WarmUpState::Done);
    let done = scene.steer();
    assert_eq!((done.completed.as_deref(), &done.orders.warm_up), (Some("7"), &of_spec));
    scene.completed = Some("7");
    scene.spec.warm_up.when = WarmUpWhen::Never;
    assert_eq!(scene.steer().orders.warm_up, Warm::Leave);
    scene.warm_request = None;
    assert_eq!(scene.steer().orders.warm_up, Warm::Stop);
}
