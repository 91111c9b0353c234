//! How do Datasets read on a terminal? Pure.

use std::fmt::Write;

use indicatif::{BinaryBytes, HumanCount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use millrace_api::dataset::conditions::{ACCEPTED, DEGRADED, INDEXED, READY, TERMINATING, WARM};
use millrace_api::dataset::spec::Dataset;
use millrace_api::dataset::status::{DatasetStatus, WarmUpStatus};

use super::cures;

/// A table of Datasets.
pub fn list(datasets: &[Dataset], with_namespace: bool, now: Timestamp) -> String {
    if datasets.is_empty() {
        return "no datasets: write one and `kubectl apply -f` it (`millrace validate -f` checks it first)\n"
            .to_owned();
    }
    let mut rows = vec![
        ["NAMESPACE", "NAME", "READY", "WARM %", "OBJECTS", "SIZE", "WORKERS", "MOUNTS", "AGE"]
            .map(str::to_owned),
    ];
    for dataset in datasets {
        let status = dataset.status.clone().unwrap_or_default();
        let DatasetStatus { version, workers, cached, mounts, .. } = &status;
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        rows.push([
            dataset.namespace().unwrap_or_default(),
            dataset.name_any(),
            or_dash(condition(&status, READY).map(|ready| match ready.status.as_str() {
                "True" => "True".to_owned(),
                other => format!("{other} ({})", ready.reason),
            })),
            or_dash(cached.as_ref().map(|cached| cached.percent.to_string())),
            or_dash(version.as_ref().map(|version| HumanCount(version.objects.cast_unsigned()).to_string())),
            or_dash(version.as_ref().map(|version| BinaryBytes(version.bytes.cast_unsigned()).to_string())),
            or_dash(workers.as_ref().map(|workers| format!("{}/{}", workers.ready, workers.desired))),
            or_dash(mounts.as_ref().map(|mounts| mounts.pods.to_string())),
            or_dash(dataset.creation_timestamp().map(|time| age(time.0, now))),
        ]);
    }
    table(&rows, if with_namespace { 0 } else { 1 })
}

/// All of one Dataset.
pub fn one(dataset: &Dataset, now: Timestamp) -> String {
    let status = dataset.status.clone().unwrap_or_default();
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing into a String does not fail.
        let _ = writeln!(text, "{name}: {value}");
    };
    line("dataset", format!("{}/{}", dataset.namespace().unwrap_or_default(), dataset.name_any()));
    if dataset.metadata.deletion_timestamp.is_some() {
        line("deleting", "yes".to_owned());
    }
    if let Some(behind) = behind(dataset, &status) {
        line("note", behind);
    }
    let DatasetStatus { version, workers, cached, warm_up, mounts, conditions, .. } = &status;
    if let Some(version) = version {
        let objects = HumanCount(version.objects.cast_unsigned());
        let left_out = HumanCount(version.left_out.cast_unsigned());
        let (bytes, age) = (BinaryBytes(version.bytes.cast_unsigned()), age(version.since.0, now));
        line(
            "version",
            format!(
                "{} ({objects} objects, {bytes}, {left_out} keys left out), listed {age} ago",
                version.id
            ),
        );
    }
    if let Some(workers) = workers {
        line("workers", format!("{} of {} serve, epoch {}", workers.ready, workers.desired, workers.epoch));
    }
    if let Some(cached) = cached {
        let (bytes, objects) =
            (BinaryBytes(cached.bytes.cast_unsigned()), HumanCount(cached.objects.cast_unsigned()));
        line("cached", format!("{} %, {bytes}, {objects} objects whole", cached.percent));
    }
    if let Some(WarmUpStatus { bytes_done, bytes_total, objects_failed, .. }) = warm_up {
        let (done, total) =
            (BinaryBytes(bytes_done.cast_unsigned()), BinaryBytes(bytes_total.cast_unsigned()));
        line("warm-up", format!("{done} of {total}, {objects_failed} objects failed"));
    }
    if let Some(mounts) = mounts {
        line("mounted", format!("by {} pods on {} nodes", mounts.pods, mounts.nodes));
    }
    for Condition { type_, status, reason, message, .. } in conditions {
        line(type_, format!("{status} ({reason}{}{message})", if message.is_empty() { "" } else { ": " }));
        let is_bad = (status == "True") == (type_ == DEGRADED);
        if let Some(cure) = cures::cure(reason).filter(|_| is_bad) {
            line("  cure", cure.to_owned());
        }
    }
    for failure in warm_up.iter().flat_map(|warm_up| &warm_up.failures) {
        line("warm-up failed", format!("{}: {}", failure.key, failure.reason));
    }
    text
}

