//! What may Millrace do in a cluster, and for what does it ask there?

use std::collections::BTreeSet;

use millrace_tests::kubernetes::audit::{Audit, Request};
use millrace_tests::kubernetes::cluster::Cluster;
use serde_json::Value;

#[test]
fn the_rules_are_few_and_have_no_wildcard() {
    let Some(cluster) = Cluster::shared("the_rules_are_few_and_have_no_wildcard") else { return };
    let mut rules = BTreeSet::new();
    let roles = cluster.objects.list(
        "",
        "rbac.authorization.k8s.io/v1/ClusterRole",
        "app.kubernetes.io/name=millrace",
    );
    for role in &roles {
        let name = role["metadata"]["name"].as_str().unwrap();
        for rule in role["rules"].as_array().into_iter().flatten() {
            for (resource, verb) in pairs(rule) {
                rules.insert(format!("{name}: {verb} {resource}"));
            }
        }
    }
    println!("{rules:#?}");
    assert!(!rules.is_empty(), "no ClusterRole of the chart is there");
    let all: Vec<&str> = rules.iter().map(String::as_str).collect();
    assert!(all.iter().all(|rule| !rule.contains('*')), "a wildcard: {all:#?}");
    assert!(all.iter().all(|rule| !rule.contains("pods/exec")), "exec: {all:#?}");
    let secrets: Vec<&&str> = all.iter().filter(|rule| rule.ends_with(" secrets")).collect();
    assert!(
        secrets.iter().all(|rule| rule.contains(": create ")),
        "more than create on Secrets: {secrets:#?}"
    );
}

fn pairs(rule: &Value) -> Vec<(String, String)> {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let verbs = texts(&rule["verbs"]);
    let groups = texts(&rule["apiGroups"]);
    let resources = texts(&rule["resources"]);
    let named = groups.iter().any(|group| group == "*");
    let mut pairs = Vec::new();
    for verb in verbs {
        for resource in &resources {
            let resource = if named { format!("*/{resource}") } else { resource.clone() };
            pairs.push((resource, verb.clone()));
        }
    }
    pairs
}

#[test]
fn only_what_is_ours_is_listed_and_watched_but_for_datasets() {
    let Some(cluster) = Cluster::shared("only_what_is_ours_is_listed_and_watched_but_for_datasets") else {
        return;
    };
    let requests = Audit::whole(&cluster).requests();
    let of_many = |request: &&Request| ["list", "watch"].contains(&request.verb.as_str());
    let whole: BTreeSet<&Request> = requests
        .iter()
        .filter(of_many)
        .filter(|request| !request.has_selector && request.resource != "millrace.dev/datasets")
        // Who uses the claim of a Dataset that is deleted: any pod of its namespace may.
        .filter(|request| request.resource != "pods" || request.namespace.is_empty())
        .collect();
    assert!(whole.is_empty(), "{whole:#?}");
    assert!(requests.iter().filter(of_many).any(|request| request.has_selector), "nothing was watched");
}
