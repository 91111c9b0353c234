//! Which links between a pod and the bucket hold, and which is the first that is broken? Pure.
//!
//! A link that does not hold only because another does not is waiting, not broken: a claim that is missing because the bucket
//! cannot be listed is no fault of the claim. So what is named is where something can be done.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use millrace_api::dataset::conditions::{ACCEPTED, DEGRADED, INDEXED, READY, TERMINATING, reason};
use millrace_api::dataset::spec::Dataset;
use millrace_api::names;
use millrace_api::pod_annotation::PodDatasets;
use serde::Serialize;

use super::claims::claims_of;
use super::cures;
use super::evidence::{DatasetEvidence, Evidence, Found, PodEvidence};
use super::status_text::condition;

/// A link of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Which: annotation, webhook, claim, volume, node, containers, dataset, workers or origin.
    pub link: &'static str,
    /// The Dataset that it belongs to; none for the pod's own.
    pub of: Option<String>,
    /// Whether it holds.
    pub state: State,
    /// What is so.
    pub says: String,
    /// What to do.
    pub cure: Option<String>,
}

/// Whether a link holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It does.
    Ok,
    /// Not yet: another link comes first, or it is under way.
    Waiting,
    /// It does not, and the fault is here.
    Broken,
    /// The user may not see it.
    Unknown,
}

/// All links, from the pod to the buckets.
pub fn links(evidence: &Evidence) -> Vec<Link> {
    let mut links = Links { of: None, all: Vec::new() };
    let is_by_annotation = evidence.pod.as_ref().is_none_or(|pod| annotation(&pod.pod).is_some());
    if let Some(PodEvidence { pod, .. }) = &evidence.pod {
        pod_links(&mut links, pod, evidence);
    }
    // Claims of a pod without annotation may be anybody's.
    let datasets = evidence
        .datasets
        .iter()
        .filter(|dataset| is_by_annotation || !matches!(dataset.dataset, Found::Nothing));
    for dataset in datasets.clone() {
        links.of = Some(dataset.name.clone());
        claim_links(&mut links, dataset);
    }
    links.of = None;
    if let Some(pod) = &evidence.pod {
        let all_ready = datasets.clone().all(is_ready);
        node_links(&mut links, pod, all_ready);
    }
    for dataset in datasets {
        links.of = Some(dataset.name.clone());
        dataset_links(&mut links, dataset, evidence);
    }
    links.all
}

/// The first link that is broken.
pub fn first_broken(links: &[Link]) -> Option<&Link> {
    links.iter().find(|link| link.state == State::Broken)
}

struct Links {
    of: Option<String>,
    all: Vec<Link>,
}

impl Links {
    fn add(&mut self, link: &'static str, state: State, says: impl Into<String>, cure: Option<&str>) {
        let cure = cure.map(str::to_owned);
        self.all.push(Link { link, of: self.of.clone(), state, says: says.into(), cure });
    }

    fn ok(&mut self, link: &'static str, says: impl Into<String>) {
        self.add(link, State::Ok, says, None);
    }

    fn waiting(&mut self, link: &'static str, says: impl Into<String>) {
        self.add(link, State::Waiting, says, None);
    }

    fn broken(&mut self, link: &'static str, says: impl Into<String>, cure: &str) {
        self.add(link, State::Broken, says, Some(cure));
    }
}

fn annotation(pod: &Pod) -> Option<&String> {
    pod.annotations().get(names::POD_DATASET_ANNOTATION)
}

fn pod_links(links: &mut Links, pod: &Pod, evidence: &Evidence) {
    let Some(annotation) = annotation(pod) else {
        let has_dataset = evidence.datasets.iter().any(|dataset| !matches!(dataset.dataset, Found::Nothing));
        return if has_dataset {
            links.ok("annotation", "none; the pod mounts the claim of a dataset by itself");
        } else {
            links.broken(
                "annotation",
                format!("the pod names no dataset: it has no annotation {}", names::POD_DATASET_ANNOTATION),
                "add the annotation to the pod's template, for example millrace.dev/dataset: \"imagenet=/data\", and create the pod anew",
            );
        };
    };
    let parsed = match PodDatasets::parse(annotation) {
        Ok(parsed) => parsed,
        Err(error) => {
            return links.broken(
                "annotation",
                error.to_string(),
                "correct it in the pod's template, and create the pod anew",
            );
        }
    };
    links.ok("annotation", parsed.to_string());
    let missing = parsed
        .datasets()
        .into_iter()
        .find(|dataset| !claims_of(pod).any(|claim| claim == names::claim(dataset)));
    match missing {
        None => links.ok("webhook", "the pod has the volumes"),
        Some(dataset) => links.broken(
            "webhook",
            format!("the pod has no volume for dataset {dataset:?}: it was annotated after its creation, or the webhook did not see it"),
            "create the pod anew; if it stays so, see `kubectl get mutatingwebhookconfiguration millrace` and whether the namespace is \
             excluded in the chart's values",
        ),
    }
}