/// A condition of this type.
pub fn condition<'s>(status: &'s DatasetStatus, kind: &str) -> Option<&'s Condition> {
    debug_assert!([ACCEPTED, INDEXED, READY, WARM, DEGRADED, TERMINATING].contains(&kind), "{kind}");
    status.conditions.iter().find(|condition| condition.type_ == kind)
}

/// Says so where the status is not about the spec as it is.
pub fn behind(dataset: &Dataset, status: &DatasetStatus) -> Option<String> {
    match (status.observed_generation, dataset.metadata.generation) {
        (None, _) => Some(
            "the operator has not looked at it yet: see `kubectl -n millrace-system get pods` where this lasts".to_owned(),
        ),
        (Some(seen), Some(is)) if seen < is => {
            Some(format!("what follows is of generation {seen}; the operator has not looked at {is} yet"))
        }
        (Some(_), _) => None,
    }
}

/// As kubectl prints ages.
fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn table<const N: usize>(rows: &[[String; N]], from: usize) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.len()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).skip(from).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("   ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A Dataset `vision/imagenet` with this status.
    pub fn dataset(status: Value) -> Dataset {
        serde_json::from_value(json!({
            "apiVersion": "millrace.dev/v1alpha1", "kind": "Dataset",
            "metadata": {
                "name": "imagenet", "namespace": "vision", "uid": "u-1", "generation": 2,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"sources": [{"path": "/", "s3": {"bucket": "imagenet", "region": "r"}}]},
            "status": status,
        }))
        .unwrap()
    }

    /// A condition as it is in JSON.
    pub fn holds(kind: &str, status: &str, reason: &str, message: &str) -> Value {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    }

    fn now() -> Timestamp {
        "2026-01-01T03:00:00Z".parse().unwrap()
    }

    fn full() -> Value {
        json!({
            "observedGeneration": 2,
            "conditions": [
                holds("Ready", "False", "Unschedulable", "0/3 nodes are available"),
                holds("Degraded", "False", "Healthy", ""),
            ],
            "version": {"id": "6f1c", "objects": 1281167, "bytes": 1024, "leftOut": 2, "since": "2026-01-01T02:59:00Z"},
            "workers": {"desired": 3, "replicas": 3, "ready": 1, "selector": "a=b", "epoch": 7},
            "cached": {"bytes": 512, "percent": 50, "objects": 9},
            "warmUp": {
                "bytesDone": 512, "bytesTotal": 1024, "objectsFailed": 1,
                "failures": [{"key": "a.jpg", "reason": "NoSuchKey"}],
            },
            "mounts": {"nodes": 2, "pods": 5},
        })
    }

    #[test]
    fn a_list_has_a_line_for_each_dataset() {
        let text = list(&[dataset(full()), dataset(json!({}))], false, now());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("NAME ") && !text.contains("vision"), "{text}");
        let cells: Vec<&str> = lines[1].split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let expected = ["imagenet", "False (Unschedulable)", "50", "1,281,167", "1.00 KiB", "1/3", "5", "3h"];
        assert_eq!(cells, expected);
        assert!(lines[2].contains(" -  "), "{text}");
        assert!(list(&[dataset(full())], true, now()).contains("vision"));
        assert!(list(&[], false, now()).contains("kubectl apply"));
    }

    #[test]
    fn one_dataset_is_told_with_conditions_cures_and_failures() {
        let text = one(&dataset(full()), now());
        for line in [
            "dataset: vision/imagenet",
            "version: 6f1c (1,281,167 objects, 1.00 KiB, 2 keys left out), listed 60s ago",
            "workers: 1 of 3 serve, epoch 7",
            "mounted: by 5 pods on 2 nodes",
            "Ready: False (Unschedulable: 0/3 nodes are available)",
            "  cure: make room on nodes",
            "Degraded: False (Healthy)",
            "warm-up failed: a.jpg: NoSuchKey",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert_eq!(text.matches("cure").count(), 1);
    }

    #[test]
    fn a_status_of_an_older_spec_is_told_as_such() {
        assert!(one(&dataset(json!({})), now()).contains("has not looked at it yet"));
        assert!(one(&dataset(json!({"observedGeneration": 1})), now()).contains("of generation 1"));
    }
}
