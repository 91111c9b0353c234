//! Does a pod see its datasets afterwards, and is all else as it was?

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn pod(value: &Value) -> Pod {
    serde_json::from_value(value.clone()).unwrap()
}

/// The pod as the API server has it after the patch.
fn mutated(value: &Value) -> Value {
    let mutation = mutate(&pod(value)).unwrap();
    let mut changed = value.clone();
    json_patch::patch(&mut changed, &mutation.patch).unwrap();
    // What the API server would refuse to decode is no pod.
    let _: Pod = serde_json::from_value(changed.clone()).unwrap();
    changed
}

fn refusal(value: &Value) -> String {
    mutate(&pod(value)).unwrap_err().to_string()
}

fn annotated(datasets: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "train", "annotations": {POD_DATASET_ANNOTATION: datasets}},
        "spec": spec,
    })
}

fn plain(datasets: &str) -> Value {
    annotated(datasets, json!({"containers": [{"name": "main", "image": "x"}]}))
}

#[test]
fn a_plain_pod_gets_volume_mount_affinity_and_label() {
    assert_eq!(
        mutated(&plain("imagenet=/data")),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "train",
                "annotations": {"millrace.dev/dataset": "imagenet=/data"},
                "labels": {"millrace.dev/consumer": "true"},
            },
            "spec": {
                "containers": [{
                    "name": "main", "image": "x",
                    "volumeMounts": [{
                        "name": "millrace-imagenet", "mountPath": "/data", "readOnly": true,
                        "mountPropagation": "HostToContainer",
                    }],
                }],
                "volumes": [{
                    "name": "millrace-imagenet",
                    "persistentVolumeClaim": {"claimName": "imagenet", "readOnly": true},
                }],
                "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                    "weight": 1,
                    "podAffinityTerm": {
                        "labelSelector": {"matchLabels": {
                            "app.kubernetes.io/component": "cache-worker", "millrace.dev/dataset": "imagenet",
                        }},
                        "topologyKey": "kubernetes.io/hostname",
                    },
                }]}},
            },
        })
    );
}

#[test]
fn parts_of_one_dataset_are_mounts_of_one_volume() {
    let spec = json!({
        "initContainers": [{"name": "prepare", "image": "x"}],
        "containers": [{"name": "main", "image": "x"}, {"name": "side", "image": "x", "volumeMounts": []}],
    });
    let pod = mutated(&annotated("imagenet/train=/a,imagenet/val=/b,other=/x", spec));
    let volumes: Vec<&str> = pod["spec"]["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str().unwrap())
        .collect();
    assert_eq!(volumes, ["imagenet", "other"]);
    for container in ["/spec/initContainers/0", "/spec/containers/0", "/spec/containers/1"] {
        let mounts = pod.pointer(&format!("{container}/volumeMounts")).unwrap().as_array().unwrap();
        let seen: Vec<_> = mounts
            .iter()
            .map(|mount| (mount["mountPath"].as_str().unwrap(), mount.get("subPath").and_then(Value::as_str)))
            .collect();
        assert_eq!(seen, [("/a", Some("train")), ("/b", Some("val")), ("/x", None)], "{container}");
    }
    let terms = &pod["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(terms.as_array().unwrap().len(), 2);
}

#[test]
fn only_chosen_containers_get_the_mounts() {
    let mut value = annotated(
        "d=/data",
        json!({"initContainers": [{"name": "prepare"}], "containers": [{"name": "main"}, {"name": "side"}]}),
    );
    value["metadata"]["annotations"][POD_CONTAINERS_ANNOTATION] = json!("prepare, side");
    let pod = mutated(&value);
    assert!(pod.pointer("/spec/initContainers/0/volumeMounts/0").is_some());
    assert!(pod.pointer("/spec/containers/0/volumeMounts").is_none());
    assert!(pod.pointer("/spec/containers/1/volumeMounts/0").is_some());
    value["metadata"]["annotations"][POD_CONTAINERS_ANNOTATION] = json!("main,loader");
    assert_eq!(
        refusal(&value),
        "annotation millrace.dev/containers: the pod has no container \"loader\"; it has [\"prepare\", \"main\", \"side\"]"
    );
}

#[test]
fn the_pods_own_is_kept_and_ours_comes_beside_it() {
    let own_term = json!({
        "weight": 50,
        "podAffinityTerm": {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "zone"},
    });
    let spec = json!({
        "containers": [{
            "name": "main",
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        }],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]},
            ]}},
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [own_term["podAffinityTerm"]],
                "preferredDuringSchedulingIgnoredDuringExecution": [own_term],
            },
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [own_term["podAffinityTerm"]]},
        },
        "hostNetwork": true,
        "aFieldOfTheFuture": {"x": 1},
    });
    let before = annotated("d=/data", spec);
    let after = mutated(&before);
    for kept in ["/spec/affinity/nodeAffinity", "/spec/affinity/podAntiAffinity", "/spec/aFieldOfTheFuture"] {
        assert_eq!(before.pointer(kept), after.pointer(kept), "{kept}");
    }
    let affinity = &after["spec"]["affinity"]["podAffinity"];
    assert_eq!(
        affinity["requiredDuringSchedulingIgnoredDuringExecution"],
        json!([own_term["podAffinityTerm"]])
    );
    let preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"].as_array().unwrap();
    assert_eq!((preferred.len(), &preferred[0], &preferred[1]["weight"]), (2, &own_term, &json!(1)));
    assert_eq!(after["spec"]["volumes"][0], before["spec"]["volumes"][0]);
    assert_eq!(after["spec"]["containers"][0]["volumeMounts"][0]["name"], "scratch");
}

