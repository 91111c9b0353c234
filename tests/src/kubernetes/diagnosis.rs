//! What does a person want to see of a namespace in which a test has failed?

use serde_json::Value;

use super::cluster::SYSTEM;
use super::namespace::Namespace;
use super::objects::{DATASET, EVENT, Objects, POD, STATEFUL_SET};

/// Lines of each log that are shown, from its end.
const SHOWN_LINES: usize = 40;

/// Prints states, events and logs of a namespace and of Millrace's own pods. Never fails.
pub fn print(namespace: &Namespace<'_>) {
    let objects = &namespace.cluster.objects;
    let name = &namespace.name;
    eprintln!("===== namespace {name}");
    for dataset in list(objects, name, DATASET) {
        eprintln!("--- Dataset {}\n{:#}", text(&dataset["metadata"]["name"]), dataset["status"]);
        eprintln!(
            "deletion: {}, finalizers: {}",
            dataset["metadata"]["deletionTimestamp"], dataset["metadata"]["finalizers"]
        );
    }
    for set in list(objects, name, STATEFUL_SET) {
        eprintln!("--- StatefulSet {}: {}", text(&set["metadata"]["name"]), set["status"]);
    }
    for claim in list(objects, name, "v1/PersistentVolumeClaim") {
        eprintln!("--- PersistentVolumeClaim {}: {}", text(&claim["metadata"]["name"]), claim["status"]);
    }
    for event in list(objects, name, EVENT) {
        let about = &event["involvedObject"];
        eprintln!(
            "event {} {}: {}: {}",
            text(&about["kind"]),
            text(&about["name"]),
            text(&event["reason"]),
            text(&event["message"])
        );
    }
    print_pods(objects, name);
    eprintln!("===== namespace {SYSTEM}");
    print_pods(objects, SYSTEM);
}

fn print_pods(objects: &Objects, namespace: &str) {
    for pod in list(objects, namespace, POD) {
        let name = text(&pod["metadata"]["name"]);
        let node = text(&pod["spec"]["nodeName"]);
        eprintln!("--- Pod {name} on {node}: {}", text(&pod["status"]["phase"]));
        for container in pod["status"]["containerStatuses"].as_array().into_iter().flatten() {
            eprintln!(
                "{}: restarts {}, state {}, last {}",
                text(&container["name"]),
                container["restartCount"],
                container["state"],
                container["lastState"]
            );
            match objects.log(namespace, name, container["name"].as_str()) {
                Ok(log) => eprintln!("{}", tail(&log)),
                Err(error) => eprintln!("no log: {error}"),
            }
        }
    }
}

fn list(objects: &Objects, namespace: &str, kind: &str) -> Vec<Value> {
    objects.try_list(namespace, kind, "").unwrap_or_else(|error| {
        eprintln!("no {kind}: {error}");
        Vec::new()
    })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}
