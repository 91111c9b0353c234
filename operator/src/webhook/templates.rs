//! Would the pods of a Deployment, a Job or their like be refused? Pure.

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use kube::api::DynamicObject;
use serde_json::Value;

use super::mutate::{Refusal, mutate};

/// Where workloads have their pod template.
const TEMPLATES: [&str; 2] = ["/spec/template", "/spec/jobTemplate/spec/template"];

/// Why a workload is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("its pods would be refused: {refusal}")]
pub struct TemplateRefusal {
    /// What each of its pods would be told.
    pub refusal: Refusal,
}

/// Judges the pod template of a workload, and gives warnings. A template that is as it was is not judged again: a workload
/// that is there already can always be scaled, labelled and deleted.
///
/// # Errors
/// With what each of its pods would be told.
pub fn validate(object: &DynamicObject, old: Option<&DynamicObject>) -> Result<Vec<String>, TemplateRefusal> {
    if object.metadata.deletion_timestamp.is_some() {
        return Ok(Vec::new());
    }
    for path in TEMPLATES {
        let Some(template) = object.data.pointer(path) else { continue };
        if old.and_then(|old| old.data.pointer(path)) == Some(template) {
            continue;
        }
        // What is no template is for the API server to say.
        let Ok(pod) = pod(template) else { continue };
        return mutate(&pod).map(|mutation| mutation.warnings).map_err(|refusal| TemplateRefusal { refusal });
    }
    Ok(Vec::new())
}

fn pod(template: &Value) -> Result<Pod, serde_json::Error> {
    let PodTemplateSpec { metadata, spec } = serde_json::from_value(template.clone())?;
    Ok(Pod { metadata: metadata.unwrap_or_default(), spec, status: None })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(annotation: &str) -> Value {
        json!({
            "metadata": {"annotations": {"millrace.dev/dataset": annotation}},
            "spec": {"containers": [{"name": "m", "image": "x"}]},
        })
    }

    fn object(kind: &str, spec: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "x/v1", "kind": kind, "metadata": {"name": "w", "namespace": "n"}, "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn a_wrong_template_is_refused_with_what_its_pods_would_be_told() {
        for workload in [
            object("Job", json!({"template": template("imagenet")})),
            object(
                "CronJob",
                json!({"schedule": "@daily", "jobTemplate": {"spec": {"template": template("imagenet")}}}),
            ),
        ] {
            let refusal = validate(&workload, None).unwrap_err().to_string();
            assert!(
                refusal
                    .starts_with("its pods would be refused: annotation millrace.dev/dataset: \"imagenet\"")
                    && refusal.contains("\"imagenet=/data\""),
                "{refusal}"
            );
        }
        assert_eq!(validate(&object("Job", json!({"template": template("a=/data")})), None), Ok(vec![]));
    }

    #[test]
    fn what_was_there_before_can_be_scaled_and_deleted() {
        let old = object("Deployment", json!({"replicas": 1, "template": template("wrong")}));
        let scaled = object("Deployment", json!({"replicas": 2, "template": template("wrong")}));
        assert_eq!(validate(&scaled, Some(&old)), Ok(vec![]));
        let other = object("Deployment", json!({"replicas": 1, "template": template("wrong too")}));
        assert!(validate(&other, Some(&old)).is_err());
        let mut going = other;
        going.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        assert_eq!(validate(&going, Some(&old)), Ok(vec![]));
    }

    #[test]
    fn what_has_no_template_is_let_pass() {
        assert_eq!(validate(&object("Other", json!({"x": 1})), None), Ok(vec![]));
        assert_eq!(validate(&object("Job", json!({"template": 3})), None), Ok(vec![]));
    }
}