#[test]
fn affinity_is_made_where_only_a_part_of_it_is_there() {
    for affinity in [json!({}), json!({"podAffinity": {}}), json!({"podAntiAffinity": {}})] {
        let after =
            mutated(&annotated("d=/data", json!({"containers": [{"name": "m"}], "affinity": affinity})));
        let preferred = "/spec/affinity/podAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/weight";
        assert_eq!(after.pointer(preferred), Some(&json!(1)), "{affinity}");
    }
}

#[test]
fn a_pod_that_comes_by_again_is_not_changed() {
    let once = mutated(&plain("imagenet/train=/a,other=/x"));
    assert_eq!(mutate(&pod(&once)).unwrap(), Mutation::default());
}

#[test]
fn a_container_that_another_webhook_adds_gets_its_mounts_the_second_time() {
    let mut once = mutated(&plain("d=/data"));
    once["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "injected"}));
    let twice = mutated(&once);
    assert_eq!(twice["spec"]["containers"][1]["volumeMounts"][0]["mountPath"], "/data");
    assert_eq!(twice["spec"]["containers"][0], once["spec"]["containers"][0]);
    assert_eq!(twice["spec"]["volumes"], once["spec"]["volumes"]);
}

#[test]
fn clashes_with_the_pods_own_are_refused() {
    let taken = json!({"containers": [{"name": "m"}], "volumes": [{"name": "millrace-d", "emptyDir": {}}]});
    assert!(
        refusal(&annotated("d=/data", taken))
            .contains("has a volume \"millrace-d\" that is not the claim \"d\"")
    );
    let other = json!({
        "containers": [{"name": "m"}],
        "volumes": [{"name": "millrace-d", "persistentVolumeClaim": {"claimName": "mine"}}],
    });
    assert!(refusal(&annotated("d=/data", other)).contains("rename the pod's volume"));
    let path = json!({
        "containers": [{"name": "m", "volumeMounts": [{"name": "scratch", "mountPath": "/data/"}]}],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    });
    assert_eq!(
        refusal(&annotated("d/train=/data", path)),
        "annotation millrace.dev/dataset: container \"m\" mounts volume \"scratch\" at \"/data\" already: choose another path for \
         \"d/train\", or take that mount away"
    );
    let part = json!({
        "containers": [{"name": "m", "volumeMounts": [
            {"name": "millrace-d", "mountPath": "/data", "subPath": "val", "readOnly": true},
        ]}],
    });
    assert!(refusal(&annotated("d/train=/data", part)).contains("already"));
    let windows = json!({"containers": [{"name": "m"}], "os": {"name": "windows"}});
    assert!(refusal(&annotated("d=/data", windows)).contains("Linux nodes only"));
}

#[test]
fn a_wrong_annotation_is_refused_with_the_right_form() {
    let refusal = refusal(&plain("imagenet"));
    assert!(
        refusal.starts_with("annotation millrace.dev/dataset: \"imagenet\" does not say where")
            && refusal.contains("\"imagenet=/data\""),
        "{refusal}"
    );
}

#[test]
fn pods_without_the_annotation_and_static_pods_are_left_alone() {
    let without = json!({"metadata": {}, "spec": {"containers": [{"name": "m"}]}});
    assert_eq!(mutate(&pod(&without)).unwrap(), Mutation::default());
    let mut copy = plain("d=/data");
    copy["metadata"]["annotations"][MIRROR_POD_ANNOTATION] = json!("hash");
    let mutation = mutate(&pod(&copy)).unwrap();
    assert!(mutation.patch.0.is_empty() && mutation.warnings[0].contains("static pods"));
}

#[test]
fn a_mount_within_a_dataset_is_warned_of() {
    let spec = json!({
        "containers": [{"name": "m", "volumeMounts": [{"name": "scratch", "mountPath": "/data/tmp"}]}],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    });
    let mutation = mutate(&pod(&annotated("d=/data", spec))).unwrap();
    assert!(mutation.warnings[0].contains("\"/data/tmp\", within dataset \"d\""), "{:?}", mutation.warnings);
}

proptest! {
    #[test]
    fn once_is_enough_for_any_pod(
        containers in 1usize..4,
        inits in 0usize..3,
        mounts in proptest::collection::btree_map("/[a-z]{1,6}", "[a-z]{1,4}(/[a-z]{1,4})?", 1..5),
        has_volumes in any::<bool>(),
        affinity in 0usize..3,
    ) {
        let list = |prefix: &str, count| -> Vec<Value> {
            (0..count).map(|at| json!({"name": format!("{prefix}{at}")})).collect()
        };
        let annotation: Vec<String> = mounts.iter().map(|(path, source)| format!("{source}={path}")).collect();
        let mut spec = json!({"containers": list("c", containers), "initContainers": list("i", inits)});
        if has_volumes {
            spec["volumes"] = json!([{"name": "own", "emptyDir": {}}]);
        }
        spec["affinity"] = [Value::Null, json!({}), json!({"podAffinity": {}})][affinity].clone();
        let before = annotated(&annotation.join(","), spec);
        let once = mutated(&before);
        prop_assert_eq!(mutate(&pod(&once)).unwrap(), Mutation::default());
        for at in 0..containers {
            let there = once["spec"]["containers"][at]["volumeMounts"].as_array().map_or(0, Vec::len);
            prop_assert_eq!(there, mounts.len());
        }
    }
}
