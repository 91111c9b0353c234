//! What is handed to the API server: the CustomResourceDefinition, printed from the types.

use std::sync::OnceLock;

use kube::CustomResourceExt as _;
use serde_json::Value;

use super::spec::Dataset;

const HEADER: &str = "# Printed by `millrace crd` from the types in crates/api/src/dataset. Do not edit.\n";

/// The CRD of `Dataset`, as YAML.
pub fn dataset_crd_yaml() -> String {
    let yaml = serde_yaml::to_string(&Dataset::crd()).expect("a CRD is maps, lists and texts");
    format!("{HEADER}{yaml}")
}

/// The OpenAPI schema of a whole Dataset, as the CRD has it.
pub fn dataset_schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let crd = Dataset::crd();
        let version = crd.spec.versions.into_iter().next().expect("the derived CRD has one version");
        let schema = version.schema.and_then(|schema| schema.open_api_v3_schema);
        serde_json::to_value(schema.expect("the derived version has a schema"))
            .expect("a schema is maps, lists and texts")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_crd_is_not_stale() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crds/dataset.yaml");
        let printed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            printed == dataset_crd_yaml(),
            "crds/dataset.yaml is stale: run `millrace crd > crds/dataset.yaml`"
        );
    }

    /// The API server refuses a CRD whose rules could cost too much; the cost follows from these bounds.
    #[test]
    fn every_list_and_text_of_the_spec_is_bounded() {
        fn walk(schema: &Value, path: &str, unbounded: &mut Vec<String>) {
            let has = |name: &str| schema.get(name).is_some();
            let bounded = match schema.get("type").and_then(Value::as_str) {
                Some("string") => has("maxLength") || has("enum"),
                Some("array") => has("maxItems"),
                Some("object") if has("additionalProperties") => has("maxProperties"),
                Some("object") => has("properties"),
                Some("integer") => has("minimum") && has("maximum"),
                Some(_) => true,
                None => has("x-kubernetes-int-or-string") && has("maxLength"),
            };
            if !bounded {
                unbounded.push(path.to_owned());
            }
            for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten()
            {
                walk(property, &format!("{path}.{name}"), unbounded);
            }
            for each in ["items", "additionalProperties"] {
                if let Some(items) = schema.get(each) {
                    walk(items, &format!("{path}[]"), unbounded);
                }
            }
        }
        let mut unbounded = Vec::new();
        walk(&dataset_schema()["properties"]["spec"], "spec", &mut unbounded);
        // Objects without fields, and one that no rule looks into.
        assert_eq!(
            unbounded,
            [
                "spec.sources[].s3.credentials.anonymous",
                "spec.workers.cache.tiers[].volume.emptyDir",
                "spec.workers.template.affinity",
            ]
        );
    }

    #[test]
    fn every_field_of_the_spec_has_its_manual() {
        fn walk(schema: &Value, path: &str, silent: &mut Vec<String>) {
            if schema.get("description").is_none() {
                silent.push(path.to_owned());
            }
            for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten()
            {
                walk(property, &format!("{path}.{name}"), silent);
            }
            if let Some(items) = schema.get("items").filter(|items| items.get("properties").is_some()) {
                walk(items, &format!("{path}[]"), silent);
            }
        }
        let mut silent = Vec::new();
        walk(&dataset_schema()["properties"]["spec"], "spec", &mut silent);
        assert_eq!(silent, Vec::<String>::new());
    }

    #[test]
    fn no_word_of_an_enum_is_a_boolean_to_yaml() {
        fn walk(schema: &Value, words: &mut Vec<String>) {
            match schema {
                Value::Object(map) => {
                    let enums = map.get("enum").and_then(Value::as_array).into_iter().flatten();
                    words.extend(enums.filter_map(Value::as_str).map(str::to_owned));
                    map.values().for_each(|value| walk(value, words));
                }
                Value::Array(list) => list.iter().for_each(|value| walk(value, words)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        let mut words = Vec::new();
        walk(dataset_schema(), &mut words);
        assert!(words.len() > 10);
        for word in words {
            let lower = word.to_lowercase();
            assert!(
                !["y", "n", "yes", "no", "on", "off", "true", "false", "null"].contains(&lower.as_str()),
                "{word}"
            );
        }
    }

    #[test]
    fn the_defaults_of_the_crd_are_those_of_the_types() {
        let minimal = serde_json::json!({
            "apiVersion": "millrace.dev/v1alpha1", "kind": "Dataset", "metadata": {"name": "x"},
            "spec": {"sources": [{"path": "/", "s3": {"bucket": "abc", "region": "r"}}]},
        });
        let by_server = kube::core::cel::apply_defaults(dataset_schema(), &minimal);
        let by_types: Dataset = serde_json::from_value(minimal).unwrap();
        assert_eq!(serde_json::from_value::<Dataset>(by_server.clone()).unwrap(), by_types);
        for field in [
            "/spec/workers/replicas",
            "/spec/workers/cache/blockSize",
            "/spec/warmUp/paths",
            "/spec/mount/fileMode",
        ] {
            assert!(by_server.pointer(field).is_some(), "{field} has no default in the CRD");
        }
    }
}
