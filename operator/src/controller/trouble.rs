//! What keeps workers from running, in words that say what to do? Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;
use millrace_api::dataset::conditions::reason;

/// Longest text of somebody else in a message.
const MAX_CHARS: usize = 600;

/// A warning about the StatefulSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The event's.
    pub reason: String,
    /// The event's.
    pub message: String,
}

/// What keeps workers from running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// A reason of `Ready`.
    pub reason: &'static str,
    /// In words.
    pub message: String,
}

/// Why the API server refuses to make pods.
pub fn of_refusal(refusal: &Refusal) -> Trouble {
    let message = &refusal.message;
    let (reason, cure) = if message.contains("exceeded quota") || message.contains("failed quota") {
        (reason::QUOTA_EXCEEDED, "raise the ResourceQuota of the namespace, or ask for less in spec.workers")
    } else if message.contains("violates PodSecurity") {
        (
            reason::POD_SECURITY,
            "workers need nothing beyond the restricted level: check spec.workers.template",
        )
    } else if message.contains("per Container")
        || message.contains("per Pod")
        || message.contains("limit to request ratio")
    {
        (reason::LIMIT_RANGE, "set spec.workers.template.resources within the LimitRange of the namespace")
    } else {
        (reason::REFUSED, "")
    };
    let cure = if cure.is_empty() { String::new() } else { format!("; {cure}") };
    Trouble { reason, message: format!("workers cannot be created: {}{cure}", shortened(message)) }
}

/// Why a pod that exists does not run.
pub fn of_pod(pod: &Pod) -> Option<Trouble> {
    let name = pod.name_any();
    let status = pod.status.as_ref()?;
    let trouble = |reason, message: String| Some(Trouble { reason, message });
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(condition) = unscheduled {
        let why = condition.message.as_deref().unwrap_or("no node takes it");
        return trouble(reason::UNSCHEDULABLE, format!("worker {name} finds no node: {}", shortened(why)));
    }
    let container = status.container_statuses.iter().flatten().next()?;
    let state = container.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let why = waiting.message.as_deref().unwrap_or_default();
        return match waiting.reason.as_deref().unwrap_or_default() {
            kind @ ("ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull") => {
                trouble(
                    reason::IMAGE_PULL,
                    format!(
                        "worker {name} gets no image ({kind}): {}; check the image and spec.workers.template.imagePullSecrets",
                        shortened(why)
                    ),
                )
            }
            "CrashLoopBackOff" => trouble(
                reason::WORKER_CRASHES,
                format!("worker {name} ends again and again: {}", last_words(container)),
            ),
            kind @ ("CreateContainerConfigError" | "CreateContainerError" | "RunContainerError") => trouble(
                reason::WORKER_CRASHES,
                format!("worker {name} cannot start ({kind}): {}", shortened(why)),
            ),
            _ => None,
        };
    }
    let failed = state.terminated.as_ref().is_some_and(|terminated| terminated.exit_code != 0);
    failed.then(|| Trouble {
        reason: reason::WORKER_CRASHES,
        message: format!("worker {name} has ended: {}", last_words(container)),
    })
}

/// The first trouble of pods.
pub fn of_pods(pods: &[Arc<Pod>]) -> Option<Trouble> {
    pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).find_map(|pod| of_pod(pod))
}

/// Whether a pod has waited for its volumes, which a missing Secret would make it do.
pub fn waits_for_volumes(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let is_scheduled = status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "PodScheduled" && condition.status == "True");
    let waiting = status
        .container_statuses
        .iter()
        .flatten()
        .next()
        .and_then(|container| container.state.as_ref().and_then(|state| state.waiting.as_ref()));
    is_scheduled
        && status.phase.as_deref() == Some("Pending")
        && waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("ContainerCreating"))
}

fn last_words(container: &ContainerStatus) -> String {
    let states = [container.state.as_ref(), container.last_state.as_ref()];
    let ended = states.into_iter().flatten().find_map(|state| state.terminated.as_ref());
    match ended {
        Some(ended) => {
            let words = ended.message.as_deref().unwrap_or_default().trim();
            let words = words.lines().last().unwrap_or_default();
            let reason = ended.reason.as_deref().unwrap_or("Error");
            format!("exit code {} ({reason}) {}", ended.exit_code, shortened(words))
        }
        None => "its log says why".to_owned(),
    }
}

/// Somebody else's text, bounded.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(status: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "w-0"}, "status": status})).unwrap()
    }

    #[test]
    fn refusals_are_told_apart_and_name_the_cure() {
        for (message, reason) in [
            ("pods \"w-0\" is forbidden: exceeded quota: small, requested: memory=1Gi", "QuotaExceeded"),
            ("pods \"w-0\" is forbidden: violates PodSecurity \"restricted:latest\"", "PodSecurity"),
            ("pods \"w-0\" is forbidden: maximum memory usage per Container is 64Mi", "LimitRange"),
            ("pods \"w-0\" is forbidden: error looking up service account", "Refused"),
        ] {
            let refusal = Refusal { reason: "FailedCreate".into(), message: message.into() };
            let trouble = of_refusal(&refusal);
            assert_eq!(trouble.reason, reason);
            assert!(trouble.message.contains(message), "{}", trouble.message);
        }
    }

    #[test]
    fn a_pod_says_why_it_does_not_run() {
        let unscheduled = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"},
        ]});
        let found = of_pod(&pod(unscheduled)).unwrap();
        assert_eq!(found.reason, "Unschedulable");
        assert!(found.message.contains("0/3 nodes"));
        let container = |state, last| {
            json!({"phase": "Pending", "containerStatuses": [{
                "name": "worker", "image": "i", "imageID": "", "ready": false, "restartCount": 1,
                "state": state, "lastState": last,
            }]})
        };
        let image =
            container(json!({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}), json!({}));
        assert_eq!(of_pod(&pod(image)).unwrap().reason, "ImagePull");
        let last =
            json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "a\ncache-worker: no key"}});
        let crash = container(json!({"waiting": {"reason": "CrashLoopBackOff"}}), last);
        assert!(of_pod(&pod(crash)).unwrap().message.contains("exit code 1 (Error) cache-worker: no key"));
        let creating = container(json!({"waiting": {"reason": "ContainerCreating"}}), json!({}));
        assert_eq!(of_pod(&pod(creating)), None);
    }
}
