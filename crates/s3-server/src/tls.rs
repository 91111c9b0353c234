//! With which certificate does the server answer over TLS?

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// An authority made at start, and the server's certificate that it signed.
pub(crate) struct Authority {
    /// The authority's certificate, for clients.
    pub ca_pem: String,
    pub server: Arc<rustls::ServerConfig>,
}

/// What kept the certificate from being made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A name is no host name or address, or the signing failed.
    #[error("make a certificate for {names:?}")]
    Certificate {
        /// Names and addresses of the server.
        names: Vec<String>,
        /// What rcgen says.
        #[source]
        source: rcgen::Error,
    },
    /// The TLS library refused the certificate.
    #[error("set up TLS for {names:?}")]
    Setup {
        /// Names and addresses of the server.
        names: Vec<String>,
        /// What rustls says.
        #[source]
        source: rustls::Error,
    },
}

impl Authority {
    /// Makes an authority and a certificate for names, wildcard names and addresses.
    pub fn new(names: Vec<String>) -> Result<Self, TlsError> {
        let (ca_pem, certificate, key) =
            sign(&names).map_err(|source| TlsError::Certificate { names: names.clone(), source })?;
        let server = serve(certificate, key).map_err(|source| TlsError::Setup { names, source })?;
        Ok(Self { ca_pem, server })
    }
}

type Signed = (String, rustls::pki_types::CertificateDer<'static>, PrivateKeyDer<'static>);

fn sign(names: &[String]) -> Result<Signed, rcgen::Error> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "millrace s3 serve test authority");
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let mut leaf = CertificateParams::new(names.to_vec())?;
    leaf.distinguished_name.push(DnType::CommonName, "millrace s3 serve");
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let certificate = leaf.signed_by(&key, &issuer)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    Ok((issuer.pem(), certificate.der().clone(), key))
}

fn serve(
    certificate: rustls::pki_types::CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<rustls::ServerConfig>, rustls::Error> {
    // Named here, so that the server does not depend on what the process has installed as default.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
