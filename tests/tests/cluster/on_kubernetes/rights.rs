//! What may Millrace do in a cluster, and what does it do there unasked?

use std::collections::BTreeSet;
use std::time::Duration;

use millrace_tests::kubernetes::audit::{Audit, Request};
use millrace_tests::kubernetes::bucket::{Bucket, Contents};
use millrace_tests::kubernetes::cluster::{Cluster, SYSTEM};
use millrace_tests::kubernetes::namespace::Namespace;
use serde_json::Value;

/// How long nothing may be written. Shorter than the five minutes that the promise is about: whoever writes at rest does it
/// with every turn of a loop.
const AT_REST: Duration = Duration::from_secs(60);

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
fn nothing_is_written_at_rest() {
    let Some(cluster) = Cluster::alone("nothing_is_written_at_rest") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, Contents::new(3, 100_000));
    for number in 0..20 {
        space.dataset(
            &format!("data-{number}"),
            &bucket,
            "workers: {cache: {tiers: [{medium: Disk, quota: 64Mi}]}}",
        );
    }
    for number in 0..20 {
        let name = format!("data-{number}");
        space.wait_for_condition(&name, "Ready", "True");
        space.wait_for_condition(&name, "Warm", "True");
    }
    // Events and the last status may lag behind what they tell: status is written at most every 10 s.
    std::thread::sleep(Duration::from_secs(20));
    let audit = Audit::from_now(&cluster);
    std::thread::sleep(AT_REST);
    let requests = audit.requests();
    let is_lease = |resource: &str| resource == "coordination.k8s.io/leases";
    // Of this test's Datasets alone: whoever tries something on the cluster meanwhile is not at rest.
    let is_ours = |request: &Request| request.namespace == space.name || request.name.contains(&space.name);
    let writes: Vec<_> = requests
        .iter()
        .filter(|request| request.is_write() && !is_lease(&request.resource) && is_ours(request))
        .collect();
    assert!(writes.is_empty(), "{} writes at rest: {writes:#?}", writes.len());
    let leases = requests.iter().filter(|request| is_lease(&request.resource)).count();
    assert!(leases > 0, "the audit log shows nothing of {SYSTEM}: is it the right one?");
}
