//! What is a user told about a Dataset? Numbers and conditions, written on change.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Failures of a warm-up that are listed; the rest is counted.
pub const MAX_FAILURES: usize = 20;

/// What is so of the Dataset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatasetStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub observed_generation: Option<i64>,

    /// `Accepted`, `Indexed`, `Ready`, `Warm` and `Degraded`; `Terminating` once it is deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,

    /// The version that new mounts get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "VersionStatus")]
    pub version: Option<VersionStatus>,

    /// The workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "WorkersStatus")]
    pub workers: Option<WorkersStatus>,

    /// What workers hold of the version, each byte counted at its owner only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "CachedStatus")]
    pub cached: Option<CachedStatus>,

    /// How far the warm-up is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "WarmUpStatus")]
    pub warm_up: Option<WarmUpStatus>,

    /// Who has it mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "MountsStatus")]
    pub mounts: Option<MountsStatus>,
}

/// A frozen listing of the dataset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionStatus {
    /// Hash of the listing.
    pub id: String,
    /// Files in the mount.
    pub objects: i64,
    /// Their size together.
    pub bytes: i64,
    /// Keys that cannot be shown as files, such as `a` beside `a/b`. `millrace local why` lists them.
    pub left_out: i64,
    /// When it was listed.
    pub since: Time,
    /// Hash of the fields that say what to list, as they were then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub sources: Option<String>,
    /// Value of the annotation `millrace.dev/refresh` then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub refresh: Option<String>,
}

/// The workers of the Dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkersStatus {
    /// Workers that the spec asks for.
    pub desired: i32,
    /// Workers that exist.
    pub replicas: i32,
    /// Workers that serve.
    pub ready: i32,
    /// Label selector of the workers' pods.
    pub selector: String,
    /// The epoch of the membership: grows with each change of who owns what.
    pub epoch: i64,
}

/// What workers hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CachedStatus {
    /// Bytes that workers hold.
    pub bytes: i64,
    /// Their share of the version, 0 to 100, rounded down.
    #[schemars(range(min = 0, max = 100))]
    pub percent: i32,
    /// Objects that workers hold whole.
    pub objects: i64,
}

/// Who has the dataset mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MountsStatus {
    /// Nodes with a mount.
    pub nodes: i32,
    /// Pods that have it mounted.
    pub pods: i32,
}

/// How far a warm-up is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WarmUpStatus {
    /// Id of the request, where the annotation `millrace.dev/warm` asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub id: Option<String>,
    /// Id of the last such request that is through, whether or not objects failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub completed_id: Option<String>,
    /// Bytes loaded, or found cached.
    pub bytes_done: i64,
    /// Bytes of the paths to warm.
    pub bytes_total: i64,
    /// Objects that could not be loaded.
    pub objects_failed: i64,
    /// The first 20 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    pub failures: Vec<WarmUpFailure>,
}

/// An object that could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WarmUpFailure {
    /// Its key.
    pub key: String,
    /// Why.
    pub reason: String,
}

impl CachedStatus {
    /// The share of `total_bytes` that `bytes` are, 0 to 100, rounded down, so that 100 means all. An empty dataset is cached.
    pub fn percent_of(bytes: u64, total_bytes: u64) -> i32 {
        if total_bytes == 0 {
            return 100;
        }
        let percent = u128::from(bytes.min(total_bytes)) * 100 / u128::from(total_bytes);
        i32::try_from(percent).expect("at most 100")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_all_bytes_are_a_hundred_percent() {
        assert_eq!(CachedStatus::percent_of(999, 1000), 99);
        assert_eq!(CachedStatus::percent_of(1000, 1000), 100);
        assert_eq!(CachedStatus::percent_of(2000, 1000), 100);
        assert_eq!(CachedStatus::percent_of(0, 0), 100);
        assert_eq!(CachedStatus::percent_of(u64::MAX - 1, u64::MAX), 99);
    }
}
