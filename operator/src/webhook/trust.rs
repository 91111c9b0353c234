//! Does the API server trust the certificate that we show?
//!
//! Level driven: both configurations of our name are watched, and whenever one does not hold the bundle, it is given it. So a
//! configuration that is made again, or put back by somebody's template, is cured at once.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch as JsonPatch, PatchOperation, TestOperation};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use millrace_api::names::MANAGER;
use millrace_daemon::causes::with_causes;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::WebhookConfig;
use crate::lease::{Held, RENEW_EVERY};

/// Before a refused patch is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(3);

/// Keeps the bundle in both configurations while this replica leads; goes on for ever.
pub async fn keep(
    client: &Client,
    config: &WebhookConfig,
    bundle: watch::Receiver<Option<String>>,
    lease: Held,
) {
    let mutating = ApiResource::erase::<MutatingWebhookConfiguration>(&());
    let validating = ApiResource::erase::<ValidatingWebhookConfiguration>(&());
    tokio::join!(
        keep_one(Api::all_with(client.clone(), &mutating), config, bundle.clone(), lease.clone()),
        keep_one(Api::all_with(client.clone(), &validating), config, bundle, lease),
    );
}

async fn keep_one(
    api: Api<DynamicObject>,
    config: &WebhookConfig,
    mut bundle: watch::Receiver<Option<String>>,
    lease: Held,
) {
    let WebhookConfig { configuration, namespace, service, .. } = config;
    let only = watcher::Config::default().fields(&format!("metadata.name={configuration}"));
    let mut changes = pin!(watcher(api.clone(), only).default_backoff().applied_objects());
    let mut there: Option<DynamicObject> = None;
    loop {
        let wanted = bundle.borrow_and_update().clone();
        let patch = wanted
            .zip(there.as_ref())
            .and_then(|(wanted, object)| missing(&object.data, (service, namespace), &wanted));
        let again_after = match patch {
            None => None,
            Some(_) if !lease.is_held() => Some(RENEW_EVERY),
            Some(patch) => {
                let params =
                    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
                match api.patch(configuration, &params, &Patch::Json::<()>(patch)).await {
                    Ok(patched) => {
                        tracing::info!(configuration, "told the API server of the webhook's authority");
                        there = Some(patched);
                        continue;
                    }
                    Err(error) => {
                        let error = with_causes(&error);
                        tracing::warn!(configuration, error, "webhook configuration not patched");
                        Some(RETRY_AFTER)
                    }
                }
            }
        };
        tokio::select! {
            change = changes.next() => match change {
                Some(Ok(object)) if object.name_any() == *configuration => there = Some(object),
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    let error = with_causes(&error);
                    tracing::warn!(configuration, error, "webhook configuration not watched");
                }
                None => return,
            },
            // Whoever tells of the bundle is never gone before this is.
            Ok(()) = bundle.changed() => {}
            () = tokio::time::sleep(again_after.unwrap_or_default()), if again_after.is_some() => {}
        }
    }
}

/// The change that gives every webhook of our Service the bundle; none where all have it.
fn missing(configuration: &Value, (service, namespace): (&str, &str), bundle: &str) -> Option<JsonPatch> {
    let wanted = json!(ByteString(bundle.as_bytes().to_vec()));
    let mut operations = Vec::new();
    let webhooks = configuration.get("webhooks").and_then(Value::as_array);
    for (at, webhook) in webhooks.into_iter().flatten().enumerate() {
        let client = webhook.get("clientConfig");
        let of =
            |field| client.and_then(|client| client.get("service")).and_then(|service| service.get(field));
        let is_ours = of("name") == Some(&json!(service)) && of("namespace") == Some(&json!(namespace));
        if !is_ours || client.and_then(|client| client.get("caBundle")) == Some(&wanted) {
            continue;
        }
        let at = at.to_string();
        let path = |field: &[&str]| {
            PointerBuf::from_tokens(["webhooks", at.as_str()].into_iter().chain(field.iter().copied()))
        };
        // The list may have changed since: the place must still be this webhook's.
        let name = webhook.get("name").cloned().unwrap_or_default();
        operations.push(PatchOperation::Test(TestOperation { path: path(&["name"]), value: name }));
        let path = path(&["clientConfig", "caBundle"]);
        operations.push(PatchOperation::Add(AddOperation { path, value: wanted.clone() }));
    }
    (!operations.is_empty()).then_some(JsonPatch(operations))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_webhooks_of_our_service_that_lack_the_bundle_are_given_it() {
        let ours =
            json!({"name": "millrace-webhook", "namespace": "millrace-system", "path": "/mutate-pods"});
        let mut configuration = json!({"webhooks": [
            {"name": "a", "clientConfig": {"service": {"name": "other", "namespace": "millrace-system"}, "caBundle": "eA=="}},
            {"name": "b", "clientConfig": {"service": ours}},
            {"name": "c", "clientConfig": {"service": ours, "caBundle": "b2xk"}},
            {"name": "d", "clientConfig": {"url": "https://example.com"}},
        ]});
        let us = ("millrace-webhook", "millrace-system");
        let patch = missing(&configuration, us, "new").unwrap();
        json_patch::patch(&mut configuration, &patch).unwrap();
        let bundles: Vec<Option<&str>> = (0..4)
            .map(|at| configuration["webhooks"][at]["clientConfig"].get("caBundle").and_then(Value::as_str))
            .collect();
        assert_eq!(bundles, [Some("eA=="), Some("bmV3"), Some("bmV3"), None]);
        assert_eq!(missing(&configuration, us, "new"), None);
    }

    #[test]
    fn a_list_that_changed_meanwhile_is_not_patched() {
        let ours = json!({"name": "s", "namespace": "n"});
        let seen = json!({"webhooks": [{"name": "b", "clientConfig": {"service": ours}}]});
        let patch = missing(&seen, ("s", "n"), "new").unwrap();
        let mut now = json!({"webhooks": [{"name": "a", "clientConfig": {}}]});
        assert!(json_patch::patch(&mut now, &patch).is_err());
    }
}
