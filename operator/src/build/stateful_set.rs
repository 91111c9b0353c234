//! How do a Dataset's workers run? Restricted in every way that Pod Security knows, with a root file system that cannot be
//! written.

use millrace_api::dataset::spec::{Cache, DatasetSpec, Eviction, Medium};
use millrace_api::dataset::template::{Resources, WorkerTemplate};
use millrace_api::names;
use serde_json::{Map, Value, json};

use super::worker_volumes::{TOKEN_FOLDER, claim_templates, mounts, state_folder, tier_folder, volumes};
use super::{Kind, Owner, Wanted, WorkerImage, wanted};

/// User and group of workers: the number that distroless images use for nobody in particular.
const USER: i64 = 65532;

/// Memory that a worker needs beside its tiers of memory, bytes: its floor of 64 MiB twice over.
const MEMORY_REQUEST: u64 = 128 << 20;

/// Memory that a worker may use beside its tiers of memory, bytes: a guess that leaves room for hundreds of requests at once.
const MEMORY_LIMIT: u64 = 1 << 30;

/// Processor time to have free: an idle worker takes hardly any, and a busy one may take what the node has.
const CPU_REQUEST: &str = "50m";

/// What the image of workers runs on: a cluster may have nodes of other kinds.
const NODES: [(&str, &str); 2] = [("kubernetes.io/os", "linux"), ("kubernetes.io/arch", "amd64")];

/// A worker stops within 5 s of being told.
const GRACE_SECONDS: i64 = 10;

/// The role that workers assume by their service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebIdentity {
    /// The role.
    pub role_arn: String,
    /// Whom the token is for.
    pub audience: String,
    /// URL of the token service, where it is not that of AWS.
    pub sts_endpoint: Option<String>,
}

/// The StatefulSet. Pods are replaced by us (`OnDelete`), so that no cache goes without the user's word. `roll` is the
/// user's word, `claims` what the StatefulSet was created with: a StatefulSet refuses any others.
pub fn stateful_set(
    owner: &Owner,
    spec: &DatasetSpec,
    image: &WorkerImage,
    identity: Option<&WebIdentity>,
    roll: Option<&str>,
    claims: Option<Value>,
) -> Wanted {
    let name = names::workers(&owner.name);
    let template = &spec.workers.template;
    let claims = claims.unwrap_or_else(|| claim_templates(owner, &spec.workers.cache));
    let body = json!({"spec": {
        "serviceName": name,
        "replicas": spec.workers.replicas,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 2,
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
        "selector": {"matchLabels": owner.worker_selector()},
        "template": {
            "metadata": {
                "labels": pod_labels(owner, template),
                "annotations": pod_annotations(template, roll),
            },
            "spec": pod(owner, spec, image, identity),
        },
        "volumeClaimTemplates": claims,
    }});
    wanted(owner, Kind::StatefulSet, name, body)
}

fn pod_labels(owner: &Owner, template: &WorkerTemplate) -> Map<String, Value> {
    let mut labels: Map<String, Value> =
        template.labels.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    // Newer versions of Istio look at the label, older ones at the annotation.
    labels.insert("sidecar.istio.io/inject".into(), "false".into());
    labels.extend(owner.labels());
    labels.extend(owner.worker_selector());
    labels
}

fn pod_annotations(template: &WorkerTemplate, roll: Option<&str>) -> Map<String, Value> {
    let mut annotations: Map<String, Value> =
        template.annotations.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    annotations.insert("sidecar.istio.io/inject".into(), "false".into());
    // An autoscaler may take the node: readers go on, and what is lost can be fetched again.
    annotations
        .entry("cluster-autoscaler.kubernetes.io/safe-to-evict".to_owned())
        .or_insert_with(|| "true".into());
    if let Some(roll) = roll {
        annotations.insert(names::ROLL_ANNOTATION.into(), roll.into());
    }
    annotations
}

fn pod(owner: &Owner, spec: &DatasetSpec, image: &WorkerImage, identity: Option<&WebIdentity>) -> Value {
    let template = &spec.workers.template;
    let cache = &spec.workers.cache;
    let mut pod = json!({
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "nodeSelector": node_selector(template),
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": owner.worker_selector()},
        }],
        "containers": [{
            "name": "worker",
            "image": image.image,
            "imagePullPolicy": image.pull_policy,
            "args": args(owner, cache),
            "env": environment(owner, identity),
            "ports": [
                {"name": "data", "containerPort": names::WORKER_DATA_PORT, "protocol": "TCP"},
                {"name": "control", "containerPort": names::WORKER_CONTROL_PORT, "protocol": "TCP"},
                {"name": "admin", "containerPort": names::WORKER_ADMIN_PORT, "protocol": "TCP"},
            ],
            // A worker opens stores of millions of files before its ports: up to 10 min.
            "startupProbe": probe("/healthz", 2, 300),
            "livenessProbe": probe("/healthz", 10, 6),
            "readinessProbe": probe("/readyz", 2, 2),
            "resources": resources(&template.resources, cache),
            "securityContext": {
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
                "capabilities": {"drop": ["ALL"]},
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": mounts(spec, identity),
        }],
        "volumes": volumes(owner, spec, identity),
    });
    let mut set = |field: &str, value: Value| pod[field] = value;
    if let Some(account) = &spec.workers.service_account_name {
        set("serviceAccountName", account.clone().into());
    }
    if !template.tolerations.is_empty() {
        set("tolerations", json!(template.tolerations));
    }
    if let Some(affinity) = &template.affinity {
        set("affinity", json!(affinity));
    }
    if let Some(class) = &template.priority_class_name {
        set("priorityClassName", class.clone().into());
    }
    if !template.image_pull_secrets.is_empty() {
        set("imagePullSecrets", json!(template.image_pull_secrets));
    }
    pod
}

