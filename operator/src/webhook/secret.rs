//! Where do all replicas find the same certificates? In one Secret; every write of it is conditional.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use millrace_api::names::{MANAGED_BY_LABEL, MANAGER};

use super::certificates::Certificates;

/// Key of the Secret.
const FILE: &str = "certificates.json";

/// The Secret, by name.
#[derive(Clone)]
pub struct CertificateSecret {
    api: Api<Secret>,
    name: String,
}

/// What is in the Secret.
#[derive(Debug)]
pub enum Content {
    /// There is none.
    Nothing,
    /// Something that we do not understand.
    Garbage {
        /// What a write must find.
        version: String,
        /// What is wrong.
        problem: String,
    },
    /// Certificates.
    Certificates {
        /// What a write must find.
        version: String,
        /// They.
        certificates: Box<Certificates>,
    },
}

/// What came of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It is there.
    Yes,
    /// Somebody else was faster: read again.
    Conflict,
}

/// The Secret cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{what} secret {name:?}")]
pub struct SecretError {
    what: &'static str,
    name: String,
    source: Box<kube::Error>,
}

impl CertificateSecret {
    /// The Secret of this name; it need not be there.
    pub fn new(client: &Client, namespace: &str, name: &str) -> Self {
        Self { api: Api::namespaced(client.clone(), namespace), name: name.to_owned() }
    }

    /// What is in it.
    ///
    /// # Errors
    /// Where the API server does not say.
    pub async fn read(&self) -> Result<Content, SecretError> {
        let Some(secret) = self.api.get_opt(&self.name).await.map_err(|source| self.failed("get", source))?
        else {
            return Ok(Content::Nothing);
        };
        let version = secret.resource_version().unwrap_or_default();
        let Some(ByteString(content)) = secret.data.as_ref().and_then(|data| data.get(FILE)) else {
            return Ok(Content::Garbage { version, problem: format!("it has no key {FILE:?}") });
        };
        Ok(match serde_json::from_slice(content) {
            Ok(certificates) => Content::Certificates { version, certificates: Box::new(certificates) },
            // The error's own text could quote the content.
            Err(error) => Content::Garbage {
                version,
                problem: format!(
                    "{FILE:?} cannot be parsed: {:?} error at line {}",
                    error.classify(),
                    error.line()
                ),
            },
        })
    }

    /// Makes it, where there is none.
    ///
    /// # Errors
    /// Where the API server refuses otherwise than because there is one.
    pub async fn create(&self, certificates: &Certificates) -> Result<Written, SecretError> {
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(BTreeMap::from([(MANAGED_BY_LABEL.to_owned(), MANAGER.to_owned())])),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".to_owned()),
            data: Some(BTreeMap::from([(FILE.to_owned(), content(certificates))])),
            ..Secret::default()
        };
        self.written("create", self.api.create(&PostParams::default(), &secret).await)
    }

    /// Changes it, if it is as it was when it was read.
    ///
    /// # Errors
    /// Where the API server refuses otherwise than because it has changed or gone.
    pub async fn replace(&self, version: &str, certificates: &Certificates) -> Result<Written, SecretError> {
        let change = serde_json::json!({
            "metadata": {"resourceVersion": version},
            "data": {FILE: content(certificates)},
        });
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        self.written("change", self.api.patch(&self.name, &params, &Patch::Merge(change)).await)
    }

    fn written(&self, what: &'static str, done: Result<Secret, kube::Error>) -> Result<Written, SecretError> {
        match done {
            Ok(_) => Ok(Written::Yes),
            Err(kube::Error::Api(status))
                if status.code == 409 || (status.code == 404 && what == "change") =>
            {
                Ok(Written::Conflict)
            }
            Err(source) => Err(self.failed(what, source)),
        }
    }

    fn failed(&self, what: &'static str, source: kube::Error) -> SecretError {
        SecretError { what, name: self.name.clone(), source: Box::new(source) }
    }
}

fn content(certificates: &Certificates) -> ByteString {
    ByteString(serde_json::to_vec(certificates).expect("text and times only, which JSON can hold"))
}
