//! What do pods and nodes mount? A claim of the Dataset's name, bound to a volume of its UID.

use millrace_api::names;
use serde_json::json;

use super::{Kind, Owner, Wanted, wanted};

/// The size that both say. It means nothing for a volume that is read only; a field may not be left away.
const NOMINAL_SIZE: &str = "1Gi";

/// The PersistentVolume. Its attributes cannot change, so that they hold who the Dataset is and nothing else.
pub fn volume(owner: &Owner) -> Wanted {
    let body = json!({"spec": {
        "capacity": {"storage": NOMINAL_SIZE},
        "accessModes": ["ReadOnlyMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "volumeMode": "Filesystem",
        "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": owner.namespace, "name": names::claim(&owner.name),
        },
        "csi": {
            "driver": names::CSI_DRIVER,
            "volumeHandle": owner.uid,
            "readOnly": true,
            "nodePublishSecretRef": {"namespace": owner.namespace, "name": names::data_secret(&owner.name)},
            "volumeAttributes": {
                names::VOLUME_DATASET: owner.name,
                names::VOLUME_NAMESPACE: owner.namespace,
                names::VOLUME_UID: owner.uid,
                names::VOLUME_WORKERS: names::workers_address(&owner.name, &owner.namespace),
            },
        },
    }});
    wanted(owner, Kind::PersistentVolume, names::volume(&owner.uid), body)
}

/// The PersistentVolumeClaim.
pub fn claim(owner: &Owner) -> Wanted {
    let body = json!({"spec": {
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": "",
        "volumeMode": "Filesystem",
        "volumeName": names::volume(&owner.uid),
        "resources": {"requests": {"storage": NOMINAL_SIZE}},
    }});
    wanted(owner, Kind::PersistentVolumeClaim, names::claim(&owner.name).to_owned(), body)
}

#[cfg(test)]
mod tests {
    use super::super::tests::owner;
    use super::*;

    #[test]
    fn volume_and_claim_name_each_other_and_the_key() {
        let (volume, claim) = (volume(&owner()), claim(&owner()));
        assert_eq!((volume.name.as_str(), volume.namespace.as_deref()), ("millrace-6e9f", None));
        assert_eq!(claim.object["spec"]["volumeName"], "millrace-6e9f");
        assert_eq!(claim.object["metadata"]["name"], volume.object["spec"]["claimRef"]["name"]);
        let csi = &volume.object["spec"]["csi"];
        assert_eq!(csi["nodePublishSecretRef"]["name"], "millrace-imagenet-data");
        assert_eq!(csi["volumeAttributes"]["workers"], "millrace-imagenet.vision.svc:7420");
        assert_eq!(volume.object["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    }
}
