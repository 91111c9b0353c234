//! What may a user say about the workers' pods? Used in a cluster only.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::rules;
use super::spec::DatasetSpec;

/// What the pods of workers have beside what they need. Used in a cluster only. A change restarts the workers one at a time where
/// their tiers outlive the pod, else when the annotation `millrace.dev/roll` of the Dataset gets a new value.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerTemplate {
    /// Processor time and memory of each worker. Default: requests of 100m and of the memory that a worker needs, and a limit of
    /// 1Gi of memory and the quotas of tiers of `Memory`. A limit given here is taken as it is, tiers included.
    #[serde(default, skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,

    /// Labels that a node must have, at most 32.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels_schema")]
    pub node_selector: BTreeMap<String, String>,

    /// Taints of nodes that the workers bear, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,

    /// Affinity as of any pod. Workers are spread over nodes whatever it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Affinity")]
    pub affinity: Option<Affinity>,

    /// Name of the pods' PriorityClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,

    /// Secrets to pull the image with, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<super::spec::SecretRef>,

    /// Further labels of the pods, at most 32. Those that Millrace sets win.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels_schema")]
    pub labels: BTreeMap<String, String>,

    /// Further annotations of the pods, at most 32.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotations_schema")]
    pub annotations: BTreeMap<String, String>,
}

/// Processor time and memory.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// What a node must have free, such as `{cpu: "1", memory: 2Gi}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "amounts_schema")]
    pub requests: BTreeMap<String, Amount>,

    /// What a worker may use at most, such as `{memory: 4Gi}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "amounts_schema")]
    pub limits: BTreeMap<String, Amount>,
}

/// A taint that workers bear.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// Key of the taint; none: every taint, with the operator `Exists`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 317))]
    pub key: Option<String>,

    /// How the value is compared: `Equal` (the default), or `Exists`, for which there is no value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 16))]
    pub operator: Option<String>,

    /// Value of the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 63))]
    pub value: Option<String>,

    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`; none: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 32))]
    pub effect: Option<String>,

    /// For how many seconds `NoExecute` is borne; none: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 0, max = 2_147_483_647))]
    pub toleration_seconds: Option<i64>,
}

/// What a tier's blocks are kept on. Used in a cluster only. Fixed for the life of the Dataset.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::one_volume())]
pub struct TierVolume {
    /// The node's own disk (or memory). Its blocks go with the pod. Written `emptyDir: {}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "EmptyDir")]
    pub empty_dir: Option<EmptyDir>,

    /// A volume of its own for each worker, made from a storage class. Its blocks outlive the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ClaimTemplate")]
    pub volume_claim_template: Option<ClaimTemplate>,
}

/// The node's own disk or memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EmptyDir {}

/// A volume for each worker.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimTemplate {
    /// Name of the storage class. Default: the cluster's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,

    /// Size of the volume. Default: the tier's quota when the Dataset is created, and a twentieth more. Blocks never take more than
    /// the volume has, whatever the quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "super::sizes::ByteSize")]
    pub size: Option<super::sizes::ByteSize>,
}

impl DatasetSpec {
    /// The fields that are given and that only a cluster uses.
    pub fn cluster_fields(&self) -> Vec<String> {
        let mut fields = Vec::new();
        if self.workers.service_account_name.is_some() {
            fields.push("spec.workers.serviceAccountName".to_owned());
        }
        if !self.workers.template.is_empty() {
            fields.push("spec.workers.template".to_owned());
        }
        for (at, tier) in self.workers.cache.tiers.iter().enumerate() {
            if tier.volume.is_some() {
                fields.push(format!("spec.workers.cache.tiers[{at}].volume"));
            }
        }
        fields
    }
}

impl WorkerTemplate {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl TierVolume {
    /// Whether blocks outlive the pod.
    pub fn outlives_pod(&self) -> bool {
        self.volume_claim_template.is_some()
    }
}

impl Resources {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        let Self { requests, limits } = self;
        requests.is_empty() && limits.is_empty()
    }
}

/// An amount as Kubernetes writes it: `500m`, `2`, `1.5Gi`.
#[derive(Clone, PartialEq, Eq)]
pub struct Amount(String);

impl Amount {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Amount({})", self.0)
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount such as 500m or 2Gi")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Amount, E> {
                Ok(Amount(text.to_owned()))
            }

            fn visit_u64<E: serde::de::Error>(self, amount: u64) -> Result<Amount, E> {
                Ok(Amount(amount.to_string()))
            }

            fn visit_i64<E: serde::de::Error>(self, amount: i64) -> Result<Amount, E> {
                Ok(Amount(amount.to_string()))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// Affinity of a pod, as Kubernetes has it. Kept as it is written: what is wrong with it is said when it is used, and does not
/// make the Dataset unreadable.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Affinity(pub Map<String, Value>);

impl<'de> Deserialize<'de> for Affinity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Object(map) => Ok(Self(map)),
            _ => Err(D::Error::custom("affinity is not a map of fields")),
        }
    }
}

impl JsonSchema for Affinity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Affinity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
    }
}

fn labels_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": 32,
        "additionalProperties": {"type": "string", "maxLength": 63},
    })
}

fn annotations_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": 32,
        "additionalProperties": {"type": "string", "maxLength": 4096},
    })
}

fn amounts_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": 16,
        "additionalProperties": {
            "x-kubernetes-int-or-string": true, "maxLength": 32,
            "pattern": r"^[0-9]+(\.[0-9]+)?([numkMGTPE]|[KMGTPE]i)?$",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_texts_or_whole_numbers() {
        let resources: Resources =
            serde_json::from_value(serde_json::json!({"requests": {"cpu": 2, "memory": "1Gi"}})).unwrap();
        assert_eq!(resources.requests["cpu"].as_str(), "2");
        assert_eq!(serde_json::to_value(&resources).unwrap()["requests"]["memory"], "1Gi");
    }

    #[test]
    fn fields_that_only_a_cluster_uses_are_named() {
        let spec = |workers| -> DatasetSpec {
            let source = serde_json::json!({"path": "/", "s3": {"bucket": "abc", "region": "r"}});
            serde_json::from_value(serde_json::json!({"sources": [source], "workers": workers})).unwrap()
        };
        assert!(spec(serde_json::json!({"replicas": 3})).cluster_fields().is_empty());
        let tier = serde_json::json!({"medium": "Disk", "quota": "1Gi", "volume": {"emptyDir": {}}});
        let all = serde_json::json!({
            "serviceAccountName": "a", "template": {"priorityClassName": "b"}, "cache": {"tiers": [tier]},
        });
        assert_eq!(
            spec(all).cluster_fields(),
            [
                "spec.workers.serviceAccountName",
                "spec.workers.template",
                "spec.workers.cache.tiers[0].volume"
            ]
        );
    }

    #[test]
    fn a_wrong_affinity_does_not_make_the_dataset_unreadable() {
        let template: WorkerTemplate =
            serde_json::from_value(serde_json::json!({"affinity": {"nodeAffinity": 5}})).unwrap();
        assert_eq!(template.affinity.unwrap().0["nodeAffinity"], 5);
    }
}
