//! What is everything called in a cluster?
//!
//! Names of what is made for a Dataset are a prefix and the Dataset's name; where that would be too long or illegal, the end of
//! it gives way to a hash, so that two Datasets never share a name.

use sha2::{Digest, Sha256};

/// Who applies what we create: the field manager, and the value of [`MANAGED_BY_LABEL`].
pub const MANAGER: &str = "millrace";
/// Namespace that the chart installs into unless told otherwise.
pub const SYSTEM_NAMESPACE: &str = "millrace-system";
/// Name of the CSI driver.
pub const CSI_DRIVER: &str = "csi.millrace.dev";
/// Finalizer of a Dataset: held until nothing of it is left.
pub const FINALIZER: &str = "millrace.dev/dataset";

/// Label of everything we create; its value is [`MANAGER`].
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Label of everything we create: [`dataset_label`] of the Dataset.
pub const DATASET_LABEL: &str = "millrace.dev/dataset";
/// Label of everything we create: the Dataset's UID.
pub const DATASET_UID_LABEL: &str = "millrace.dev/dataset-uid";
/// Label of workers; its value is [`WORKER_COMPONENT`].
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// Value of [`COMPONENT_LABEL`] of workers.
pub const WORKER_COMPONENT: &str = "cache-worker";
/// Label that the webhook gives the pods that it mounts a dataset into; its value is `true`.
pub const CONSUMER_LABEL: &str = "millrace.dev/consumer";
/// What selects all that we create.
pub const MANAGED_SELECTOR: &str = "app.kubernetes.io/managed-by=millrace";

/// Annotation of a pod: which datasets it wants, and where, such as `imagenet=/data`.
pub const POD_DATASET_ANNOTATION: &str = "millrace.dev/dataset";
/// Annotation of a pod: the containers that get the mounts, by name; all when there is none.
pub const POD_CONTAINERS_ANNOTATION: &str = "millrace.dev/containers";
/// Annotation of a Dataset: any new value lists the buckets again.
pub const REFRESH_ANNOTATION: &str = "millrace.dev/refresh";
/// Annotation of a Dataset: a warm-up on request, `{"id": "...", "paths": [...]}`.
pub const WARM_ANNOTATION: &str = "millrace.dev/warm";
/// Annotation of a Dataset: any new value lets workers restart although their cache goes with them.
pub const ROLL_ANNOTATION: &str = "millrace.dev/roll";

/// Annotation of a service account: the role that its web identity assumes.
pub const ROLE_ARN_ANNOTATION: &str = "eks.amazonaws.com/role-arn";
/// Annotation of a service account: the audience of the token, `sts.amazonaws.com` by default.
pub const ROLE_AUDIENCE_ANNOTATION: &str = "eks.amazonaws.com/audience";
/// Annotation of a service account: URL of the token service that gives keys for its web identity, where it is not that of AWS.
pub const STS_ENDPOINT_ANNOTATION: &str = "millrace.dev/sts-endpoint";

/// Data port of a worker.
pub const WORKER_DATA_PORT: u16 = 7420;
/// Control port of a worker.
pub const WORKER_CONTROL_PORT: u16 = 7421;
/// Admin port of a worker.
pub const WORKER_ADMIN_PORT: u16 = 7422;
/// Admin port of the operator.
pub const OPERATOR_ADMIN_PORT: u16 = 7432;
/// Admin port of the CSI driver.
pub const CSI_DRIVER_ADMIN_PORT: u16 = 7442;
/// Port of the webhook in the operator's pod.
pub const WEBHOOK_PORT: u16 = 9443;
/// Service of the webhook, port 443.
pub const WEBHOOK_SERVICE: &str = "millrace-webhook";
/// MutatingWebhookConfiguration of the webhook.
pub const WEBHOOK_CONFIGURATION: &str = "millrace";

/// Key of a Secret, and name of the file, that holds the data key in hexadecimal digits.
pub const DATA_KEY_FILE: &str = "data.key";
/// Key of a Secret, and name of the file, that holds the control key in hexadecimal digits.
pub const CONTROL_KEY_FILE: &str = "control.key";

/// Attribute of a volume: name of the Dataset.
pub const VOLUME_DATASET: &str = "dataset";
/// Attribute of a volume: namespace of the Dataset.
pub const VOLUME_NAMESPACE: &str = "namespace";
/// Attribute of a volume: UID of the Dataset.
pub const VOLUME_UID: &str = "uid";
/// Attribute of a volume: host and port where the workers' data ports are found, see [`workers_address`].
pub const VOLUME_WORKERS: &str = "workers";

/// Folder of a worker's container that holds its state.
pub const WORKER_STATE_FOLDER: &str = "/var/lib/millrace/state";
/// Folder of a worker's container below which each tier has a folder of its number.
pub const WORKER_TIERS_FOLDER: &str = "/var/lib/millrace/tiers";
/// The store's folder in the volume of a tier; beside it may be the worker's state.
pub const WORKER_STORE_FOLDER: &str = "blocks";
/// Folder of a worker's container that holds the keys.
pub const WORKER_KEYS_FOLDER: &str = "/etc/millrace/keys";
/// Folder of a worker's container below which each Secret with credentials has a folder of its name.
pub const WORKER_CREDENTIALS_FOLDER: &str = "/etc/millrace/credentials";

