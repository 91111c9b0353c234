//! Who may connect to the webhook, and which certificate is shown?
//!
//! HTTP/1.1 over TLS. The certificate is looked up at each handshake, so that a new one is shown without a restart. At the end
//! of the process it goes on accepting for a moment: the API server learns later than we that this replica leaves the Service.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::metrics::WebhookMetrics;
use super::review;

/// Connections at a time: an API server keeps some tens, and there are a few of them; more wait.
const MAX_CONNECTIONS: usize = 512;

/// How long a handshake may take.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

/// How long a connection may be without a request. Go's clients close theirs after 90 s.
const HEADER_DEADLINE: Duration = Duration::from_secs(120);

/// How long connections are still accepted when the process ends: as endpoints take to spread; within the process' own grace.
const LINGER: Duration = Duration::from_secs(3);

/// How long a connection has for the request that it is in after that.
const LAST_REQUEST_DEADLINE: Duration = Duration::from_secs(1);

/// Before accepting again when files or memory are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The certificate that is shown; nothing at first.
#[derive(Debug, Default)]
pub struct Shown(RwLock<Option<Arc<CertifiedKey>>>);

/// A certificate cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum UseCertificate {
    /// No PEM.
    #[error("parse the PEM of the certificate or its key")]
    Pem(#[source] rustls::pki_types::pem::Error),
    /// No pair.
    #[error("use the certificate with its key")]
    Pair(#[source] rustls::Error),
}

impl Shown {
    /// Shows a certificate from the next handshake on.
    ///
    /// # Errors
    /// Where certificate and key are no pair; what was shown stays.
    pub fn show(&self, certificate: &str, key: &str) -> Result<(), UseCertificate> {
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(UseCertificate::Pem)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(UseCertificate::Pem)?;
        let provider = rustls::crypto::ring::default_provider();
        let pair = CertifiedKey::from_der(chain, key, &provider).map_err(UseCertificate::Pair)?;
        *self.0.write() = Some(Arc::new(pair));
        Ok(())
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }
}

/// Serves until `stop`, and a moment longer.
///
/// # Errors
/// Where TLS cannot be set up.
pub async fn serve(
    listener: TcpListener,
    shown: Arc<Shown>,
    metrics: WebhookMetrics,
    stop: CancellationToken,
) -> Result<(), std::io::Error> {
    let acceptor = TlsAcceptor::from(Arc::new(tls(shown)?));
    let router = review::router(metrics.clone());
    let connections = TaskTracker::new();
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let end = CancellationToken::new();
    let leave = async {
        stop.cancelled().await;
        tokio::time::sleep(LINGER).await;
    };
    tokio::pin!(leave);
    loop {
        let permit = tokio::select! {
            () = &mut leave => break,
            // The semaphore is never closed.
            Ok(permit) = Arc::clone(&room).acquire_owned() => permit,
        };
        let stream = tokio::select! {
            () = &mut leave => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "connection to the webhook not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let (acceptor, router, metrics, end) =
            (acceptor.clone(), router.clone(), metrics.clone(), end.clone());
        connections.spawn(async move {
            connection(stream, acceptor, router, metrics, end).await;
            drop(permit);
        });
    }
    drop(listener);
    end.cancel();
    connections.close();
    if tokio::time::timeout(LAST_REQUEST_DEADLINE, connections.wait()).await.is_err() {
        tracing::debug!("requests to the webhook cut off");
    }
    Ok(())
}

fn tls(shown: Arc<Shown>) -> Result<ServerConfig, std::io::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(std::io::Error::other)?
        .with_no_client_auth()
        .with_cert_resolver(shown);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    router: axum::Router,
    metrics: WebhookMetrics,
    end: CancellationToken,
) {
    let stream = match tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            metrics.handshake_failed();
            tracing::debug!(%error, "handshake with the webhook");
            return;
        }
        Err(_) => return metrics.handshake_failed(),
    };
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_DEADLINE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = &mut served => ended,
        () = end.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection to the webhook");
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;

    use super::*;
    use crate::webhook::certificates::Certificate;

    const HOST: &str = "millrace-webhook.millrace-system.svc";

    async fn is_trusted(address: std::net::SocketAddr, authority: &str) -> bool {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        connector.connect(ServerName::try_from(HOST).unwrap(), stream).await.is_ok()
    }

    #[tokio::test]
    async fn a_new_certificate_is_shown_without_a_restart_and_a_wrong_one_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shown = Arc::new(Shown::default());
        let metrics = WebhookMetrics::register(&prometheus::Registry::new()).unwrap();
        let served = tokio::spawn(serve(listener, Arc::clone(&shown), metrics, CancellationToken::new()));
        let [first, second] = [(), ()].map(|()| Certificate::make(HOST, jiff::Timestamp::now()).unwrap());
        assert!(!is_trusted(address, &first.authority).await, "there is nothing to show yet");
        shown.show(&first.certificate, &first.key).unwrap();
        assert!(is_trusted(address, &first.authority).await);
        assert!(shown.show(&second.certificate, &first.key).is_err());
        assert!(is_trusted(address, &first.authority).await);
        shown.show(&second.certificate, &second.key).unwrap();
        assert!(is_trusted(address, &second.authority).await && !is_trusted(address, &first.authority).await);
        served.abort();
    }
}
