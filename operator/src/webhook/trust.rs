//! Does the API server trust the certificate that we show?
//!
//! Level driven: both configurations of our name are watched, and whenever one does not hold the bundle, it is given it. So a
//! configuration that is made again, or put back by somebody's template, is cured at once.
//!
//! Only the leader writes; every replica looks, and is ready only while the configuration for pods trusts what it shows: an
//! annotated pod that meets an earlier replica is refused. The lease does not wait for readiness, so that the leader of an
//! installation whose replicas are all unready makes them ready. The configuration for templates counts for nothing here: it
//! only says earlier what the other says anyway.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch as JsonPatch, PatchOperation, TestOperation};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use millrace_api::names::MANAGER;
use millrace_daemon::causes::with_causes;
use millrace_daemon::readiness::Condition;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::WebhookConfig;
use super::rotation::Authorities;
use crate::lease::{Held, RENEW_EVERY};

/// Before a refused patch is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(3);

/// Why this replica is not ready at first.
pub const NOT_SEEN_YET: &str = "whom the API server trusts is not known yet";

/// Who is told whether this replica is trusted.
#[derive(Clone)]
pub struct Told {
    /// Met while the API server trusts what this replica shows.
    pub readiness: Condition,
    /// Woken when it does not: another replica may show something newer, which the Secret has.
    pub distrusted: Arc<Notify>,
}

/// Keeps the bundle in both configurations while this replica leads, and tells whether it is trusted; goes on for ever.
pub async fn keep(
    client: &Client,
    config: &WebhookConfig,
    authorities: watch::Receiver<Option<Authorities>>,
    lease: Held,
    told: Told,
) {
    let mutating = ApiResource::erase::<MutatingWebhookConfiguration>(&());
    let validating = ApiResource::erase::<ValidatingWebhookConfiguration>(&());
    let mutating = Api::all_with(client.clone(), &mutating);
    let validating = Api::all_with(client.clone(), &validating);
    tokio::join!(
        keep_one(mutating, config, authorities.clone(), lease.clone(), Some(told)),
        keep_one(validating, config, authorities, lease, None),
    );
}

