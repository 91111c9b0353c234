//! How do pods come by the datasets that they name?
//!
//! The API server asks `/mutate-pods` about each new pod that carries the annotation `millrace.dev/dataset`, and is told what to
//! add ([`mutate`]). It asks `/validate-templates` about the pod templates of Deployments, Jobs and their like, so that a wrong
//! annotation is refused where the user sees it, at `kubectl apply`, and not in the events of a ReplicaSet ([`templates`]).
//!
//! Every replica serves ([`server`]), all with the certificate that is in one Secret ([`secret`], [`rotation`]); the one with the
//! lease renews it ([`certificates`]) and tells the API server whom to trust ([`trust`]). A replica is ready once that is so, and
//! the Service has no address before. The chart makes:
//!
//! ```yaml
//! apiVersion: admissionregistration.k8s.io/v1
//! kind: MutatingWebhookConfiguration
//! metadata: {name: millrace}
//! webhooks:
//! - name: pods.millrace.dev
//!   admissionReviewVersions: [v1]
//!   sideEffects: None
//!   reinvocationPolicy: IfNeeded      # containers that other webhooks add after us get the mounts too
//!   failurePolicy: Fail               # a job without its data is worse than a job that is refused
//!   timeoutSeconds: 10
//!   clientConfig: {service: {name: millrace-webhook, namespace: millrace-system, path: /mutate-pods, port: 443}}  # no caBundle
//!   rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods], scope: Namespaced}]
//!   matchConditions:                  # other pods never reach it
//!   - name: names-a-dataset
//!     expression: has(object.metadata.annotations) && "millrace.dev/dataset" in object.metadata.annotations
//! ---
//! apiVersion: admissionregistration.k8s.io/v1
//! kind: ValidatingWebhookConfiguration
//! metadata: {name: millrace}
//! webhooks:
//! - name: templates.millrace.dev
//!   admissionReviewVersions: [v1]
//!   sideEffects: None
//!   failurePolicy: Ignore             # only says earlier what /mutate-pods says anyway
//!   timeoutSeconds: 5
//!   clientConfig: {service: {name: millrace-webhook, namespace: millrace-system, path: /validate-templates, port: 443}}
//!   rules:
//!   - {apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [deployments, statefulsets, daemonsets, replicasets], scope: Namespaced}
//!   - {apiGroups: [batch], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [jobs, cronjobs], scope: Namespaced}
//!   matchConditions:
//!   - name: template-names-a-dataset
//!     expression: >-
//!       (has(object.spec.template) && has(object.spec.template.metadata) && has(object.spec.template.metadata.annotations)
//!       && "millrace.dev/dataset" in object.spec.template.metadata.annotations)
//!       || (has(object.spec.jobTemplate) && has(object.spec.jobTemplate.spec.template.metadata)
//!       && has(object.spec.jobTemplate.spec.template.metadata.annotations)
//!       && "millrace.dev/dataset" in object.spec.jobTemplate.spec.template.metadata.annotations)
//! ```
//!
//! Rights beside the Secret (`get`, `patch` by name, `create`): `get, list, watch, patch` on both configurations by name.

mod certificates;
pub mod metrics;
pub mod mutate;
mod review;
mod rotation;
mod secret;
mod server;
pub mod templates;
mod trust;

use std::net::SocketAddr;
use std::sync::Arc;

use kube::Client;
use millrace_daemon::readiness::Condition;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use self::metrics::WebhookMetrics;
use self::rotation::Rotation;
use self::server::Shown;
use crate::lease::Held;

/// What is called how.
#[derive(Debug, Clone)]
pub struct WebhookConfig {
    /// The operator's namespace: of the Secret and the Service.
    pub namespace: String,
    /// The Secret with the certificates.
    pub certificate_secret: String,
    /// The Service by which the API server reaches it.
    pub service: String,
    /// Name of both webhook configurations.
    pub configuration: String,
}

/// What the webhook needs of the rest of the operator.
pub struct Webhook {
    /// Reaches the API server.
    pub client: Client,
    /// Names.
    pub config: WebhookConfig,
    /// Counts.
    pub metrics: WebhookMetrics,
    /// Met once there is a certificate to show.
    pub certificate: Condition,
    /// Met while the API server trusts it.
    pub trust: Condition,
    /// Whether this replica has the lease: only then it changes what all share.
    pub lease: Held,
}

/// Why the webhook ended.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The address is in use, or not ours.
    #[error("listen on webhook address {address}: choose another with --webhook-address")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// TLS cannot be set up.
    #[error("serve webhook address {address}")]
    Serve {
        /// The address.
        address: SocketAddr,
        /// What went wrong.
        source: std::io::Error,
    },
}

/// A bound port of the webhook.
#[derive(Debug)]
pub struct WebhookPort {
    listener: TcpListener,
    address: SocketAddr,
}

impl WebhookPort {
    /// Binds an address; port 0 takes a free one.
    ///
    /// # Errors
    /// Where it is in use, or not ours.
    pub async fn bind(address: SocketAddr) -> Result<Self, WebhookError> {
        let failed = |source| WebhookError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Serves until `stop` and some seconds longer, keeps the certificate fresh and, with the lease, the API server's trust in it.
///
/// # Errors
/// Where serving ends before it is to. Trouble with the API server is logged and tried again.
pub async fn run(webhook: Webhook, port: WebhookPort, stop: CancellationToken) -> Result<(), WebhookError> {
    let Webhook { client, config, metrics, certificate, trust, lease } = webhook;
    let WebhookPort { listener, address } = port;
    let shown = Arc::new(Shown::default());
    let (sender, authorities) = watch::channel(None);
    let rotation =
        Rotation::new(&client, &config, Arc::clone(&shown), sender, metrics.clone(), lease.clone());
    let distrusted = Arc::new(Notify::new());
    let told = trust::Told { readiness: trust, distrusted: Arc::clone(&distrusted) };
    let trust = trust::keep(&client, &config, authorities, lease, told);
    let background = async {
        // Neither ends by itself.
        tokio::join!(rotation.run(certificate, distrusted), trust);
    };
    tokio::select! {
        served = server::serve(listener, shown, metrics, stop) => {
            served.map_err(|source| WebhookError::Serve { address, source })
        }
        () = background => Ok(()),
    }
}
