//! Where is the key that all others are derived from? In a Secret of the operator's own namespace, made where there is none.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, PostParams};
use millrace_api::keys::{KEY_BYTES, Key, ParseKey};
use millrace_api::names;
use serde_json::json;

/// Key of the Secret that holds it.
pub const FIELD: &str = "master.key";

/// Between two tries while the API server cannot be reached.
const RETRY: Duration = Duration::from_secs(2);

/// Why there is no master key.
#[derive(Debug, thiserror::Error)]
pub enum MasterKeyError {
    /// The API server refused.
    #[error("{step} secret {namespace}/{name}")]
    Ask {
        /// What was tried.
        step: &'static str,
        /// Where.
        namespace: String,
        /// Which.
        name: String,
        /// Its answer.
        source: Box<kube::Error>,
    },
    /// The Secret does not have it.
    #[error(
        "secret {namespace}/{name} has no key {FIELD:?} of 64 hexadecimal digits: delete it, and all datasets get new keys"
    )]
    Damaged {
        /// Where.
        namespace: String,
        /// Which.
        name: String,
        /// What is wrong, where it is there.
        source: Option<ParseKey>,
    },
}

/// Reads the master key, or makes it. Waits while the API server cannot be reached.
///
/// # Errors
/// Where it refuses, or the Secret is damaged.
pub async fn ensure(client: &Client, namespace: &str, name: &str) -> Result<Key, MasterKeyError> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let error = |step: &'static str| {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        move |source: kube::Error| MasterKeyError::Ask { step, namespace, name, source: Box::new(source) }
    };
    loop {
        match api.get_opt(name).await {
            Ok(Some(secret)) => return parse(secret, namespace, name),
            Ok(None) => {}
            Err(source @ kube::Error::Api(_)) => return Err(error("read")(source)),
            Err(unreachable) => {
                tracing::warn!(error = %unreachable, "the API server cannot be reached, trying again");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        }
        let key = Key::new(rand::random::<[u8; KEY_BYTES]>());
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {names::MANAGED_BY_LABEL: names::MANAGER}},
            "type": "Opaque", "stringData": {FIELD: key.to_hex()},
        }))
        .expect("this is a Secret");
        match api.create(&PostParams::default(), &secret).await {
            Ok(_) => {
                tracing::info!(namespace, name, "master key made");
                return Ok(key);
            }
            // Another operator was faster: read what it has made.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(source) => return Err(error("create")(source)),
        }
    }
}

fn parse(secret: Secret, namespace: &str, name: &str) -> Result<Key, MasterKeyError> {
    let damaged = |source| MasterKeyError::Damaged { namespace: namespace.into(), name: name.into(), source };
    let data = secret.data.unwrap_or_default();
    let ByteString(bytes) = data.get(FIELD).ok_or_else(|| damaged(None))?;
    Key::from_hex(&String::from_utf8_lossy(bytes)).map_err(|source| damaged(Some(source)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_key_is_refused_and_never_shown() {
        let secret = |value: &str| -> Secret {
            let data = [(FIELD.to_owned(), ByteString(value.as_bytes().to_vec()))];
            Secret { data: Some(data.into()), ..Secret::default() }
        };
        let key = Key::new([5; KEY_BYTES]);
        assert_eq!(parse(secret(&key.to_hex()), "ns", "n").unwrap(), key);
        let error = parse(secret("half a secret"), "ns", "n").unwrap_err();
        assert!(error.to_string().contains("ns/n") && !format!("{error:?}").contains("half"));
        assert!(matches!(
            parse(Secret::default(), "ns", "n"),
            Err(MasterKeyError::Damaged { source: None, .. })
        ));
    }
}
