//! What is wrong with a Dataset? The same answer for `millrace validate`, the operator and, but for what CEL cannot say, the API
//! server.

use std::fmt;

use kube::core::cel::{ErrorKind, Validator};
use serde_json::Value;

use super::spec::{Cache, Dataset, Source};
use super::{crd, globs, schema};

/// Longest name of a file or folder, bytes (Linux NAME_MAX).
const MAX_NAME_BYTES: usize = 255;

/// Most characters of a value that are repeated in a message.
const MAX_SHOWN_CHARS: usize = 80;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field, such as `spec.sources[0].path`.
    pub field: String,
    /// Its value, as JSON, shortened.
    pub value: String,
    /// What is wrong with it, and the cure. Names the value.
    pub message: String,
}

impl Problem {
    /// Describes a problem of a field.
    pub fn new(field: &str, value: &Value, message: impl Into<String>) -> Self {
        Self { field: field.to_owned(), value: shown(value), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

impl Dataset {
    /// Lists what is wrong with this Dataset. Empty: it is valid.
    pub fn check(&self) -> Vec<Problem> {
        let object = serde_json::to_value(self).expect("a Dataset is maps, lists and texts");
        let mut problems = check_object(&object, None);
        problems.extend(check_meaning(self, &object));
        problems
    }

    /// Lists what is wrong with this Dataset as a successor of `old`.
    pub fn check_update(&self, old: &Dataset) -> Vec<Problem> {
        let object = serde_json::to_value(self).expect("a Dataset is maps, lists and texts");
        let old = serde_json::to_value(old).expect("a Dataset is maps, lists and texts");
        let mut problems = check_object(&object, Some(&old));
        problems.extend(check_meaning(self, &object));
        problems
    }
}

/// Lists what the API server would say of an object, `old` being what it replaces: schema, then CEL rules.
pub fn check_object(object: &Value, old: Option<&Value>) -> Vec<Problem> {
    let dataset_schema = crd::dataset_schema();
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let mut problems = schema::check(&dataset_schema["properties"]["spec"], spec, "spec");
    let by_rules = Validator::new().validate(dataset_schema, object, old).err().into_iter().flatten();
    for error in by_rules {
        // A rule meets a value of the wrong type: the schema has said so.
        let is_consequence = !problems.is_empty() && error.kind != ErrorKind::ValidationFailure;
        // The one rule of the whole object is about its name, which it may not say.
        let (field, message) = match error.field_path.trim_start_matches('.') {
            "" => {
                let name = at(object, "metadata.name");
                ("metadata.name".to_owned(), format!("{}: {}", shown(name), error.message))
            }
            field => (field.to_owned(), error.message),
        };
        if is_consequence || problems.iter().any(|problem| problem.field == field) {
            continue;
        }
        problems.push(Problem::new(&field, at(object, &field), message));
    }
    problems
}

/// What CEL cannot say, or only at too great a cost.
fn check_meaning(dataset: &Dataset, object: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut report = |field: String, message: String| {
        let problem = Problem::new(&field, at(object, &field), message);
        problems.push(problem);
    };
    let spec = &dataset.spec;
    if let Some(name) = dataset.metadata.name.as_deref().filter(|name| !is_dns_name(name)) {
        report(
            "metadata.name".into(),
            format!(
                "name {name:?} is not one that Kubernetes allows: use a-z, 0-9, \"-\" and \".\", first and last a letter or digit"
            ),
        );
    }
    if let Some(namespace) =
        dataset.metadata.namespace.as_deref().filter(|namespace| !is_dns_label(namespace))
    {
        report(
            "metadata.namespace".into(),
            format!(
                "namespace {namespace:?} is not one that Kubernetes allows: use up to 63 of a-z, 0-9 and \"-\", first and last a letter or digit"
            ),
        );
    }
    for (at, source) in spec.sources.iter().enumerate() {
        check_source(source, &format!("spec.sources[{at}]"), &mut report);
    }
    check_cache(&spec.workers.cache, &mut report);
    let block_bytes = spec.workers.cache.block_size().bytes();
    let node_quota = &spec.mount.node_cache.quota;
    if (1..block_bytes).contains(&node_quota.bytes()) {
        report(
            "spec.mount.nodeCache.quota".into(),
            format!(
                "quota {node_quota} is less than one block of {block_bytes} bytes: give more, or 0 to keep nothing"
            ),
        );
    }
    for (at, path) in spec.warm_up.paths.iter().enumerate() {
        if !spec
            .sources
            .iter()
            .any(|source| lies_within(path, &source.path) || lies_within(&source.path, path))
        {
            let paths: Vec<&str> = spec.sources.iter().map(|source| source.path.as_str()).collect();
            let field = format!("spec.warmUp.paths[{at}]");
            report(
                field,
                format!("path {path:?} lies in no source: start it with one of {}", paths.join(", ")),
            );
        }
    }
    problems
}

fn check_source(source: &Source, field: &str, report: &mut impl FnMut(String, String)) {
    if let Some(long) = source.path.split('/').find(|segment| segment.len() > MAX_NAME_BYTES) {
        let bytes = long.len();
        report(
            format!("{field}.path"),
            format!("folder {long:?} has {bytes} bytes: give a name of at most {MAX_NAME_BYTES}"),
        );
    }
    for (name, list) in [("include", &source.include), ("exclude", &source.exclude)] {
        for (at, glob) in list.iter().enumerate() {
            if let Err(error) = globs::compile(glob) {
                let why = error.source.kind();
                report(
                    format!("{field}.{name}[{at}]"),
                    format!(
                        "glob {glob:?} is none ({why}): put \"\\\" before characters that are meant as such"
                    ),
                );
            }
        }
    }
}

fn check_cache(cache: &Cache, report: &mut impl FnMut(String, String)) {
    let block_bytes = cache.block_size().bytes();
    for (at, tier) in cache.tiers.iter().enumerate() {
        if tier.quota.bytes() < block_bytes {
            let quota = &tier.quota;
            report(
                format!("spec.workers.cache.tiers[{at}].quota"),
                format!(
                    "quota {quota} is less than one block of {block_bytes} bytes: give more, or a smaller spec.workers.cache.blockSize"
                ),
            );
        }
    }
}

/// Whether `path` is `folder` or below it.
fn lies_within(path: &str, folder: &str) -> bool {
    let folder = folder.trim_end_matches('/');
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// RFC 1123 subdomain, as Kubernetes asks of names. Its length has a rule of its own.
fn is_dns_name(name: &str) -> bool {
    name.split('.').all(is_dns_label)
}

fn is_dns_label(label: &str) -> bool {
    let ends = [label.bytes().next(), label.bytes().last()];
    label.len() <= 63
        && ends.iter().all(|end| end.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
        && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// The value of a field such as `spec.sources[0].path`; null where there is none.
fn at<'v>(object: &'v Value, field: &str) -> &'v Value {
    let pointer: String =
        field.split(['.', '[']).map(|part| format!("/{}", part.trim_end_matches(']'))).collect();
    object.pointer(&pointer).unwrap_or(&Value::Null)
}

/// A value as JSON, shortened.
pub(super) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