fn node_selector(template: &WorkerTemplate) -> Map<String, Value> {
    let mut labels: Map<String, Value> =
        NODES.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    labels.extend(template.node_selector.iter().map(|(key, value)| (key.clone(), value.clone().into())));
    labels
}

fn probe(path: &str, period_seconds: u32, failures: u32) -> Value {
    json!({
        "httpGet": {"path": path, "port": "admin", "scheme": "HTTP"},
        "periodSeconds": period_seconds, "failureThreshold": failures, "timeoutSeconds": 2, "successThreshold": 1,
    })
}

fn args(owner: &Owner, cache: &Cache) -> Vec<String> {
    let mut args = vec!["serve".to_owned(), format!("--dataset-uid={}", owner.uid)];
    args.push(format!("--state-dir={}", state_folder(cache)));
    args.push(format!("--data-key-file={}/{}", names::WORKER_KEYS_FOLDER, names::DATA_KEY_FILE));
    args.push(format!("--control-key-file={}/{}", names::WORKER_KEYS_FOLDER, names::CONTROL_KEY_FILE));
    args.push(format!("--credentials-dir={}", names::WORKER_CREDENTIALS_FOLDER));
    for (at, tier) in cache.tiers.iter().enumerate() {
        let medium = match tier.medium {
            Medium::Disk => "Disk",
            Medium::Memory => "Memory",
        };
        args.push(format!(
            "--tier=medium={medium},dir={}/{},quota={}",
            tier_folder(at),
            names::WORKER_STORE_FOLDER,
            tier.quota.bytes()
        ));
    }
    let eviction = match cache.eviction {
        Eviction::Never => "never",
        Eviction::Lru => "lru",
    };
    args.push(format!("--eviction={eviction}"));
    args.push("--log-format=json".to_owned());
    args
}

fn environment(owner: &Owner, identity: Option<&WebIdentity>) -> Vec<Value> {
    let mut environment = vec![
        json!({
            "name": "MILLRACE_WORKER_NAME",
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
        }),
        // By which mount processes of the node find its tiers.
        json!({
            "name": "MILLRACE_POD_UID",
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}},
        }),
        // Credentials of the machine are nobody's here.
        json!({"name": "AWS_EC2_METADATA_DISABLED", "value": "true"}),
    ];
    if let Some(identity) = identity {
        let session = names::workers(&owner.name);
        environment.push(json!({"name": "AWS_ROLE_ARN", "value": identity.role_arn}));
        environment
            .push(json!({"name": "AWS_WEB_IDENTITY_TOKEN_FILE", "value": format!("{TOKEN_FOLDER}/token")}));
        environment.push(json!({"name": "AWS_ROLE_SESSION_NAME", "value": session}));
        if let Some(endpoint) = &identity.sts_endpoint {
            environment.push(json!({"name": "AWS_ENDPOINT_URL_STS", "value": endpoint}));
        }
    }
    environment
}

