//! Which pods wait for a dataset, and are they told for what?
//!
//! A pod may come before its Dataset; kubelet and scheduler then say only that a claim or a volume is not there. So every pending
//! pod that carries our label and whose Dataset is missing or not ready gets one event that says for what it waits, and another
//! only when that changes. Level driven: three watches (such pods, Datasets, kubelet's mount failures) keep what is so now, and
//! what is told follows from it.
//!
//! A pod that hangs because a key Secret was deleted is told to the control loop, which may create Secrets but not look at them.

pub mod missing_keys;
mod waiting;

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event as CoreEvent, ObjectReference, Pod};
use kube::runtime::events::{Event, EventType, Recorder};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use millrace_api::dataset::spec::Dataset;
use millrace_api::names::CONSUMER_LABEL;
use millrace_daemon::causes::with_causes;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::missing_keys::MissingKeys;
use self::waiting::{ConsumerPod, DatasetState, Datasets, Wait};
use crate::lease::{Held, RENEW_EVERY};

/// How long a pod may wait before it is told: whoever applies pod and Dataset together needs no event.
const GRACE: Duration = Duration::from_secs(2);

/// Most pods that are looked after at a time; the rest is when these have started. Bounds memory to some 10 MB.
const MAX_WAITING: usize = 10_000;

/// Reason of the event.
const WAITING_FOR_DATASET: &str = "WaitingForDataset";

/// What this needs of the rest of the operator.
pub struct Consumers {
    /// Reaches the API server.
    pub client: Client,
    /// Writes events.
    pub recorder: Recorder,
    /// Only who holds it writes events.
    pub lease: Held,
    /// Told of Datasets whose keys are missing. When it is full, the next try of kubelet tells again.
    pub missing_keys: mpsc::Sender<MissingKeys>,
}

/// A pod that is pending.
struct Pending {
    pod: ConsumerPod,
    since: Instant,
    told: Option<Wait>,
}

/// Looks after waiting pods until `stop`.
pub async fn run(consumers: Consumers, stop: CancellationToken) {
    let Consumers { client, recorder, lease, missing_keys } = consumers;
    // Whatever has started leaves the watch.
    let ours =
        watcher::Config::default().labels(&format!("{CONSUMER_LABEL}=true")).fields("status.phase=Pending");
    let mut pods = pin!(watcher(Api::<Pod>::all(client.clone()), ours).default_backoff());
    let all = watcher::Config::default();
    let mut changes = pin!(watcher(Api::<Dataset>::all(client.clone()), all).default_backoff());
    let failed = watcher::Config::default().fields("involvedObject.kind=Pod,reason=FailedMount");
    let mut failures = pin!(watcher(Api::<CoreEvent>::all(client), failed).default_backoff());
    let mut seen = Seen::default();
    loop {
        let again_at = seen.tell(&recorder, &lease).await;
        tokio::select! {
            () = stop.cancelled() => return,
            Some(change) = pods.next() => seen.pod(change),
            Some(change) = changes.next() => seen.dataset(change),
            Some(failure) = failures.next() => {
                if let Some(missing) = missing_keys::from_watch(failure, &seen.datasets, Timestamp::now())
                    && missing_keys.try_send(missing).is_err()
                {
                    tracing::debug!("the control loop is behind with missing keys; kubelet tells again");
                }
            }
            () = tokio::time::sleep_until(again_at.unwrap_or_else(Instant::now)), if again_at.is_some() => {}
        }
    }
}

/// What is so now.
#[derive(Default)]
struct Seen {
    /// By UID.
    pending: HashMap<String, Pending>,
    datasets: Datasets,
    /// Pods of a listing that is under way.
    listed_pods: HashSet<String>,
    /// Datasets of a listing that is under way.
    listed: Option<Datasets>,
    is_listed: bool,
}

