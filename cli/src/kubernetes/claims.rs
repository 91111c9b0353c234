//! Which claims does a pod mount? Pure.

use k8s_openapi::api::core::v1::Pod;

/// Names of the claims, in the order of the pod's volumes.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str()))
}
