//! Does a pod hang because a key Secret of its Dataset is gone? Pure.
//!
//! The operator may create Secrets but not look at any, so it learns of one that was deleted from kubelet, which says so in an
//! event of the pod that cannot start: a consumer, whose volume names the data key, or a worker, which mounts both keys.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Event;
use kube::runtime::watcher;
use millrace_api::names::{control_secret, data_secret};
use millrace_daemon::causes::with_causes;

use super::waiting::Datasets;

/// An event that is older says nothing about now: kubelet tries a mount again at least every two minutes.
const NEWS: SignedDuration = SignedDuration::from_mins(5);

/// A Dataset of which a Secret with keys is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingKeys {
    /// The Dataset's namespace.
    pub namespace: String,
    /// Its name.
    pub dataset: String,
}

/// What the watch of kubelet's mount failures says.
pub fn from_watch(
    change: Result<watcher::Event<Event>, watcher::Error>,
    datasets: &Datasets,
    now: Timestamp,
) -> Option<MissingKeys> {
    match change {
        Ok(watcher::Event::InitApply(event) | watcher::Event::Apply(event)) => missing(&event, datasets, now),
        Ok(watcher::Event::Init | watcher::Event::InitDone | watcher::Event::Delete(_)) => None,
        Err(error) => {
            tracing::warn!(error = with_causes(&error), "mount failures not watched");
            None
        }
    }
}

fn missing(event: &Event, datasets: &Datasets, now: Timestamp) -> Option<MissingKeys> {
    let message = event.message.as_deref()?;
    // As in `secret "millrace-x-control" not found` and `secrets "millrace-x-data" not found`.
    if !message.contains("\" not found") {
        return None;
    }
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let last = [
        event.last_timestamp.as_ref().map(|time| time.0),
        event.event_time.as_ref().map(|time| time.0),
        series.map(|time| time.0),
    ];
    let is_news = last.into_iter().flatten().max().is_none_or(|last| now.duration_since(last) < NEWS);
    let namespace = event.involved_object.namespace.as_deref().filter(|_| is_news)?;
    let names = datasets.keys().filter(|(of, _)| of == namespace).map(|(_, name)| name);
    let is_missing = |secret: String| message.contains(&format!("\"{secret}\" not found"));
    let dataset =
        names.into_iter().find(|name| is_missing(data_secret(name)) || is_missing(control_secret(name)))?;
    Some(MissingKeys { namespace: namespace.to_owned(), dataset: dataset.clone() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::consumers::waiting::DatasetState;

    fn event(message: &str, last: &str) -> Event {
        serde_json::from_value(json!({
            "metadata": {"name": "e", "namespace": "vision"},
            "involvedObject": {"kind": "Pod", "namespace": "vision", "name": "train"},
            "reason": "FailedMount", "message": message, "lastTimestamp": last,
        }))
        .unwrap()
    }

    fn found(event: &Event) -> Option<String> {
        let names = [("vision", "imagenet"), ("vision", "imagenet-data"), ("other", "x")];
        let datasets = names
            .into_iter()
            .map(|(namespace, name)| ((namespace.to_owned(), name.to_owned()), DatasetState::Ready))
            .collect();
        missing(event, &datasets, "2026-01-01T00:10:00Z".parse().unwrap()).map(|missing| missing.dataset)
    }

    #[test]
    fn kubelets_words_for_a_missing_key_name_the_dataset() {
        let now = "2026-01-01T00:09:00Z";
        for message in [
            "MountVolume.SetUp failed for volume \"millrace-1\" : fetching NodePublishSecretRef vision/millrace-imagenet-data \
             failed: kubernetes.io/csi: failed to find the secret millrace-imagenet-data in the namespace vision with error: \
             secrets \"millrace-imagenet-data\" not found",
            "MountVolume.SetUp failed for volume \"keys\" : secret \"millrace-imagenet-control\" not found",
        ] {
            assert_eq!(found(&event(message, now)).as_deref(), Some("imagenet"), "{message}");
        }
        assert_eq!(found(&event("secret \"imagenet-s3\" not found", now)), None);
        assert_eq!(found(&event("secret \"millrace-x-data\" not found", now)), None);
        assert_eq!(found(&event("mount timed out", now)), None);
    }

    #[test]
    fn old_news_is_none() {
        let message = "secret \"millrace-imagenet-control\" not found";
        assert_eq!(found(&event(message, "2026-01-01T00:01:00Z")), None);
    }
}
