//! How is an admission review answered?

use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::api::DynamicObject;
use kube::core::Status;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use serde::de::DeserializeOwned;

use super::metrics::{Outcome, WebhookMetrics};
use super::mutate::mutate;
use super::templates;

/// Path of the review of new pods.
pub const MUTATE_PODS: &str = "/mutate-pods";
/// Path of the review of workloads.
pub const VALIDATE_TEMPLATES: &str = "/validate-templates";

/// Largest review: the API server takes objects of up to 3 MiB, and an update shows two.
const MAX_BODY_BYTES: usize = 8 << 20;

/// Answers reviews.
pub fn router(metrics: WebhookMetrics) -> Router {
    Router::new()
        .route(MUTATE_PODS, post(pods))
        .route(VALIDATE_TEMPLATES, post(workloads))
        .route("/healthz", get(|| async { "ok\n" }))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(metrics)
}

async fn pods(State(metrics): State<WebhookMetrics>, body: Bytes) -> Response {
    answer(&metrics, MUTATE_PODS, &body, |request: &AdmissionRequest<Pod>| {
        let response = AdmissionResponse::from(request);
        let Some(pod) = &request.object else { return (response, Outcome::Unchanged) };
        match mutate(pod) {
            Err(refusal) => refuse(response, &refusal.to_string()),
            Ok(mutation) => {
                let response = warn(response, mutation.warnings);
                if mutation.patch.0.is_empty() {
                    return (response, Outcome::Unchanged);
                }
                match response.with_patch(mutation.patch) {
                    Ok(response) => (response, Outcome::Patched),
                    Err(error) => (AdmissionResponse::invalid(error), Outcome::Invalid),
                }
            }
        }
    })
}

async fn workloads(State(metrics): State<WebhookMetrics>, body: Bytes) -> Response {
    answer(&metrics, VALIDATE_TEMPLATES, &body, |request: &AdmissionRequest<DynamicObject>| {
        let response = AdmissionResponse::from(request);
        let Some(object) = &request.object else { return (response, Outcome::Unchanged) };
        match templates::validate(object, request.old_object.as_ref()) {
            Err(refusal) => refuse(response, &refusal.to_string()),
            Ok(warnings) => (warn(response, warnings), Outcome::Unchanged),
        }
    })
}

fn answer<T>(
    metrics: &WebhookMetrics,
    path: &'static str,
    body: &[u8],
    judge: impl FnOnce(&AdmissionRequest<T>) -> (AdmissionResponse, Outcome),
) -> Response
where
    T: Resource + DeserializeOwned,
{
    let began = Instant::now();
    let request =
        serde_json::from_slice::<AdmissionReview<T>>(body).map_err(|error| error.to_string()).and_then(
            |review| TryInto::<AdmissionRequest<T>>::try_into(review).map_err(|error| error.to_string()),
        );
    let (response, outcome) = match &request {
        Ok(request) => judge(request),
        Err(problem) => {
            tracing::warn!(path, problem, "review not understood");
            (AdmissionResponse::invalid(problem), Outcome::Invalid)
        }
    };
    if let (Outcome::Refused, Ok(request)) = (outcome, &request) {
        let AdmissionRequest { namespace, name, .. } = request;
        tracing::debug!(path, namespace, name, message = response.result.message, "refused");
    }
    metrics.answered(path, outcome, began.elapsed());
    match serde_json::to_vec(&response.into_review()) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => {
            tracing::error!(path, %error, "answer not encoded");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Refused as something that its author can put right: 422, as the API server's own validation does.
fn refuse(mut response: AdmissionResponse, message: &str) -> (AdmissionResponse, Outcome) {
    response.allowed = false;
    response.result = Status { code: 422, ..Status::failure(message, "Invalid") };
    (response, Outcome::Refused)
}

fn warn(mut response: AdmissionResponse, warnings: Vec<String>) -> AdmissionResponse {
    if !warnings.is_empty() {
        response.warnings = Some(warnings);
    }
    response
}
