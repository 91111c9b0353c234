//! What is wrong with a Dataset that the API server has taken? Pure.

use k8s_openapi::api::core::v1::Affinity;
use millrace_api::dataset::spec::{Dataset, Medium};
use millrace_api::names;
use serde_json::Value;

use crate::workers::steer::WarmRequest;

/// Memory that a worker needs beside its tiers of memory, bytes.
const LEAST_MEMORY: u64 = 128 << 20;

/// Most problems that are listed.
const MAX_PROBLEMS: usize = 10;

/// Most paths of a warm-up on request: an annotation holds a few thousand short ones.
const MAX_WARM_PATHS: usize = 1000;

/// Lists the problems, each with field and cure. Empty: it is accepted.
pub fn problems(dataset: &Dataset) -> Vec<String> {
    let mut problems: Vec<String> = dataset.check().iter().map(ToString::to_string).collect();
    let workers = &dataset.spec.workers;
    if let Some(affinity) = &workers.template.affinity {
        let value = Value::Object(affinity.0.clone());
        if let Err(error) = serde_json::from_value::<Affinity>(value) {
            problems.push(format!("spec.workers.template.affinity: it is none of a pod: {error}"));
        }
    }
    if let Some(limit) = workers.template.resources.limits.get("memory") {
        let needed = workers.cache.quota_bytes(Medium::Memory).saturating_add(LEAST_MEMORY);
        let bytes = limit.as_str().parse::<millrace_api::dataset::sizes::ByteSize>().map(|size| size.bytes());
        if bytes.is_ok_and(|bytes| bytes < needed) {
            problems.push(format!(
                "spec.workers.template.resources.limits.memory: {} is less than the tiers of Memory and 128Mi: give at least {needed}",
                limit.as_str()
            ));
        }
    }
    problems.truncate(MAX_PROBLEMS);
    problems
}

/// The warm-up that the user asks for by annotation; what is wrong with the annotation.
///
/// # Errors
/// In words: the annotation, and its form.
pub fn warm_request(dataset: &Dataset) -> Result<Option<WarmRequest>, String> {
    let annotations = dataset.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|all| all.get(names::WARM_ANNOTATION)) else { return Ok(None) };
    let form = r#"write {"id": "1", "paths": ["/train"]}, with another id for each request"#;
    let request: WarmRequest = serde_json::from_str(text)
        .map_err(|error| format!("annotation {}: {error}: {form}", names::WARM_ANNOTATION))?;
    let is_path = |path: &String| path.starts_with('/') && path.len() <= 1024;
    if request.id.is_empty()
        || request.id.len() > 128
        || request.paths.is_empty()
        || request.paths.len() > MAX_WARM_PATHS
    {
        return Err(format!(
            "annotation {}: 1 to {MAX_WARM_PATHS} paths and an id of at most 128 characters: {form}",
            names::WARM_ANNOTATION
        ));
    }
    match request.paths.iter().find(|path| !is_path(path)) {
        Some(path) => Err(format!(
            "annotation {}: path {path:?} does not start with \"/\": {form}",
            names::WARM_ANNOTATION
        )),
        None => Ok(Some(request)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::tests::dataset;
    use serde_json::json;

    #[test]
    fn a_wrong_affinity_and_too_little_memory_are_named() {
        assert_eq!(problems(&dataset(json!({}))), Vec::<String>::new());
        let template = json!({"affinity": {"nodeAffinity": 5}, "resources": {"limits": {"memory": "1Gi"}}});
        let cache = json!({"tiers": [{"medium": "Memory", "quota": "1Gi"}]});
        let found = problems(&dataset(json!({"workers": {"template": template, "cache": cache}})));
        assert!(
            found.iter().any(|problem| problem.starts_with("spec.workers.template.affinity")),
            "{found:?}"
        );
        assert!(found.iter().any(|problem| problem.contains("limits.memory: 1Gi is less")), "{found:?}");
    }

    #[test]
    fn a_request_to_warm_is_parsed_or_refused_with_its_form() {
        let with = |text: &str| {
            let mut dataset = dataset(json!({}));
            dataset.metadata.annotations =
                Some([(names::WARM_ANNOTATION.to_owned(), text.to_owned())].into());
            warm_request(&dataset)
        };
        assert_eq!(with(r#"{"id": "1", "paths": ["/a"]}"#).unwrap().unwrap().paths, ["/a"]);
        for wrong in
            ["/a", r#"{"id": "1"}"#, r#"{"id": "1", "paths": ["a"]}"#, r#"{"id": "", "paths": ["/a"]}"#]
        {
            assert!(with(wrong).unwrap_err().contains("write {\"id\""), "{wrong}");
        }
        assert_eq!(warm_request(&dataset(json!({}))), Ok(None));
    }
}