fn claim_links(links: &mut Links, evidence: &DatasetEvidence) {
    let DatasetEvidence { name, dataset, claim, volume, .. } = evidence;
    match claim {
        Found::Unknown(why) => links.add("claim", State::Unknown, why, None),
        Found::Nothing => match dataset {
            // Made for a Dataset as soon as the operator looks at it.
            Found::There(dataset) if holds(dataset, READY) => links.broken(
                "claim",
                format!("there is no claim {name:?}, although the dataset is ready"),
                "the operator makes it again within seconds; see its log where this lasts: kubectl -n millrace-system logs \
                 deploy/millrace-operator",
            ),
            Found::There(_) | Found::Unknown(_) => links.waiting("claim", "not there yet: the dataset comes first"),
            Found::Nothing => links.waiting("claim", "not there: there is no such dataset"),
        },
        Found::There(claim) => {
            let is_ours = claim.labels().get(names::MANAGED_BY_LABEL).is_some_and(|by| by == names::MANAGER);
            let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
            if !is_ours && !matches!(dataset, Found::Unknown(_)) {
                links.broken(
                    "claim",
                    format!("claim {name:?} is somebody else's: Millrace did not make it"),
                    "rename or delete that claim, or give the Dataset another name",
                );
            } else if phase == "Bound" {
                links.ok("claim", format!("claim {name:?} is bound"));
            } else {
                links.waiting("claim", format!("claim {name:?} is {phase}: its volume comes first"));
            }
        }
    }
    match volume {
        Found::Unknown(why) => links.add("volume", State::Unknown, why, None),
        Found::Nothing => {
            if matches!(dataset, Found::There(_)) {
                links.waiting("volume", "not there yet");
            }
        }
        Found::There(volume) => {
            let phase =
                volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
            let text = format!("volume {:?} is {phase}", volume.name_any());
            match phase {
                "Bound" => links.ok("volume", text),
                "Released" | "Failed" => {
                    links.broken(
                        "volume",
                        text,
                        "delete the claim of the dataset's name: the operator makes both anew",
                    );
                }
                _ => links.waiting("volume", text),
            }
        }
    }
}

/// From the scheduler to the containers.
fn node_links(links: &mut Links, evidence: &PodEvidence, all_ready: bool) {
    let PodEvidence { pod, events, node } = evidence;
    let status = pod.status.clone().unwrap_or_default();
    let Some(name) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) else {
        let unschedulable =
            status.conditions.iter().flatten().find(|condition| condition.type_ == "PodScheduled");
        let says = unschedulable.and_then(|condition| condition.message.clone());
        let says = says.unwrap_or_else(|| "the scheduler has not seen it yet".to_owned());
        return match all_ready {
            false => links.waiting("node", says),
            true => links.broken(
                "node",
                says,
                "make room on nodes, or change what the pod asks for; the words are the scheduler's",
            ),
        };
    };
    let drivers = match node {
        Found::There(node) => Some(node.spec.drivers.iter().any(|driver| driver.name == names::CSI_DRIVER)),
        Found::Nothing | Found::Unknown(_) => None,
    };
    if drivers == Some(false) {
        return links.broken(
            "node",
            format!("the CSI driver of Millrace does not run on node {name:?}"),
            "see kubectl -n millrace-system get pods -o wide; the chart's csi.tolerations may leave the node out",
        );
    }
    let phase = status.phase.as_deref().unwrap_or("Pending");
    let trouble = container_trouble(&status);
    let failure = events.iter().rev().find(|event| event.reason.as_deref() == Some("FailedMount"));
    // kubelet looks at containers once all volumes are mounted.
    if phase != "Pending" || trouble.is_some() {
        links.ok("node", format!("mounted on node {name:?}"));
    } else if let Some(failure) = failure {
        let says = format!("on node {name:?}: {}", failure.message.as_deref().unwrap_or("mount failed"));
        match all_ready {
            false => links.waiting("node", says),
            true => links.broken(
                "node",
                says,
                "see the driver's log: kubectl -n millrace-system logs -l app.kubernetes.io/component=csi-driver -c csi-driver; kubelet \
                 tries again at least every two minutes",
            ),
        }
    } else {
        links.waiting("node", format!("on node {name:?}, not started yet"));
    }
    match trouble {
        Some(says) if says.contains("subPath") => links.broken(
            "containers",
            says,
            "the dataset has no such folder: correct it in the pod's annotation, and create the pod anew",
        ),
        Some(says) => {
            links.broken(
                "containers",
                says,
                "nothing of Millrace: see kubectl describe and kubectl logs --previous",
            );
        }
        None if phase == "Pending" => links.waiting("containers", "not started yet"),
        None => links.ok("containers", phase),
    }
}

/// What keeps a container from running, otherwise than that its turn has not come.
fn container_trouble(status: &PodStatus) -> Option<String> {
    let all =
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    all.into_iter().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        let is_usual = ["ContainerCreating", "PodInitializing"].contains(&reason);
        (!is_usual).then(|| {
            let message = waiting.message.as_deref().unwrap_or_default();
            format!("container {:?}: {reason}: {message}", container.name)
        })
    })
}

