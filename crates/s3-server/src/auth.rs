//! Who may send requests, and with which credentials?

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use parking_lot::RwLock;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3Result, s3_error};

use crate::target::form_decode;
use crate::units::InvalidValue;

/// Credentials known at one time. Web identity makes new ones for every worker and hour; a test run stays far below.
const MAX_CREDENTIALS: usize = 10_000;

/// One pair of keys that the server accepts.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The public half.
    pub access_key: String,
    /// The secret half.
    pub secret_key: String,
    /// For temporary credentials: must come with each request.
    pub session_token: Option<String>,
    /// From then on requests fail with ExpiredToken.
    pub expires: Option<SystemTime>,
}

impl Credentials {
    /// Credentials that never expire and have no session token.
    pub fn new(access_key: impl Into<String>, secret_key: impl Into<String>) -> Self {
        Self {
            access_key: access_key.into(),
            secret_key: secret_key.into(),
            session_token: None,
            expires: None,
        }
    }

    /// The same with a session token.
    pub fn with_session_token(mut self, token: impl Into<String>) -> Self {
        self.session_token = Some(token.into());
        self
    }

    /// Reads `ACCESS_KEY:SECRET_KEY[:SESSION_TOKEN]`.
    ///
    /// # Errors
    /// Names the field and the cure; the value is left out, since it may hold a secret.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let mut parts = text.splitn(3, ':');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(access), Some(secret), token) if !access.is_empty() && !secret.is_empty() => {
                let credentials = Self::new(access, secret);
                Ok(Self { session_token: token.map(str::to_owned), ..credentials })
            }
            _ => Err(InvalidValue::new(
                "credentials",
                "(not shown)",
                "write ACCESS_KEY:SECRET_KEY or ACCESS_KEY:SECRET_KEY:SESSION_TOKEN",
            )),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// Which requests are let in.
#[derive(Debug, Clone, Default)]
pub enum Access {
    /// All; signatures are not looked at.
    #[default]
    Anyone,
    /// Those with a right signature (SigV4).
    Signed {
        /// The credentials that are accepted; more can be added while the server runs.
        credentials: Vec<Credentials>,
        /// Whether requests without any signature are let in too.
        anonymous: bool,
    },
}

impl Access {
    /// Signed requests with one pair of keys only.
    pub fn signed(credentials: Credentials) -> Self {
        Self::Signed { credentials: vec![credentials], anonymous: false }
    }
}

/// The credentials in force.
#[derive(Clone)]
pub(crate) struct Keyring {
    known: Arc<RwLock<HashMap<String, Credentials>>>,
    anonymous: bool,
}

impl Keyring {
    pub fn new(credentials: Vec<Credentials>, anonymous: bool) -> Self {
        let known = credentials.into_iter().map(|one| (one.access_key.clone(), one)).collect();
        Self { known: Arc::new(RwLock::new(known)), anonymous }
    }

    /// Accepts one pair more; when there are too many, those that have expired go first.
    pub fn add(&self, credentials: Credentials) {
        let mut known = self.known.write();
        if known.len() >= MAX_CREDENTIALS {
            let now = SystemTime::now();
            known.retain(|_, one| one.expires.is_none_or(|expires| expires > now));
        }
        if known.len() < MAX_CREDENTIALS {
            known.insert(credentials.access_key.clone(), credentials);
        }
    }

    pub fn remove(&self, access_key: &str) -> bool {
        self.known.write().remove(access_key).is_some()
    }

    /// Lets a pair expire now; false when it is not known.
    pub fn expire(&self, access_key: &str) -> bool {
        let mut known = self.known.write();
        let found = known.get_mut(access_key);
        found.map(|credentials| credentials.expires = Some(SystemTime::UNIX_EPOCH)).is_some()
    }
}

#[async_trait]
impl S3Auth for Keyring {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let known = self.known.read();
        let Some(credentials) = known.get(access_key) else {
            return Err(s3_error!(
                InvalidAccessKeyId,
                "The AWS Access Key Id you provided does not exist in our records."
            ));
        };
        if credentials.expires.is_some_and(|expires| expires <= SystemTime::now()) {
            return Err(s3_error!(ExpiredToken, "The provided token has expired."));
        }
        Ok(credentials.secret_key.as_str().into())
    }
}

#[async_trait]
impl S3Access for Keyring {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        let Some(signed) = cx.credentials() else {
            return if self.anonymous { Ok(()) } else { Err(s3_error!(AccessDenied, "Access Denied")) };
        };
        let header =
            cx.headers().get("x-amz-security-token").and_then(|token| token.to_str().ok().map(str::to_owned));
        let given = header.or_else(|| {
            let query = cx.uri().query()?;
            query.split('&').find_map(|part| part.strip_prefix("X-Amz-Security-Token=")).map(form_decode)
        });
        let known = self.known.read();
        let expected =
            known.get(&signed.access_key).and_then(|credentials| credentials.session_token.clone());
        if given == expected {
            Ok(())
        } else {
            Err(s3_error!(InvalidToken, "The provided token is malformed or otherwise invalid."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_from_one_line() {
        let credentials = Credentials::parse("AK:SK").unwrap();
        assert_eq!(credentials, Credentials::new("AK", "SK"));
        let credentials = Credentials::parse("AK:SK:to:ken").unwrap();
        assert_eq!(credentials, Credentials::new("AK", "SK").with_session_token("to:ken"));
    }

    #[test]
    fn a_bad_line_is_refused_without_showing_it() {
        for text in ["", "AK", "AK:", ":SK"] {
            let message = Credentials::parse(text).unwrap_err().to_string();
            assert!(message.contains("ACCESS_KEY:SECRET_KEY"), "{message}");
        }
        assert!(!Credentials::parse("topsecret").unwrap_err().to_string().contains("topsecret"));
        assert!(!format!("{:?}", Credentials::new("AK", "topsecret")).contains("topsecret"));
    }
}
