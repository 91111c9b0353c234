//! Which keys do nodes and workers get? Both are derived from the master key and the Dataset's UID, so that they can be made
//! again at any time.

use millrace_api::keys::Key;
use millrace_api::names;
use serde_json::{Value, json};

use super::Owner;

/// A Secret that must exist. Its `Debug` does not show the keys.
#[derive(Clone)]
pub struct WantedSecret {
    /// Its name.
    pub name: String,
    /// All of it.
    pub object: Value,
}

impl std::fmt::Debug for WantedSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WantedSecret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The Secret of the nodes, and that of the workers. They belong to the Dataset and go with it: we may not delete Secrets.
pub fn secrets(owner: &Owner, master: &Key) -> [WantedSecret; 2] {
    let data = Key::data_key(master, &owner.uid).to_hex();
    let control = Key::control_key(master, &owner.uid).to_hex();
    [
        secret(owner, names::data_secret(&owner.name), json!({ names::DATA_KEY_FILE: data })),
        secret(
            owner,
            names::control_secret(&owner.name),
            json!({ names::DATA_KEY_FILE: data, names::CONTROL_KEY_FILE: control }),
        ),
    ]
}

fn secret(owner: &Owner, name: String, data: Value) -> WantedSecret {
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {
            "name": name, "namespace": owner.namespace, "labels": owner.labels(),
            "ownerReferences": [{
                "apiVersion": "millrace.dev/v1alpha1", "kind": "Dataset", "name": owner.name, "uid": owner.uid,
                "controller": true, "blockOwnerDeletion": false,
            }],
        },
        "stringData": data,
    });
    WantedSecret { name, object }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_do_not_get_the_control_key() {
        let [data, control] = secrets(&super::super::tests::owner(), &Key::new([7; 32]));
        assert_eq!(data.object["stringData"].as_object().unwrap().len(), 1);
        assert_eq!(data.object["stringData"]["data.key"], control.object["stringData"]["data.key"]);
        assert_ne!(control.object["stringData"]["control.key"], control.object["stringData"]["data.key"]);
        assert_eq!(data.object["metadata"]["ownerReferences"][0]["uid"], "6e9f");
        assert!(!format!("{data:?}").contains(data.object["stringData"]["data.key"].as_str().unwrap()));
    }
}
