//! What does the webhook count?

use std::time::Duration;

use jiff::Timestamp;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};

/// Seconds: a pod is judged in well under a millisecond; the API server gives up after 10 s.
const BUCKETS: [f64; 8] = [0.0005, 0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0];

/// Counts of the webhook. Clones share them.
#[derive(Clone, Debug)]
pub struct WebhookMetrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    connections_refused: IntCounterVec,
    certificate_expires: IntGauge,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Allowed, with a patch.
    Patched,
    /// Allowed as it is.
    Unchanged,
    /// Refused, with a message for its author.
    Refused,
    /// Not a review that we understand.
    Invalid,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Outcome::Patched => "patched",
            Outcome::Unchanged => "unchanged",
            Outcome::Refused => "refused",
            Outcome::Invalid => "invalid",
        }
    }
}

impl WebhookMetrics {
    /// Makes them, and has the registry show them.
    ///
    /// # Errors
    /// When the registry has them already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let requests = IntCounterVec::new(
            Opts::new("operator_webhook_requests_total", "Admission reviews, by path and outcome."),
            &["path", "outcome"],
        )?;
        let seconds = HistogramVec::new(
            HistogramOpts::new("operator_webhook_request_seconds", "Time from a review to its answer.")
                .buckets(BUCKETS.to_vec()),
            &["path"],
        )?;
        let connections_refused = IntCounterVec::new(
            Opts::new(
                "operator_webhook_connections_failed_total",
                "Connections without a request, by cause.",
            ),
            &["cause"],
        )?;
        let certificate_expires = IntGauge::new(
            "operator_webhook_certificate_expiry_seconds",
            "When the certificate that is shown expires, in seconds since 1970.",
        )?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(seconds.clone()))?;
        registry.register(Box::new(connections_refused.clone()))?;
        registry.register(Box::new(certificate_expires.clone()))?;
        Ok(Self { requests, seconds, connections_refused, certificate_expires })
    }

    /// A review was answered.
    pub fn answered(&self, path: &'static str, outcome: Outcome, took: Duration) {
        self.requests.with_label_values(&[path, outcome.label()]).inc();
        self.seconds.with_label_values(&[path]).observe(took.as_secs_f64());
    }

    /// Somebody connected who does not trust the certificate, or does not speak TLS.
    pub fn handshake_failed(&self) {
        self.connections_refused.with_label_values(&["handshake"]).inc();
    }

    /// A certificate is shown.
    pub fn certificate_expires(&self, at: Timestamp) {
        self.certificate_expires.set(at.as_second());
    }
}
