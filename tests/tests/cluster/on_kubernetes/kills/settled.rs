//! Is everything as the users want it: all that is there, nothing that is not, nothing twice?

use std::collections::{BTreeMap, BTreeSet};

use millrace_api::names;
use millrace_tests::kubernetes::namespace::Namespace;
use millrace_tests::kubernetes::objects::{DATASET, POD, STATEFUL_SET, condition};
use serde_json::{Value, json};

use super::CONTENTS;
use super::crowd::{BUDGET, CLAIM, SECRET, SERVICE, Wanted, text};

const VOLUME: &str = "v1/PersistentVolume";

/// Objects of ours, by kind.
type Found = BTreeMap<&'static str, Vec<Value>>;

/// Says what is not settled yet.
pub fn look(space: &Namespace<'_>, all: &mut [Wanted]) -> Result<(), String> {
    let datasets = by_name(space.list(DATASET, ""));
    let names: Vec<&String> = datasets.keys().collect();
    let mut wanted: Vec<&String> = all.iter().map(|wanted| &wanted.name).collect();
    wanted.sort();
    check(names == wanted, || format!("Datasets are {names:?}, not {wanted:?}"))?;
    let found = found(space);
    let uids: BTreeSet<&str> = all.iter().map(|wanted| wanted.uid.as_str()).collect();
    for (kind, object) in found.iter().flat_map(|(kind, list)| list.iter().map(move |object| (kind, object)))
    {
        let is_wanted = uids.contains(uid_label(object).as_str());
        check(is_wanted, || format!("{kind} {} belongs to no Dataset", object["metadata"]["name"]))?;
    }
    for wanted in all {
        objects(&found, wanted).and_then(|()| status(&datasets[&wanted.name], wanted)).map_err(|error| {
            format!("{}: {error}; its status: {}", wanted.name, datasets[&wanted.name]["status"])
        })?;
    }
    Ok(())
}

fn found(space: &Namespace<'_>) -> Found {
    let labels = format!("{},{}", names::MANAGED_SELECTOR, names::DATASET_UID_LABEL);
    let kinds = [STATEFUL_SET, SERVICE, BUDGET, CLAIM, SECRET, POD];
    let mut found: Found = kinds.into_iter().map(|kind| (kind, space.list(kind, &labels))).collect();
    let mut volumes = space.list(VOLUME, &labels);
    volumes.retain(|volume| volume["spec"]["claimRef"]["namespace"] == space.name.as_str());
    found.insert(VOLUME, volumes);
    found
}

fn objects(found: &Found, wanted: &mut Wanted) -> Result<(), String> {
    let workers = names::workers(&wanted.name);
    let replicas = u32::try_from(wanted.replicas).unwrap();
    let expected: [(&str, Vec<String>); 7] = [
        (STATEFUL_SET, vec![workers.clone()]),
        (SERVICE, vec![workers.clone()]),
        (BUDGET, vec![workers]),
        (CLAIM, vec![names::claim(&wanted.name).to_owned()]),
        (SECRET, vec![names::control_secret(&wanted.name), names::data_secret(&wanted.name)]),
        (VOLUME, vec![names::volume(&wanted.uid)]),
        (POD, (0..replicas).map(|ordinal| names::worker_pod(&wanted.name, ordinal)).collect()),
    ];
    let mut shape = BTreeMap::new();
    for (kind, names) in expected {
        let ours: Vec<&Value> = found[kind].iter().filter(|object| uid_label(object) == wanted.uid).collect();
        let mut there: Vec<String> = ours.iter().map(|object| text(&object["metadata"]["name"])).collect();
        there.sort();
        check(there == names, || format!("{kind}: {there:?}, not {names:?}"))?;
        for object in ours {
            let metadata = &object["metadata"];
            let is_going =
                !metadata["deletionTimestamp"].is_null() || wanted.deleted.contains(&text(&metadata["uid"]));
            check(!is_going, || format!("{kind} {} is going", metadata["name"]))?;
            if kind == POD {
                let is_ready = condition(object, "Ready").is_some_and(|ready| ready.0 == "True");
                check(is_ready, || format!("pod {} is not ready", metadata["name"]))?;
            } else {
                shape.insert(format!("{kind} {}", metadata["name"]), essence(kind, object));
            }
        }
        if kind == STATEFUL_SET {
            let found = &found[kind].iter().find(|set| uid_label(set) == wanted.uid).unwrap()["spec"];
            check(found["replicas"] == wanted.replicas, || {
                format!("its StatefulSet has {}", found["replicas"])
            })?;
        }
    }
    match &wanted.shape {
        Some(former) => {
            check(*former == shape, || format!("its objects are {shape:?} and were once {former:?}"))
        }
        None => {
            wanted.shape = Some(shape);
            Ok(())
        }
    }
}

/// What of an object must stay the same for as long as its Dataset lives.
fn essence(kind: &str, object: &Value) -> Value {
    let mut spec = object["spec"].clone();
    match kind {
        STATEFUL_SET => spec["replicas"] = json!(null),
        VOLUME => spec["claimRef"] = json!(spec["claimRef"]["name"]),
        SECRET => spec = object["data"].clone(),
        _ => {}
    }
    json!({"spec": spec, "labels": object["metadata"]["labels"], "owners": object["metadata"]["ownerReferences"]})
}

fn status(dataset: &Value, wanted: &Wanted) -> Result<(), String> {
    let (metadata, status) = (&dataset["metadata"], &dataset["status"]);
    check(metadata["uid"] == wanted.uid.as_str(), || "it is another Dataset".to_owned())?;
    check(metadata["deletionTimestamp"].is_null(), || "it is being deleted".to_owned())?;
    check(metadata["finalizers"] == json!([names::FINALIZER]), || {
        format!("finalizers {}", metadata["finalizers"])
    })?;
    check(status["observedGeneration"] == metadata["generation"], || "status of a former spec".to_owned())?;
    for (kind, holds) in
        [("Accepted", true), ("Indexed", true), ("Ready", true), ("Warm", true), ("Degraded", false)]
    {
        let found = condition(dataset, kind);
        let is_so = found.is_some_and(|found| (found.0 == "True") == holds);
        check(is_so, || format!("condition {kind} is {found:?}"))?;
    }
    check(condition(dataset, "Terminating").is_none(), || "it is said to end".to_owned())?;
    let (workers, count) = (&status["workers"], json!(wanted.replicas));
    let is_so = ["desired", "replicas", "ready"].iter().all(|name| workers[name] == count);
    check(is_so, || format!("workers are {workers}, not {count}"))?;
    check(status["version"]["objects"] == CONTENTS.objects, || "its version has other objects".to_owned())?;
    let refresh = status["version"]["refresh"].as_str();
    let asked = wanted.refresh.as_deref();
    check(asked.is_none() || refresh == asked, || format!("refreshed for {refresh:?}, not {asked:?}"))?;
    let warmed = status["warmUp"]["completedId"].as_str();
    check(warmed == wanted.warm.as_deref(), || format!("warmed for {warmed:?}, not {:?}", wanted.warm))
}

fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    objects.into_iter().map(|object| (text(&object["metadata"]["name"]), object)).collect()
}

fn uid_label(object: &Value) -> String {
    text(&object["metadata"]["labels"][names::DATASET_UID_LABEL])
}

fn check(is_so: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(otherwise()) }
}
