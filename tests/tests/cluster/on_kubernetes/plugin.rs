//! Does `kubectl millrace` tell what is so, and warm, with no more rights than a user has?

use millrace_tests::kubernetes::bucket::{Bucket, Contents};
use millrace_tests::kubernetes::cluster::Cluster;
use millrace_tests::kubernetes::namespace::{Namespace, READY, RUN};
use millrace_tests::kubernetes::plugin::Plugin;
use millrace_tests::kubernetes::readers::{AT_DATA, SUM_ALL};
use serde_json::Value;

#[test]
fn status_shows_numbers_and_conditions() {
    let Some(cluster) = Cluster::shared("status_shows_numbers_and_conditions") else { return };
    let (space, plugin) = (Namespace::new(&cluster), Plugin::new(&cluster));
    let bucket = Bucket::start(&space, Contents::new(3, 100_000));
    space.ready_dataset("data", &bucket, "");
    let list = plugin.text(&["status", "-n", &space.name]);
    assert!(list.starts_with("NAME ") && list.contains("data ") && list.contains("1/1"), "{list}");
    let one = plugin.text(&["status", "data", "-n", &space.name]);
    assert!(one.contains("3 objects") && one.contains("Ready: True"), "{one}");
    let json: Value =
        serde_json::from_str(&plugin.text(&["status", "data", "-n", &space.name, "-o", "json"])).unwrap();
    assert_eq!(json["status"]["version"]["objects"], 3);
    let missing = plugin.run(&["status", "nowhere", "-n", &space.name]);
    assert_eq!(missing.status.code(), Some(1));
}

#[test]
fn why_names_the_broken_link_and_nothing_where_all_holds() {
    let Some(cluster) = Cluster::shared("why_names_the_broken_link_and_nothing_where_all_holds") else {
        return;
    };
    let (space, plugin) = (Namespace::new(&cluster), Plugin::new(&cluster));
    let why = |subject: &str| plugin.why(&space, subject);
    space.pod("early", AT_DATA, None, SUM_ALL);
    let (code, missing) = why("early");
    assert_eq!((code, &missing["broken"]["link"]), (Some(1), &Value::from("dataset")), "{missing:#}");
    let bucket = Bucket::start(&space, Contents::new(3, 100_000));
    let source = bucket.source();
    let wrong = source.replace("bucket: ", "bucket: not-");
    let dataset = |source: &str| {
        format!(
            "apiVersion: millrace.dev/v1alpha1\nkind: Dataset\nmetadata: {{name: data}}\nspec: {{sources: [{source}]}}"
        )
    };
    space.apply(&dataset(&wrong));
    space.wait_for_condition("data", "Indexed", "False");
    for subject in ["early", "dataset/data"] {
        space.wait("millrace.dev/v1alpha1/Dataset", "data", "the origin is named", READY, |_| {
            (why(subject).1["broken"]["link"] == "origin").then_some(())
        });
    }
    space.apply(&dataset(&source));
    space.output("early", RUN);
    let (code, fine) = why("data");
    assert_eq!((code, &fine["broken"]), (Some(0), &Value::Null), "{fine:#}");
    let (code, fine) = why("pod/early");
    assert_eq!((code, &fine["broken"]), (Some(0), &Value::Null), "{fine:#}");
}

#[test]
fn warm_loads_what_is_asked_for_with_the_rights_to_get_and_patch() {
    let Some(cluster) = Cluster::shared("warm_loads_what_is_asked_for_with_the_rights_to_get_and_patch")
    else {
        return;
    };
    let (space, plugin) = (Namespace::new(&cluster), Plugin::new(&cluster));
    let bucket = Bucket::start(&space, Contents::new(20, 1_000_000));
    space.ready_dataset("data", &bucket, "warmUp: {when: Never}");
    space.apply(
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: warmer}, rules: [{apiGroups: [millrace.dev], \
         resources: [datasets], verbs: [get, patch]}]}",
    );
    space.apply(&format!(
        "{{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {{name: warmer}}, roleRef: {{apiGroup: \
         rbac.authorization.k8s.io, kind: Role, name: warmer}}, subjects: [{{kind: ServiceAccount, name: default, namespace: {}}}]}}",
        space.name
    ));
    let token = cluster.kubectl().args(["create", "token", "default", "-n", &space.name]).output().unwrap();
    let token = String::from_utf8(token.stdout).unwrap();
    let view =
        cluster.kubectl().args(["config", "view", "--raw", "--minify", "-o", "json"]).output().unwrap();
    let mut config: Value = serde_json::from_slice(&view.stdout).unwrap();
    config["users"][0]["user"] = serde_json::json!({ "token": token.trim() });
    let file = plugin.dir().join("kubeconfig");
    std::fs::write(&file, config.to_string()).unwrap();
    let file = file.to_str().unwrap();
    let output = plugin.run(&["warm", "data", "/", "-n", &space.name, "--kubeconfig", file]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("100 %"), "{output:?}");
    let dataset = space.get("millrace.dev/v1alpha1/Dataset", "data").unwrap();
    assert_eq!(dataset["status"]["warmUp"]["bytesDone"], dataset["status"]["warmUp"]["bytesTotal"]);
}
