//! How does the CustomResourceDefinition read as a page for people?

use std::fmt::Write as _;

use serde_json::Value;

const HEADER: &str = "\
<!-- Printed by `millrace crd --docs` from the types in crates/api/src/dataset. Do not edit. -->
# Reference: Dataset

`apiVersion: millrace.dev/v1alpha1`, `kind: Dataset`, namespaced. Short name `dts`; `kubectl get millrace` lists all of them.
`kubectl explain dataset.spec` shows the same from the cluster. A list is written `[]`; \"required\" means within its object.
What the API server refuses, it refuses with a message that names field, value and cure; `millrace validate -f FILE` says the same
without a cluster.
";

/// Fields whose content Kubernetes documents.
const KUBERNETES: [(&str, &str); 2] = [
    ("conditions", "https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/condition/"),
    ("affinity", "https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/"),
];

/// The page, from the schema of a Dataset.
pub fn page(schema: &Value) -> String {
    let mut text = HEADER.to_owned();
    for part in ["spec", "status"] {
        if let Some(schema) = schema.pointer(&format!("/properties/{part}")) {
            section(part, schema, &mut text);
        }
    }
    text
}

/// A table of the fields of an object, then a section for each of them that is an object itself.
fn section(path: &str, schema: &Value, text: &mut String) {
    let Some(fields) = schema.get("properties").and_then(Value::as_object) else { return };
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    // Writing to a String does not fail, here and below.
    let _ = write!(text, "\n## {path}\n\n{}\n\n| field | type | |\n|---|---|---|\n", description(schema));
    for (name, field) in fields {
        let mut about = description(field);
        if required.contains(&name.as_str()) {
            about = format!("Required. {about}");
        }
        if let Some((_, link)) = KUBERNETES.iter().find(|(field, _)| field == name) {
            let _ = write!(about, " See [Kubernetes]({link}).");
        }
        let _ = writeln!(text, "| `{name}` | {} | {} |", kind(field), about.replace('|', "\\|"));
    }
    for (name, field) in fields {
        if KUBERNETES.iter().any(|(field, _)| field == name) {
            continue;
        }
        let (inner, suffix) = match field.get("items") {
            Some(items) => (items, "[]"),
            None => (field, ""),
        };
        section(&format!("{path}.{name}{suffix}"), inner, text);
    }
}

fn description(schema: &Value) -> String {
    let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn kind(schema: &Value) -> String {
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        let values: Vec<String> =
            values.iter().filter_map(Value::as_str).map(|value| format!("`{value}`")).collect();
        return values.join(", ");
    }
    if schema.get("x-kubernetes-int-or-string").is_some() {
        return "size".to_owned();
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("array") => format!("list of {}", schema.get("items").map_or_else(|| "any".to_owned(), kind)),
        Some("object") => match schema.get("additionalProperties") {
            Some(values) => format!("map of {}", kind(values)),
            None => "object".to_owned(),
        },
        Some("string") if schema.get("format").and_then(Value::as_str) == Some("date-time") => {
            "time".to_owned()
        }
        Some(other) => other.to_owned(),
        None => "any".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_the_spec_has_its_line_and_a_meaning() {
        fn count(schema: &Value) -> usize {
            let fields = schema.get("properties").and_then(Value::as_object);
            fields.map_or(0, |fields| fields.len() + fields.values().map(count).sum::<usize>())
                + schema.get("items").map_or(0, count)
        }
        let schema = millrace_api::dataset::crd::dataset_schema();
        let page = page(schema);
        let spec = schema.pointer("/properties/spec").map_or(0, count);
        let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        assert!(spec > 40 && lines.len() > spec, "{spec} fields, {} lines", lines.len());
        let without: Vec<&&str> = lines.iter().filter(|line| line.trim_end().ends_with("| |")).collect();
        assert!(without.is_empty(), "{without:?}");
        assert!(page.contains("| `blockSize` | `1Mi`, `2Mi`"));
        assert!(page.contains("\n## spec.sources[].s3.credentials\n"));
    }
}