fn resources(asked: &Resources, cache: &Cache) -> Value {
    let memory = cache.quota_bytes(Medium::Memory);
    let amounts = |given: &std::collections::BTreeMap<String, millrace_api::dataset::template::Amount>| {
        given.iter().map(|(name, amount)| (name.clone(), amount.as_str().into())).collect::<Map<_, Value>>()
    };
    let (mut requests, mut limits) = (amounts(&asked.requests), amounts(&asked.limits));
    if !limits.contains_key("memory") {
        limits.insert("memory".into(), memory.saturating_add(MEMORY_LIMIT).to_string().into());
        requests.entry("memory").or_insert_with(|| memory.saturating_add(MEMORY_REQUEST).to_string().into());
    }
    requests.entry("cpu").or_insert_with(|| CPU_REQUEST.into());
    json!({"requests": requests, "limits": limits})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::{dataset, owner};
    use super::*;

    fn build(spec: Value, identity: Option<&WebIdentity>) -> Value {
        let image = WorkerImage { image: "worker:1".into(), pull_policy: "IfNotPresent".into() };
        stateful_set(&owner(), &dataset(spec).spec, &image, identity, None, None).object
    }

    fn container(object: &Value) -> &Value {
        &object["spec"]["template"]["spec"]["containers"][0]
    }

    fn args(object: &Value) -> Vec<&str> {
        container(object)["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect()
    }

    #[test]
    fn a_worker_is_restricted_in_every_way_that_pod_security_knows() {
        let object = build(json!({}), None);
        let pod = &object["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!(pod["automountServiceAccountToken"], false);
        let container = container(&object);
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
        assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        let kinds = pod["volumes"].as_array().unwrap().iter().flat_map(|volume| volume.as_object().unwrap());
        for kind in kinds.map(|(kind, _)| kind.as_str()).filter(|kind| *kind != "name") {
            assert!(["emptyDir", "secret", "projected"].contains(&kind), "{kind}");
        }
    }

    #[test]
    fn every_mount_has_its_volume_and_every_volume_its_mount() {
        let spec = json!({
            "sources": [
                {"path": "/a", "s3": {"bucket": "abc", "region": "r", "credentials": {"secretRef": {"name": "s"}}}},
                {"path": "/b", "s3": {"bucket": "abc", "region": "r", "credentials": {"secretRef": {"name": "s"}}}},
            ],
            "workers": {"cache": {"tiers": [
                {"medium": "Memory", "quota": "1Gi"},
                {"medium": "Disk", "quota": "2Gi", "volume": {"volumeClaimTemplate": {"storageClassName": "fast"}}},
            ]}},
        });
        let identity = WebIdentity {
            role_arn: "arn".into(),
            audience: "sts.amazonaws.com".into(),
            sts_endpoint: Some("http://sts".into()),
        };
        let object = build(spec, Some(&identity));
        let pod = &object["spec"]["template"]["spec"];
        let names = |list: &Value, pointer: &str| -> BTreeSet<String> {
            let list = list.as_array().unwrap().iter();
            list.map(|entry| entry.pointer(pointer).unwrap().as_str().unwrap().to_owned()).collect()
        };
        let mut volumes = names(&pod["volumes"], "/name");
        volumes.extend(names(&object["spec"]["volumeClaimTemplates"], "/metadata/name"));
        assert_eq!(names(&container(&object)["volumeMounts"], "/name"), volumes);
        assert_eq!(volumes.len(), 5, "{volumes:?}");
        assert!(args(&object).contains(&"--state-dir=/var/lib/millrace/tiers/1/state"));
        let endpoint = json!({"name": "AWS_ENDPOINT_URL_STS", "value": "http://sts"});
        assert!(container(&object)["env"].as_array().unwrap().contains(&endpoint));
    }

    #[test]
    fn tiers_of_memory_count_into_the_limit() {
        let tiers = json!([{"medium": "Memory", "quota": "2Gi"}, {"medium": "Disk", "quota": "1Gi"}]);
        let object = build(json!({"workers": {"cache": {"tiers": tiers}}}), None);
        let resources = &container(&object)["resources"];
        assert_eq!(resources["limits"]["memory"], ((2u64 << 30) + MEMORY_LIMIT).to_string());
        assert_eq!(resources["requests"]["memory"], ((2u64 << 30) + MEMORY_REQUEST).to_string());
        assert!(
            args(&object)
                .contains(&"--tier=medium=Memory,dir=/var/lib/millrace/tiers/0/blocks,quota=2147483648")
        );
    }

    #[test]
    fn what_the_user_gives_is_taken_and_our_labels_win() {
        let template = json!({
            "resources": {"limits": {"memory": "8Gi"}}, "nodeSelector": {"disk": "nvme"},
            "labels": {"app.kubernetes.io/component": "mine", "team": "vision"},
            "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
        });
        let object = build(json!({"workers": {"template": template, "serviceAccountName": "reader"}}), None);
        let resources = &container(&object)["resources"];
        assert_eq!(resources["limits"]["memory"], "8Gi");
        assert!(resources["requests"].get("memory").is_none(), "Kubernetes takes the limit");
        let template = &object["spec"]["template"];
        assert_eq!(template["metadata"]["labels"]["app.kubernetes.io/component"], "cache-worker");
        assert_eq!(template["metadata"]["labels"]["team"], "vision");
        let annotations = &template["metadata"]["annotations"];
        assert_eq!(annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"], "false");
        assert_eq!(template["spec"]["serviceAccountName"], "reader");
        let nodes = json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "disk": "nvme"});
        assert_eq!(template["spec"]["nodeSelector"], nodes);
    }

    #[test]
    fn workers_keep_to_nodes_that_their_image_runs_on() {
        let nodes = &build(json!({}), None)["spec"]["template"]["spec"]["nodeSelector"];
        assert_eq!(*nodes, json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}));
    }

    #[test]
    fn claims_stay_as_they_were_created() {
        let image = WorkerImage { image: "worker:1".into(), pull_policy: "IfNotPresent".into() };
        let claims = json!([{"old": true}]);
        let spec = dataset(json!({})).spec;
        let wanted = stateful_set(&owner(), &spec, &image, None, Some("x"), Some(claims.clone()));
        assert_eq!(wanted.object["spec"]["volumeClaimTemplates"], claims);
        let annotations = &wanted.object["spec"]["template"]["metadata"]["annotations"];
        assert_eq!(annotations["millrace.dev/roll"], "x");
    }
}