async fn keep_one(
    api: Api<DynamicObject>,
    config: &WebhookConfig,
    mut authorities: watch::Receiver<Option<Authorities>>,
    lease: Held,
    told: Option<Told>,
) {
    let WebhookConfig { configuration, namespace, service, .. } = config;
    let us = (service.as_str(), namespace.as_str());
    let only = watcher::Config::default().fields(&format!("metadata.name={configuration}"));
    let mut changes = pin!(watcher(api.clone(), only).default_backoff());
    let mut there = There::default();
    loop {
        let wanted = authorities.borrow_and_update().clone();
        if let Some(told) = &told {
            told.tell(wanted.as_ref(), &there, us);
        }
        let patch = wanted
            .zip(there.object.as_ref())
            .and_then(|(wanted, object)| missing(&object.data, us, &wanted.bundle));
        let is_ours_to_write = lease.is_held();
        let again_after = match patch {
            None => None,
            Some(_) if !is_ours_to_write => Some(RENEW_EVERY),
            Some(patch) => {
                let params =
                    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
                match api.patch(configuration, &params, &Patch::Json::<()>(patch)).await {
                    Ok(patched) => {
                        tracing::info!(configuration, "told the API server of the webhook's authority");
                        there.object = Some(patched);
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
                Some(Ok(event)) => there.take(event, configuration),
                Some(Err(error)) => {
                    let error = with_causes(&error);
                    tracing::warn!(configuration, error, "webhook configuration not watched");
                }
                None => return,
            },
            // Whoever tells of the authorities is never gone before this is.
            Ok(()) = authorities.changed() => {}
            () = lease.taken(), if again_after.is_some() && !is_ours_to_write => {}
            () = tokio::time::sleep(again_after.unwrap_or_default()), if again_after.is_some() => {}
        }
    }
}

/// The configuration as the watch has it. While the watch is broken it stays as it was: the API server goes by it too.
#[derive(Default)]
struct There {
    object: Option<DynamicObject>,
    /// Whether the watch has said what is there.
    is_known: bool,
    /// Whether the list that is being read has it.
    is_listed: bool,
}

impl There {
    fn take(&mut self, event: Event<DynamicObject>, name: &str) {
        match event {
            Event::Apply(object) if object.name_any() == *name => self.object = Some(object),
            Event::InitApply(object) if object.name_any() == *name => {
                self.is_listed = true;
                self.object = Some(object);
            }
            Event::Delete(object) if object.name_any() == *name => self.object = None,
            Event::Apply(_) | Event::InitApply(_) | Event::Delete(_) => {}
            Event::Init => self.is_listed = false,
            Event::InitDone => {
                self.is_known = true;
                if !self.is_listed {
                    self.object = None;
                }
            }
        }
    }
}

impl Told {
    fn tell(&self, shown: Option<&Authorities>, there: &There, us: (&str, &str)) {
        let reason = match (shown, &there.object) {
            // The other condition says so.
            (None, _) => NOT_SEEN_YET.to_owned(),
            (Some(_), None) if !there.is_known => NOT_SEEN_YET.to_owned(),
            (Some(_), None) => "there is no MutatingWebhookConfiguration of the webhook".to_owned(),
            (Some(shown), Some(object)) if trusts(&object.data, us, &shown.shown) => {
                return self.readiness.met();
            }
            (Some(_), Some(_)) => {
                self.distrusted.notify_one();
                "the MutatingWebhookConfiguration does not trust the certificate of this replica yet"
                    .to_owned()
            }
        };
        self.readiness.unmet(reason);
    }
}

/// Places of the webhooks that are served by our Service.
fn ours<'a>(
    configuration: &'a Value,
    (service, namespace): (&'a str, &'a str),
) -> impl Iterator<Item = (usize, &'a Value)> {
    let webhooks = configuration.get("webhooks").and_then(Value::as_array);
    webhooks.into_iter().flatten().enumerate().filter(move |(_, webhook)| {
        let of = |field| webhook.pointer(&format!("/clientConfig/service/{field}")).and_then(Value::as_str);
        of("name") == Some(service) && of("namespace") == Some(namespace)
    })
}

/// Whether all webhooks of our Service, at least one, trust an authority. They may trust others beside it: that of the
/// certificate before, or of the one that comes next.
fn trusts(configuration: &Value, us: (&str, &str), authority: &str) -> bool {
    let mut webhooks = ours(configuration, us).peekable();
    webhooks.peek().is_some()
        && webhooks.all(|(_, webhook)| {
            let bundle = webhook.pointer("/clientConfig/caBundle").cloned().unwrap_or_default();
            serde_json::from_value::<ByteString>(bundle)
                .is_ok_and(|ByteString(bundle)| String::from_utf8_lossy(&bundle).contains(authority.trim()))
        })
}

/// The change that gives every webhook of our Service the bundle; none where all have it.
fn missing(configuration: &Value, us: (&str, &str), bundle: &str) -> Option<JsonPatch> {
    let wanted = json!(ByteString(bundle.as_bytes().to_vec()));
    let mut operations = Vec::new();
    for (at, webhook) in ours(configuration, us) {
        if webhook.pointer("/clientConfig/caBundle") == Some(&wanted) {
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
    fn what_is_shown_is_trusted_beside_others_and_only_where_every_webhook_of_ours_trusts_it() {
        let us = ("s", "n");
        let service = json!({"name": "s", "namespace": "n"});
        let webhook = |bundle: &str| {
            let bundle = json!(ByteString(bundle.as_bytes().to_vec()));
            json!({"clientConfig": {"service": service, "caBundle": bundle}})
        };
        let of = |webhooks: Value| trusts(&json!({"webhooks": webhooks}), us, "new\n");
        assert!(of(json!([webhook("new")])) && of(json!([webhook("new\nold\n")])));
        assert!(!of(json!([webhook("old")])) && !of(json!([webhook("new"), webhook("old")])));
        assert!(!of(json!([{"clientConfig": {"service": service}}])));
        assert!(!of(json!([])) && !of(json!([{"clientConfig": {"url": "https://example.com"}}])));
        assert!(!trusts(&json!({}), us, "new"));
    }

    #[test]
    fn a_configuration_that_a_new_list_does_not_have_is_gone() {
        let object =
            || -> DynamicObject { serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap() };
        let mut there = There::default();
        there.take(Event::Init, "a");
        there.take(Event::InitApply(object()), "a");
        assert!(!there.is_known);
        there.take(Event::InitDone, "a");
        assert!(there.is_known && there.object.is_some());
        there.take(Event::Init, "a");
        assert!(there.object.is_some(), "nothing is known to be gone while the list is read");
        there.take(Event::InitDone, "a");
        assert!(there.object.is_none());
        there.take(Event::Apply(object()), "a");
        there.take(Event::Delete(object()), "b");
        assert!(there.object.is_some());
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