/// Longest name of a StatefulSet: its pods get a label with the name, `-` and a hash of 10 characters.
const MAX_STATEFUL_SET_CHARS: usize = 52;
/// Longest label, and longest part of a host name.
const MAX_LABEL_CHARS: usize = 63;
/// Longest name of most objects.
const MAX_SUBDOMAIN_CHARS: usize = 253;
/// Hexadecimal digits of a hash in a name: two Datasets of one namespace share one with chance 2^-40.
const HASH_CHARS: usize = 10;

/// Value of [`DATASET_LABEL`] for a Dataset: its name, hashed if longer than a label may be.
pub fn dataset_label(dataset: &str) -> String {
    shortened("", dataset, "", MAX_LABEL_CHARS, Dots::Stay)
}

/// Name of the StatefulSet, the headless Service and the PodDisruptionBudget of a Dataset: at most 52 characters, without dots.
pub fn workers(dataset: &str) -> String {
    shortened("millrace-", dataset, "", MAX_STATEFUL_SET_CHARS, Dots::Go)
}

/// Name of the Secret with the data key of a Dataset.
pub fn data_secret(dataset: &str) -> String {
    shortened("millrace-", dataset, "-data", MAX_SUBDOMAIN_CHARS, Dots::Stay)
}

/// Name of the Secret with both keys of a Dataset.
pub fn control_secret(dataset: &str) -> String {
    shortened("millrace-", dataset, "-control", MAX_SUBDOMAIN_CHARS, Dots::Stay)
}

/// Name of the PersistentVolumeClaim of a Dataset: its own.
pub fn claim(dataset: &str) -> &str {
    dataset
}

/// Name of the PersistentVolume of the Dataset with this UID.
pub fn volume(uid: &str) -> String {
    format!("millrace-{uid}")
}

/// Name of the volume by which a pod mounts a Dataset: at most 63 characters, without dots.
pub fn pod_volume(dataset: &str) -> String {
    shortened("millrace-", dataset, "", MAX_LABEL_CHARS, Dots::Go)
}

/// Name of a worker's pod.
pub fn worker_pod(dataset: &str, ordinal: u32) -> String {
    format!("{}-{ordinal}", workers(dataset))
}

/// Host and port where the data ports of all workers of a Dataset are found: its headless Service.
pub fn workers_address(dataset: &str, namespace: &str) -> String {
    format!("{}.{namespace}.svc:{WORKER_DATA_PORT}", workers(dataset))
}

/// Label selector of the workers' pods of the Dataset with this UID.
pub fn workers_selector(uid: &str) -> String {
    format!("{COMPONENT_LABEL}={WORKER_COMPONENT},{DATASET_UID_LABEL}={uid}")
}

/// Whether dots of a Dataset's name are allowed in a name made from it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dots {
    Stay,
    Go,
}

fn shortened(prefix: &str, dataset: &str, suffix: &str, most: usize, dots: Dots) -> String {
    let whole = format!("{prefix}{dataset}{suffix}");
    if whole.len() <= most && (dots == Dots::Stay || !dataset.contains('.')) {
        return whole;
    }
    let digest = Sha256::digest(dataset.as_bytes());
    let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let hash = hash.get(..HASH_CHARS).unwrap_or(&hash);
    let room = most.saturating_sub(prefix.len() + suffix.len() + 1 + HASH_CHARS);
    // Names of Datasets are ASCII; of any other text, the characters that are not just fall away.
    let kept: String = dataset
        .chars()
        .filter(char::is_ascii)
        .map(|c| if dots == Dots::Go && c == '.' { '-' } else { c })
        .take(room)
        .collect();
    let kept = kept.trim_end_matches(['-', '.']);
    format!("{prefix}{kept}-{hash}{suffix}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn is_label(name: &str) -> bool {
        let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        name.len() <= MAX_LABEL_CHARS
            && name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.ends_with(alphanumeric)
            && name.chars().all(|c| alphanumeric(c) || c == '-')
    }

    #[test]
    fn a_short_name_stays_readable() {
        assert_eq!(workers("imagenet"), "millrace-imagenet");
        assert_eq!(workers("3d-shapes"), "millrace-3d-shapes");
        assert_eq!(data_secret("imagenet"), "millrace-imagenet-data");
        assert_eq!(control_secret("imagenet"), "millrace-imagenet-control");
        assert_eq!(dataset_label("a.b"), "a.b");
        assert_eq!(worker_pod("imagenet", 2), "millrace-imagenet-2");
        assert_eq!(workers_address("imagenet", "vision"), "millrace-imagenet.vision.svc:7420");
    }

    /// Objects that exist would be orphaned by other names.
    #[test]
    fn hashed_names_are_pinned() {
        let long = "a".repeat(63);
        assert_eq!(workers(&long), format!("millrace-{}-7d3e74a05d", "a".repeat(32)));
        assert_eq!(workers("a.b"), "millrace-a-b-2e7336dc8e");
        assert_eq!(pod_volume(&long).len(), 63);
    }

    #[test]
    fn a_dot_is_not_a_dash() {
        let names: HashSet<String> = ["a.b", "a-b"].map(workers).into_iter().collect();
        assert_eq!(names.len(), 2);
    }

    proptest! {
        #[test]
        fn every_dataset_gives_legal_names(dataset in "[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?") {
            for name in [workers(&dataset), pod_volume(&dataset), worker_pod(&dataset, 255)] {
                prop_assert!(is_label(&name), "{name}");
            }
            prop_assert!(workers(&dataset).len() <= MAX_STATEFUL_SET_CHARS);
            prop_assert!(dataset_label(&dataset).len() <= MAX_LABEL_CHARS);
            prop_assert_ne!(data_secret(&dataset), control_secret(&dataset));
        }
    }
}
