//! Over which connections do requests go, and whom do they trust?

use std::time::Duration;

use aws_sdk_s3::config::SharedHttpClient;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::names::Names;

/// Idle connections kept for the next burst: as many as a window can use.
const MAX_IDLE: usize = 128;
/// S3 closes idle connections after some 20 s (seen, not promised); we do it first, so that no request meets a closed one.
const MAX_IDLE_TIME: Duration = Duration::from_secs(15);

/// Says why certificates of authorities cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "ca.crt of the credentials: {reason}; write the authorities' certificates in PEM, one after the other"
)]
pub struct BadCa {
    reason: String,
}

/// Whom to trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust<'a> {
    /// Nobody: for endpoints without TLS.
    Nobody,
    /// The system's authorities.
    System,
    /// Only these, in PEM.
    Only(&'a str),
}

impl<'a> Trust<'a> {
    /// What an endpoint needs; none is AWS.
    pub(super) fn for_endpoint(endpoint: Option<&str>, ca: Option<&'a str>) -> Self {
        match (endpoint, ca) {
            (Some(url), _) if url.starts_with("http://") => Self::Nobody,
            (_, Some(pem)) => Self::Only(pem),
            (_, None) => Self::System,
        }
    }
}

/// Makes a pool of connections.
pub(super) fn http_client(trust: Trust<'_>) -> Result<SharedHttpClient, BadCa> {
    let store = match trust {
        Trust::Nobody => TrustStore::empty(),
        Trust::System => TrustStore::default(),
        Trust::Only(pem) => {
            check_pem(pem)?;
            TrustStore::empty().with_pem_certificate(pem.as_bytes())
        }
    };
    let context = TlsContext::builder()
        .with_trust_store(store)
        .build()
        .map_err(|err| BadCa { reason: err.to_string() })?;
    Ok(Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .tls_context(context)
        .pool_max_idle_per_host(MAX_IDLE)
        .pool_idle_timeout(MAX_IDLE_TIME)
        .build_with_resolver(Names))
}

/// The HTTP client panics on certificates that it cannot parse.
fn check_pem(pem: &str) -> Result<(), BadCa> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|err| BadCa { reason: err.to_string() })?;
        roots.add(certificate).map_err(|err| BadCa { reason: err.to_string() })?;
    }
    if roots.is_empty() { Err(BadCa { reason: "no certificate found".to_owned() }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_that_cannot_be_parsed_are_refused_and_do_not_panic() {
        for pem in [
            "",
            "nonsense",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "-----BEGIN CERTIFICATE-----\n",
        ] {
            assert!(http_client(Trust::Only(pem)).is_err(), "{pem:?}");
        }
    }

    #[test]
    fn an_endpoint_without_tls_needs_no_authority() {
        assert_eq!(Trust::for_endpoint(Some("http://s3:9000"), Some("pem")), Trust::Nobody);
        assert_eq!(Trust::for_endpoint(Some("https://s3:9000"), Some("pem")), Trust::Only("pem"));
        assert_eq!(Trust::for_endpoint(None, None), Trust::System);
    }
}
