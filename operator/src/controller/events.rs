//! Which events does a change of the status make? One for each transition, and the status says it too.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource as _;
use kube::runtime::events::{Event, EventType, Recorder};
use millrace_api::dataset::conditions;
use millrace_api::dataset::spec::Dataset;

/// Longest note of an event, bytes: the API's limit.
const MAX_NOTE: usize = 1000;

/// A change that people are told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// The condition's reason.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Whether it is something to look at.
    pub is_warning: bool,
}

/// The transitions from `old` to `new`: conditions whose status or reason is another.
pub fn transitions(old: &[Condition], new: &[Condition]) -> Vec<Transition> {
    let changed = new.iter().filter(|new| {
        let old = old.iter().find(|old| old.type_ == new.type_);
        match old {
            Some(old) => old.status != new.status || old.reason != new.reason,
            // What begins as nothing special is no news.
            None => {
                new.type_ != conditions::DEGRADED && new.type_ != conditions::WARM || new.status == "True"
            }
        }
    });
    changed.map(transition).collect()
}

fn transition(condition: &Condition) -> Transition {
    let waits = [
        "Listing",
        "WaitingForWorkers",
        "WaitingForIndex",
        "WaitingForVolume",
        "Warming",
        "NotAskedFor",
        "Rolling",
        "Deleting",
        "Removing",
        "WaitingForPods",
        "NoWorkers",
    ];
    let is_bad = match condition.type_.as_str() {
        conditions::DEGRADED => condition.status == "True",
        conditions::TERMINATING => false,
        _ => condition.status == "False",
    };
    let message = match condition.message.as_str() {
        "" => format!("{} is {}", condition.type_, condition.status),
        text => format!("{} is {}: {text}", condition.type_, condition.status),
    };
    let reason = condition.reason.clone();
    Transition { is_warning: is_bad && !waits.contains(&reason.as_str()), reason, message }
}

/// Publishes them. One that fails is logged: the status has said it.
pub async fn publish(recorder: &Recorder, dataset: &Dataset, transitions: Vec<Transition>) {
    for Transition { reason, message, is_warning } in transitions {
        let end =
            (0..=MAX_NOTE.min(message.len())).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
        let event = Event {
            type_: if is_warning { EventType::Warning } else { EventType::Normal },
            reason,
            note: Some(message.get(..end).unwrap_or_default().to_owned()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, &dataset.object_ref(&())).await {
            // A namespace that is being deleted takes no events.
            if matches!(&error, kube::Error::Api(status) if is_going(status)) {
                return;
            }
            tracing::warn!(error = %error, reason = event.reason, "event not published");
        }
    }
}

/// Whether the API server refuses because the namespace is being deleted.
pub fn is_going(status: &kube::core::Status) -> bool {
    status.code == 403 && status.message.contains("because it is being terminated")
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    fn condition(kind: &str, status: &str, reason: &str) -> Condition {
        Condition {
            type_: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: "m".into(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::from_second(1).unwrap()),
        }
    }

    #[test]
    fn a_transition_is_told_once_and_with_its_weight() {
        let waiting = [condition("Ready", "False", "WaitingForWorkers")];
        let told = transitions(&[], &waiting);
        assert_eq!((told.len(), told[0].is_warning), (1, false));
        assert_eq!(transitions(&waiting, &waiting), []);
        let refused = [condition("Ready", "False", "QuotaExceeded")];
        assert!(transitions(&waiting, &refused)[0].is_warning);
        let ready = [condition("Ready", "True", "Serving")];
        assert!(!transitions(&refused, &ready)[0].is_warning);
        assert_eq!(transitions(&[], &[condition("Degraded", "False", "Healthy")]), []);
    }
}
