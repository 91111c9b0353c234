//! How are the workers found by name? A headless Service, whose addresses are those of all pods, ready or not: a node asks any.

use millrace_api::names;
use serde_json::json;

use super::{Kind, Owner, Wanted, wanted};

/// The Service.
pub fn service(owner: &Owner) -> Wanted {
    let body = json!({"spec": {
        "clusterIP": "None",
        "publishNotReadyAddresses": true,
        "selector": owner.worker_selector(),
        "ports": [
            {"name": "data", "port": names::WORKER_DATA_PORT, "targetPort": "data", "protocol": "TCP"},
            {"name": "control", "port": names::WORKER_CONTROL_PORT, "targetPort": "control", "protocol": "TCP"},
            {"name": "admin", "port": names::WORKER_ADMIN_PORT, "targetPort": "admin", "protocol": "TCP"},
        ],
    }});
    wanted(owner, Kind::Service, names::workers(&owner.name), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_headless_and_has_pods_that_are_not_ready() {
        let service = service(&super::super::tests::owner());
        assert_eq!(service.name, "millrace-imagenet");
        assert_eq!(service.object["spec"]["clusterIP"], "None");
        assert_eq!(service.object["spec"]["publishNotReadyAddresses"], true);
        assert_eq!(service.object["spec"]["selector"]["millrace.dev/dataset-uid"], "6e9f");
    }
}
