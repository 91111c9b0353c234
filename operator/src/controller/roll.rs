//! Which worker's pod is made anew now? Pure.
//!
//! One at a time, and only while all others serve. A pod whose cache goes with it waits for the user's word: another value of
//! the annotation `millrace.dev/roll` than the pod was made with.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use millrace_api::names;

/// Label by which a StatefulSet's controller says what a pod was made from.
const REVISION_LABEL: &str = "controller-revision-hash";

/// What to do about pods that are made from an older template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Roll {
    /// There are none.
    None,
    /// This one is made anew.
    Delete {
        /// The pod.
        name: String,
        /// Its UID.
        uid: String,
        /// How many are old.
        old: usize,
    },
    /// Others do not serve yet.
    Wait {
        /// How many are old.
        old: usize,
    },
    /// The user has not said so.
    Pending {
        /// How many are old.
        old: usize,
    },
}

/// Decides. `serves` says whether a worker is a member and can answer; `roll` is the user's word.
pub fn roll(
    stateful_set: Option<&StatefulSet>,
    pods: &[Arc<Pod>],
    outlives: bool,
    roll: Option<&str>,
    serves: impl Fn(&str) -> bool,
) -> Roll {
    let Some(status) = stateful_set.and_then(|set| set.status.as_ref()) else { return Roll::None };
    let generation = stateful_set.and_then(|set| set.metadata.generation);
    // Until its controller has seen the newest template, nobody knows which pods are old.
    if status.observed_generation != generation {
        return Roll::None;
    }
    let Some(newest) = status.update_revision.as_deref() else { return Roll::None };
    let is_old =
        |pod: &&Arc<Pod>| pod.labels().get(REVISION_LABEL).is_some_and(|made_from| made_from != newest);
    let old: Vec<&Arc<Pod>> = pods.iter().filter(is_old).collect();
    if old.is_empty() {
        return Roll::None;
    }
    let count = old.len();
    // One that does not even run has nothing to lose, and its new template may be the cure.
    let is_down = |pod: &Pod| {
        pod.metadata.deletion_timestamp.is_none()
            && pod.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Running")
    };
    let delete = |pod: &Arc<Pod>| Roll::Delete {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        old: count,
    };
    if let Some(pod) = old.iter().find(|pod| is_down(pod) || is_crashing(pod)) {
        return delete(pod);
    }
    let may_go = |pod: &Arc<Pod>| {
        let word = pod.annotations().get(names::ROLL_ANNOTATION).map(String::as_str);
        outlives || (roll.is_some() && word != roll)
    };
    if !old.iter().any(|pod| may_go(pod)) {
        return Roll::Pending { old: count };
    }
    let wanted = stateful_set.and_then(|set| set.spec.as_ref()).and_then(|spec| spec.replicas).unwrap_or(1);
    let all_serve = pods.len() >= usize::try_from(wanted).unwrap_or(0)
        && pods.iter().all(|pod| pod.metadata.deletion_timestamp.is_none() && serves(&pod.name_any()));
    match old.iter().rev().find(|pod| may_go(pod)) {
        Some(pod) if all_serve => delete(pod),
        _ => Roll::Wait { old: count },
    }
}

fn is_crashing(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.filter_map(|status| status.state.as_ref()?.waiting.as_ref()).any(|waiting| {
        waiting
            .reason
            .as_deref()
            .is_some_and(|reason| reason != "ContainerCreating" && reason != "PodInitializing")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(generation: i64) -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"name": "w", "generation": 2},
            "spec": {"replicas": 2, "selector": {}, "template": {}, "serviceName": "w"},
            "status": {"observedGeneration": generation, "updateRevision": "new", "replicas": 2},
        }))
        .unwrap()
    }

    fn pod(name: &str, revision: &str, word: Option<&str>, phase: &str) -> Arc<Pod> {
        let mut pod = json!({
            "metadata": {"name": name, "uid": name, "labels": {REVISION_LABEL: revision}},
            "status": {"phase": phase},
        });
        if let Some(word) = word {
            pod["metadata"]["annotations"] = json!({names::ROLL_ANNOTATION: word});
        }
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn deleted(roll: &Roll) -> &str {
        match roll {
            Roll::Delete { name, .. } => name,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pods_whose_cache_outlives_them_go_one_at_a_time() {
        let pods = [pod("w-0", "old", None, "Running"), pod("w-1", "old", None, "Running")];
        assert_eq!(deleted(&roll(Some(&set(2)), &pods, true, None, |_| true)), "w-1");
        assert_eq!(roll(Some(&set(2)), &pods, true, None, |name| name == "w-1"), Roll::Wait { old: 2 });
        assert_eq!(roll(Some(&set(2)), &pods[..1], true, None, |_| true), Roll::Wait { old: 1 });
        assert_eq!(roll(Some(&set(1)), &pods, true, None, |_| true), Roll::None, "not seen yet");
        let done = [pod("w-0", "new", None, "Running")];
        assert_eq!(roll(Some(&set(2)), &done, true, None, |_| true), Roll::None);
    }

    #[test]
    fn others_wait_for_another_word_than_they_were_made_with() {
        let pods = [pod("w-0", "old", Some("a"), "Running"), pod("w-1", "new", Some("b"), "Running")];
        assert_eq!(roll(Some(&set(2)), &pods, false, None, |_| true), Roll::Pending { old: 1 });
        assert_eq!(roll(Some(&set(2)), &pods, false, Some("a"), |_| true), Roll::Pending { old: 1 });
        assert_eq!(deleted(&roll(Some(&set(2)), &pods, false, Some("b"), |_| true)), "w-0");
    }

    #[test]
    fn a_pod_that_does_not_run_has_nothing_to_lose() {
        let pods = [pod("w-0", "old", None, "Pending"), pod("w-1", "old", None, "Running")];
        assert_eq!(deleted(&roll(Some(&set(2)), &pods, false, None, |_| false)), "w-0");
    }
}
