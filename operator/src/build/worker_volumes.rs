//! Where does a worker keep what it caches, and from where does it read its keys? Volumes, their mounts, and the claims of each
//! worker.

use std::collections::BTreeSet;

use millrace_api::dataset::spec::{Cache, DatasetSpec, Medium, Tier};
use millrace_api::names;
use serde_json::{Value, json};

use super::Owner;
use super::stateful_set::WebIdentity;

/// Folder of the web identity token.
pub const TOKEN_FOLDER: &str = "/var/run/secrets/millrace.dev/token";

/// For how long a web identity token holds; kubelet renews it at four fifths of that.
const TOKEN_SECONDS: i64 = 3600;

/// What is mounted where in the container.
pub fn mounts(spec: &DatasetSpec, identity: Option<&WebIdentity>) -> Vec<Value> {
    let cache = &spec.workers.cache;
    let mut mounts = vec![json!({"name": "keys", "mountPath": names::WORKER_KEYS_FOLDER, "readOnly": true})];
    if first_lasting(cache).is_none() {
        mounts.push(json!({"name": "state", "mountPath": names::WORKER_STATE_FOLDER}));
    }
    for at in 0..cache.tiers.len() {
        mounts.push(json!({"name": format!("tier-{at}"), "mountPath": tier_folder(at)}));
    }
    for (at, secret) in credentials(spec).into_iter().enumerate() {
        let folder = format!("{}/{secret}", names::WORKER_CREDENTIALS_FOLDER);
        mounts.push(json!({"name": format!("credentials-{at}"), "mountPath": folder, "readOnly": true}));
    }
    if identity.is_some() {
        mounts.push(json!({"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": true}));
    }
    mounts
}

/// The volumes of the pod; those of [`claim_templates`] come by themselves.
pub fn volumes(owner: &Owner, spec: &DatasetSpec, identity: Option<&WebIdentity>) -> Vec<Value> {
    let cache = &spec.workers.cache;
    let mut volumes = vec![json!({
        "name": "keys",
        "secret": {"secretName": names::control_secret(&owner.name), "defaultMode": 0o440},
    })];
    if first_lasting(cache).is_none() {
        volumes.push(json!({"name": "state", "emptyDir": {}}));
    }
    for (at, tier) in cache.tiers.iter().enumerate() {
        let size = with_room(tier.quota.bytes()).to_string();
        match tier.medium {
            Medium::Memory => volumes.push(
                json!({"name": format!("tier-{at}"), "emptyDir": {"medium": "Memory", "sizeLimit": size}}),
            ),
            Medium::Disk if outlives(tier) => {}
            Medium::Disk => {
                volumes.push(json!({"name": format!("tier-{at}"), "emptyDir": {"sizeLimit": size}}));
            }
        }
    }
    for (at, secret) in credentials(spec).into_iter().enumerate() {
        // A missing Secret is told by the worker, in words, and not by a pod that hangs.
        volumes.push(json!({
            "name": format!("credentials-{at}"),
            "secret": {"secretName": secret, "optional": true, "defaultMode": 0o440},
        }));
    }
    if let Some(identity) = identity {
        volumes.push(json!({"name": "token", "projected": {"defaultMode": 0o440, "sources": [
            {"serviceAccountToken": {
                "audience": identity.audience, "expirationSeconds": TOKEN_SECONDS, "path": "token",
            }},
        ]}}));
    }
    volumes
}

/// The claims of each worker, as they are asked for at creation.
pub fn claim_templates(owner: &Owner, cache: &Cache) -> Value {
    let mut claims = Vec::new();
    for (at, tier) in cache.tiers.iter().enumerate() {
        let Some(claim) = tier.volume.as_ref().and_then(|volume| volume.volume_claim_template.as_ref())
        else {
            continue;
        };
        let size = claim.size.as_ref().map_or_else(|| with_room(tier.quota.bytes()), |size| size.bytes());
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": size.to_string()}},
        });
        if let Some(class) = &claim.storage_class_name {
            spec["storageClassName"] = class.clone().into();
        }
        claims.push(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": format!("tier-{at}"), "labels": owner.labels()}, "spec": spec,
        }));
    }
    Value::Array(claims)
}

/// A quota of blocks, and room beside it for what the file system, sidecars and the state take.
fn with_room(quota_bytes: u64) -> u64 {
    quota_bytes.saturating_add(quota_bytes / 20).saturating_add(64 << 20)
}

/// The Secrets that sources name, each once.
fn credentials(spec: &DatasetSpec) -> BTreeSet<&str> {
    spec.sources
        .iter()
        .filter_map(|source| source.s3.credentials.secret_ref.as_ref().map(|secret| secret.name.as_str()))
        .collect()
}

/// Where a tier is mounted.
pub fn tier_folder(at: usize) -> String {
    format!("{}/{at}", names::WORKER_TIERS_FOLDER)
}

fn outlives(tier: &Tier) -> bool {
    tier.volume.as_ref().is_some_and(|volume| volume.outlives_pod())
}

/// The first tier whose volume outlives the pod.
fn first_lasting(cache: &Cache) -> Option<usize> {
    cache.tiers.iter().position(outlives)
}

/// Whether all that is cached outlives the pod.
pub fn cache_outlives_pods(cache: &Cache) -> bool {
    cache.tiers.iter().filter(|tier| tier.medium == Medium::Disk).all(outlives)
        && first_lasting(cache).is_some()
}

/// Where the worker keeps its state: with the cache that outlives the pod, where there is one.
pub fn state_folder(cache: &Cache) -> String {
    match first_lasting(cache) {
        Some(at) => format!("{}/state", tier_folder(at)),
        None => names::WORKER_STATE_FOLDER.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::dataset;
    use super::*;

    #[test]
    fn a_cache_outlives_pods_only_where_every_disk_does() {
        let outlives = |tiers: Value| {
            let dataset = dataset(json!({"workers": {"cache": {"tiers": tiers}}}));
            cache_outlives_pods(&dataset.spec.workers.cache)
        };
        let claim = json!({"medium": "Disk", "quota": "1Gi", "volume": {"volumeClaimTemplate": {}}});
        let (disk, memory) =
            (json!({"medium": "Disk", "quota": "1Gi"}), json!({"medium": "Memory", "quota": "1Gi"}));
        assert!(outlives(json!([claim])) && outlives(json!([memory, claim])));
        assert!(!outlives(json!([disk])) && !outlives(json!([claim, disk])) && !outlives(json!([memory])));
    }
}