impl Seen {
    fn pod(&mut self, change: Result<watcher::Event<Pod>, watcher::Error>) {
        match change {
            Ok(watcher::Event::Init) => self.listed_pods.clear(),
            Ok(watcher::Event::InitApply(pod)) => {
                self.listed_pods.extend(pod.uid());
                self.keep(&pod);
            }
            Ok(watcher::Event::InitDone) => {
                let listed = std::mem::take(&mut self.listed_pods);
                self.pending.retain(|uid, _| listed.contains(uid));
            }
            Ok(watcher::Event::Apply(pod)) => self.keep(&pod),
            Ok(watcher::Event::Delete(pod)) => {
                self.pending.remove(&pod.uid().unwrap_or_default());
            }
            Err(error) => tracing::warn!(error = with_causes(&error), "consumer pods not watched"),
        }
    }

    fn keep(&mut self, pod: &Pod) {
        let uid = pod.uid().unwrap_or_default();
        match ConsumerPod::of(pod) {
            None => _ = self.pending.remove(&uid),
            Some(pod) => {
                if let Some(there) = self.pending.get_mut(&uid) {
                    there.pod = pod;
                } else if self.pending.len() < MAX_WAITING {
                    self.pending.insert(uid, Pending { pod, since: Instant::now(), told: None });
                }
            }
        }
    }

    fn dataset(&mut self, change: Result<watcher::Event<Dataset>, watcher::Error>) {
        match change {
            Ok(watcher::Event::Init) => self.listed = Some(Datasets::default()),
            Ok(watcher::Event::InitApply(dataset)) => {
                if let Some(listed) = &mut self.listed {
                    listed.insert(waiting::name_of(&dataset), DatasetState::of(&dataset));
                }
            }
            Ok(watcher::Event::InitDone) => {
                self.datasets = self.listed.take().unwrap_or_default();
                self.is_listed = true;
            }
            Ok(watcher::Event::Apply(dataset)) => {
                self.datasets.insert(waiting::name_of(&dataset), DatasetState::of(&dataset));
            }
            Ok(watcher::Event::Delete(dataset)) => {
                self.datasets.remove(&waiting::name_of(&dataset));
            }
            Err(error) => {
                tracing::warn!(error = with_causes(&error), "Datasets not watched for their consumers")
            }
        }
    }

    /// Tells every pod that is to be told something else than it was, and gives when to look again.
    async fn tell(&mut self, recorder: &Recorder, lease: &Held) -> Option<Instant> {
        // As long as Datasets are not listed, none is known not to be there.
        if !self.is_listed {
            return None;
        }
        let now = Instant::now();
        let mut again_at: Option<Instant> = None;
        let mut again = |at: Instant| again_at = Some(again_at.map_or(at, |earlier| earlier.min(at)));
        for Pending { pod, since, told } in self.pending.values_mut() {
            let wait = waiting::waits_for(pod, &self.datasets);
            if wait.is_none() {
                *told = None;
                continue;
            }
            if told.as_ref().map(Wait::key) == wait.as_ref().map(Wait::key) {
                continue;
            }
            let due = *since + GRACE;
            if due > now {
                again(due);
                continue;
            }
            if !lease.is_held() {
                again(now + RENEW_EVERY);
                continue;
            }
            if let Some(wait) = wait {
                match recorder.publish(&event(&wait), &pod.reference).await {
                    Ok(()) => *told = Some(wait),
                    Err(error) => {
                        let name = pod.reference.name.as_deref();
                        tracing::warn!(pod = name, error = with_causes(&error), "event not written");
                        again(now + RENEW_EVERY);
                    }
                }
            }
        }
        again_at
    }
}

fn event(wait: &Wait) -> Event {
    Event {
        type_: if wait.is_missing { EventType::Warning } else { EventType::Normal },
        reason: WAITING_FOR_DATASET.to_owned(),
        note: Some(wait.message.clone()),
        // The recorder takes events of one action for repetitions, and drops what the later ones say.
        action: format!("WaitFor{}", wait.reason),
        secondary: None::<ObjectReference>,
    }
}
