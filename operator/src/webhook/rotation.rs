//! Which certificates does this replica hold, and are they those of the Secret?
//!
//! Level driven: every round reads the Secret, takes the one step that is due, and shows what is held then. Any replica makes the
//! Secret when it has nothing to show; only the one with the lease changes it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use millrace_daemon::causes::with_causes;
use millrace_daemon::readiness::Condition;
use tokio::sync::{Notify, watch};

use super::WebhookConfig;
use super::certificates::{Certificate, Certificates, MakeCertificate, Step};
use super::metrics::WebhookMetrics;
use super::secret::{CertificateSecret, Content, SecretError, Written};
use super::server::{Shown, UseCertificate};
use crate::lease::Held;

/// How often the Secret is read: far less than the time that a new certificate is known before it is shown.
const READ_EVERY: Duration = Duration::from_secs(60);

/// The same while there is nothing to show, after a failure, or when the API server does not trust what is shown.
const RETRY_EVERY: Duration = Duration::from_secs(2);

/// Reads after writes of others, in one round.
const MAX_CONFLICTS: usize = 5;

/// Whom the API server is to trust, PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorities {
    /// All of them.
    pub bundle: String,
    /// That of the certificate that this replica shows.
    pub shown: String,
}

/// Keeps the certificate that is shown the one of the Secret.
pub struct Rotation {
    secret: CertificateSecret,
    host: String,
    shown: Arc<Shown>,
    authorities: watch::Sender<Option<Authorities>>,
    metrics: WebhookMetrics,
    lease: Held,
    held: Option<Certificates>,
}

/// Why a round did not come to its end.
#[derive(Debug, thiserror::Error)]
enum RoundError {
    #[error("read or write the certificates")]
    Secret(#[source] SecretError),
    #[error("make a certificate")]
    Make(#[source] MakeCertificate),
    #[error("show a certificate")]
    Show(#[source] UseCertificate),
    #[error(
        "the certificates are not readable ({problem}) and this replica has not the lease to make others"
    )]
    Garbage { problem: String },
    #[error("other replicas changed the certificates {MAX_CONFLICTS} times in a row")]
    Conflicts,
}

impl Rotation {
    /// Begins with nothing.
    pub fn new(
        client: &Client,
        config: &WebhookConfig,
        shown: Arc<Shown>,
        authorities: watch::Sender<Option<Authorities>>,
        metrics: WebhookMetrics,
        lease: Held,
    ) -> Self {
        let WebhookConfig { namespace, certificate_secret, service, .. } = config;
        let secret = CertificateSecret::new(client, namespace, certificate_secret);
        // The name by which the API server calls a Service.
        let host = format!("{service}.{namespace}.svc");
        Self { secret, host, shown, authorities, metrics, lease, held: None }
    }

    /// Goes on for ever. `distrusted` is woken while the API server does not trust what is shown.
    pub async fn run(mut self, readiness: Condition, distrusted: Arc<Notify>) {
        loop {
            let wait = match self.round(Timestamp::now()).await {
                Ok(()) => {
                    readiness.met();
                    READ_EVERY
                }
                Err(error) => {
                    let error = with_causes(&error);
                    tracing::warn!(error, "webhook certificates not up to date");
                    if self.held.is_none() {
                        readiness.unmet(format!("no certificate: {error}"));
                    }
                    RETRY_EVERY
                }
            };
            tokio::time::sleep(RETRY_EVERY).await;
            let rest = wait.saturating_sub(RETRY_EVERY);
            tokio::select! { () = tokio::time::sleep(rest) => {}, () = distrusted.notified() => {} }
        }
    }

    /// Reads, takes what steps are due, and shows.
    async fn round(&mut self, now: Timestamp) -> Result<(), RoundError> {
        for _ in 0..MAX_CONFLICTS {
            let certificates = match self.secret.read().await.map_err(RoundError::Secret)? {
                // Deleted below us: what the API server trusts is what we hold.
                Content::Nothing => {
                    let certificates = match &self.held {
                        Some(held) => held.clone(),
                        None => self.make(now)?,
                    };
                    match self.secret.create(&certificates).await.map_err(RoundError::Secret)? {
                        Written::Yes => certificates,
                        Written::Conflict => continue,
                    }
                }
                Content::Garbage { problem, .. } if !self.lease.is_held() => {
                    return Err(RoundError::Garbage { problem });
                }
                Content::Garbage { version, problem } => {
                    tracing::warn!(problem, "webhook certificates cannot be read and are made anew");
                    let certificates = match &self.held {
                        Some(held) => held.clone(),
                        None => self.make(now)?,
                    };
                    match self.secret.replace(&version, &certificates).await.map_err(RoundError::Secret)? {
                        Written::Yes => certificates,
                        Written::Conflict => continue,
                    }
                }
                Content::Certificates { certificates, version } => {
                    let step = if self.lease.is_held() { certificates.step(now) } else { Step::Keep };
                    if step == Step::Keep {
                        *certificates
                    } else {
                        tracing::info!(?step, "webhook certificates");
                        let after = certificates.after(step, &self.host, now).map_err(RoundError::Make)?;
                        match self.secret.replace(&version, &after).await.map_err(RoundError::Secret)? {
                            // Another step may be due at once.
                            Written::Yes | Written::Conflict => continue,
                        }
                    }
                }
            };
            return self.show(certificates);
        }
        Err(RoundError::Conflicts)
    }

    fn make(&self, now: Timestamp) -> Result<Certificates, RoundError> {
        Certificate::make(&self.host, now).map(Certificates::new).map_err(RoundError::Make)
    }

    fn show(&mut self, certificates: Certificates) -> Result<(), RoundError> {
        if self.held.as_ref() == Some(&certificates) {
            return Ok(());
        }
        let Certificate { certificate, key, .. } = &certificates.shown;
        self.shown.show(certificate, key).map_err(RoundError::Show)?;
        self.metrics.certificate_expires(certificates.shown.until);
        let shown = certificates.shown.authority.clone();
        self.authorities.send_replace(Some(Authorities { bundle: certificates.bundle(), shown }));
        self.held = Some(certificates);
        Ok(())
    }
}