fn dataset_links(links: &mut Links, evidence: &DatasetEvidence, all: &Evidence) {
    let DatasetEvidence { name, dataset, workers, .. } = evidence;
    let dataset = match dataset {
        Found::Unknown(why) => return links.add("dataset", State::Unknown, why, None),
        Found::Nothing => {
            return links.broken(
                "dataset",
                format!("there is no dataset {name:?} in namespace {:?}", all.namespace),
                "create it (kubectl apply -f dataset.yaml); the pod starts by itself then. Or correct the name in the pod's annotation: \
                 `millrace status` lists those that are there",
            );
        }
        Found::There(dataset) => dataset,
    };
    let status = dataset.status.clone().unwrap_or_default();
    match (condition(&status, ACCEPTED), dataset.metadata.deletion_timestamp.is_some()) {
        (_, true) => {
            let says = condition(&status, TERMINATING)
                .map_or("the operator has not seen it yet", |now| &now.message);
            links.broken(
                "dataset",
                format!("it is being deleted: {says}"),
                "create it again once it is gone",
            );
        }
        (None, false) => {
            return links.broken(
                "dataset",
                "the operator has not looked at it yet",
                "see that the operator runs: kubectl -n millrace-system get pods",
            );
        }
        (Some(accepted), false) if accepted.status == "True" => links.ok("dataset", "accepted"),
        (Some(accepted), false) => link_of(links, "dataset", accepted),
    }
    let degraded = condition(&status, DEGRADED).filter(|degraded| degraded.status == "True");
    let (of_workers, of_origin) = match degraded {
        Some(degraded) if is_of_workers(&degraded.reason) => (Some(degraded), None),
        other => (None, other),
    };
    worker_links(links, dataset, workers, of_workers);
    match (condition(&status, INDEXED), of_origin) {
        (Some(indexed), _) if indexed.status != "True" => link_of(links, "origin", indexed),
        (None, _) => links.waiting("origin", "not listed yet"),
        (Some(_), Some(degraded)) => link_of(links, "origin", degraded),
        (Some(indexed), None) => links.ok("origin", indexed.message.clone()),
    }
}

/// Whether a reason of `Degraded` is about the workers, and not about the bucket.
fn is_of_workers(reason: &str) -> bool {
    [reason::STORE_FAILED, reason::ROLL_PENDING, reason::ROLLING, reason::WORKERS_MISSING].contains(&reason)
}

fn worker_links(
    links: &mut Links,
    dataset: &Dataset,
    workers: &Found<Vec<Pod>>,
    degraded: Option<&Condition>,
) {
    let status = dataset.status.clone().unwrap_or_default();
    let count = match (&status.workers, workers) {
        (Some(workers), _) => format!("{} of {} serve", workers.ready, workers.desired),
        (None, Found::There(pods)) => format!("{} there", pods.len()),
        (None, _) => "none yet".to_owned(),
    };
    match condition(&status, READY) {
        Some(ready) if ready.status == "True" => match degraded {
            Some(degraded) => link_of(links, "workers", degraded),
            None => links.ok("workers", count),
        },
        Some(ready) => {
            let mut ready = ready.clone();
            // Its message is that of the listing, which the origin tells.
            if ready.reason == reason::WAITING_FOR_INDEX {
                "the buckets are not listed yet".clone_into(&mut ready.message);
            }
            if let Found::There(pods) = workers
                && let Some(trouble) = pods.iter().find_map(trouble)
            {
                ready.message = format!("{} ({trouble})", ready.message);
            }
            link_of(links, "workers", &ready);
        }
        None => links.waiting("workers", count),
    }
}

/// What keeps a worker's pod from running.
fn trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let name = pod.name_any();
    let waiting = status.container_statuses.iter().flatten().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        Some(format!(
            "{name}: {} {}",
            waiting.reason.as_deref()?,
            waiting.message.as_deref().unwrap_or_default()
        ))
    });
    waiting.or_else(|| {
        let mut conditions = status.conditions.iter().flatten();
        let unscheduled =
            conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status != "True")?;
        Some(format!("{name}: {}", unscheduled.message.as_deref()?))
    })
}

/// A condition that does not hold as it should.
fn link_of(links: &mut Links, link: &'static str, condition: &Condition) {
    let Condition { reason, message, .. } = condition;
    let says = format!("{reason}: {message}");
    let cure = cures::cure(reason);
    if cures::is_progress(reason) {
        links.add(link, State::Waiting, says, cure);
    } else {
        links.broken(link, says, cure.unwrap_or("the message says what is wrong"));
    }
}

fn is_ready(evidence: &DatasetEvidence) -> bool {
    match &evidence.dataset {
        Found::There(dataset) => holds(dataset, READY),
        Found::Nothing => false,
        // What the user cannot see is no excuse for what they can.
        Found::Unknown(_) => true,
    }
}

fn holds(dataset: &Dataset, kind: &str) -> bool {
    let status = dataset.status.as_ref();
    status.and_then(|status| condition(status, kind)).is_some_and(|condition| condition.status == "True")
}

#[cfg(test)]
#[path = "links_tests.rs"]
mod tests;
