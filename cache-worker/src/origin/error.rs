//! What went wrong between us and S3, and what can the user do about it?

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// Why a request to S3 did not give what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OriginErrorKind {
    /// The endpoint's name has no address.
    Dns,
    /// Nothing listens at the endpoint.
    Refused,
    /// No connection within the deadline, or no route.
    Unreachable,
    /// The certificate of the endpoint is not trusted, or the handshake broke.
    Tls,
    /// The connection was cut.
    Reset,
    /// No answer, or no bytes, within the deadline.
    TimedOut,
    /// The body ended too soon.
    Truncated,
    /// The answer holds another range than the one asked for.
    WrongRange,
    /// 503 SlowDown, 429 and their like.
    Throttled,
    /// Another 5xx answer.
    Unavailable,
    /// 403 without a better reason.
    AccessDenied,
    /// The key that the object is encrypted with may not be used.
    Kms,
    /// The bucket wants the requester to pay.
    RequesterPays,
    /// The access key is not known.
    InvalidAccessKey,
    /// The secret does not belong to the access key.
    SignatureMismatch,
    /// The session token is expired or not valid.
    ExpiredToken,
    /// The clocks of both sides differ too much.
    ClockSkew,
    /// No credentials could be had.
    Credentials,
    /// The bucket does not exist.
    NoSuchBucket,
    /// The object does not exist (any more).
    NoSuchKey,
    /// The object is another version than the indexed one.
    Changed,
    /// The object must be restored from an archive first.
    Archived,
    /// The bucket is in another region, and going there did not help.
    Region,
    /// Anything else.
    Unexpected,
}

impl OriginErrorKind {
    /// All kinds, for counters.
    pub const ALL: [Self; 24] = [
        Self::Dns,
        Self::Refused,
        Self::Unreachable,
        Self::Tls,
        Self::Reset,
        Self::TimedOut,
        Self::Truncated,
        Self::WrongRange,
        Self::Throttled,
        Self::Unavailable,
        Self::AccessDenied,
        Self::Kms,
        Self::RequesterPays,
        Self::InvalidAccessKey,
        Self::SignatureMismatch,
        Self::ExpiredToken,
        Self::ClockSkew,
        Self::Credentials,
        Self::NoSuchBucket,
        Self::NoSuchKey,
        Self::Changed,
        Self::Archived,
        Self::Region,
        Self::Unexpected,
    ];

    /// Whether the same request may well succeed a moment later.
    pub fn is_transient(self) -> bool {
        match self {
            // An outage looks like each of these, a restart of the server like several of them in turn.
            Self::Dns
            | Self::Refused
            | Self::Unreachable
            | Self::Reset
            | Self::TimedOut
            | Self::Truncated
            | Self::Throttled
            | Self::Unavailable => true,
            // Waiting does not help: someone has to change something first.
            Self::Tls
            | Self::WrongRange
            | Self::AccessDenied
            | Self::Kms
            | Self::RequesterPays
            | Self::InvalidAccessKey
            | Self::SignatureMismatch
            | Self::ExpiredToken
            | Self::ClockSkew
            | Self::Credentials
            | Self::NoSuchBucket
            | Self::NoSuchKey
            | Self::Changed
            | Self::Archived
            | Self::Region
            | Self::Unexpected => false,
        }
    }

    /// Whether it says something of the object only: the origin has answered, and lets us in.
    pub fn is_about_object(self) -> bool {
        matches!(self, Self::NoSuchKey | Self::Changed | Self::Archived)
    }

    /// Whether new credentials may cure it.
    pub fn is_about_credentials(self) -> bool {
        matches!(
            self,
            Self::AccessDenied
                | Self::InvalidAccessKey
                | Self::SignatureMismatch
                | Self::ExpiredToken
                | Self::Credentials
        )
    }

    /// A constant name, for conditions and metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dns => "Dns",
            Self::Refused => "Refused",
            Self::Unreachable => "Unreachable",
            Self::Tls => "Tls",
            Self::Reset => "Reset",
            Self::TimedOut => "TimedOut",
            Self::Truncated => "Truncated",
            Self::WrongRange => "WrongRange",
            Self::Throttled => "Throttled",
            Self::Unavailable => "Unavailable",
            Self::AccessDenied => "AccessDenied",
            Self::Kms => "Kms",
            Self::RequesterPays => "RequesterPays",
            Self::InvalidAccessKey => "InvalidAccessKey",
            Self::SignatureMismatch => "SignatureMismatch",
            Self::ExpiredToken => "ExpiredToken",
            Self::ClockSkew => "ClockSkew",
            Self::Credentials => "Credentials",
            Self::NoSuchBucket => "NoSuchBucket",
            Self::NoSuchKey => "NoSuchKey",
            Self::Changed => "Changed",
            Self::Archived => "Archived",
            Self::Region => "Region",
            Self::Unexpected => "Unexpected",
        }
    }

    fn says(self) -> &'static str {
        match self {
            Self::Dns => "the endpoint's name has no address",
            Self::Refused => "nothing listens at the endpoint",
            Self::Unreachable => "the endpoint cannot be reached",
            Self::Tls => "no TLS that can be trusted with the endpoint",
            Self::Reset => "the connection was cut",
            Self::TimedOut => "no answer in time",
            Self::Truncated => "the answer ended too soon",
            Self::WrongRange => "the answer holds another range than the one asked for",
            Self::Throttled => "the endpoint asks us to slow down",
            Self::Unavailable => "the endpoint is not available",
            Self::AccessDenied => "access denied",
            Self::Kms => "the key that encrypts the object may not be used",
            Self::RequesterPays => "the bucket wants the requester to pay",
            Self::InvalidAccessKey => "the access key is not known there",
            Self::SignatureMismatch => "the secret does not belong to the access key",
            Self::ExpiredToken => "the session token is expired or not valid",
            Self::ClockSkew => "the clocks here and there differ too much",
            Self::Credentials => "no credentials",
            Self::NoSuchBucket => "the bucket does not exist",
            Self::NoSuchKey => "the object does not exist",
            Self::Changed => "the object is not the indexed version any more",
            Self::Archived => "the object is archived",
            Self::Region => "the bucket is in another region",
            Self::Unexpected => "an answer that was not expected",
        }
    }

    fn cure(self) -> &'static str {
        match self {
            Self::Dns => "check the host name in endpoint",
            Self::Refused => "check host and port in endpoint, and that the server runs",
            Self::Unreachable => "check endpoint, routes and firewalls",
            Self::Tls => {
                "put the authority's certificate in ca.crt of the credentials; without TLS, write http:// in endpoint"
            }
            Self::Reset | Self::TimedOut | Self::Truncated | Self::Throttled | Self::Unavailable => {
                "look at the server; reads are tried again up to their deadline"
            }
            Self::WrongRange => "look at the server, and at proxies before it",
            Self::AccessDenied => "allow s3:ListBucket on the bucket and s3:GetObject on its objects",
            Self::Kms => "allow kms:Decrypt with the object's key",
            Self::RequesterPays => "set requesterPays, and allow the access key to pay",
            Self::InvalidAccessKey => "check AWS_ACCESS_KEY_ID in the credentials",
            Self::SignatureMismatch => "check AWS_SECRET_ACCESS_KEY in the credentials",
            Self::ExpiredToken => "put new credentials in place; they are read again without a restart",
            Self::ClockSkew => "set the clock of this machine by NTP",
            Self::Credentials => "check the credentials that the Dataset names",
            Self::NoSuchBucket => "check bucket, endpoint and region",
            Self::NoSuchKey | Self::Changed => "index the dataset again",
            Self::Archived => "restore the object, then index the dataset again",
            Self::Region => "set region to the bucket's own",
            Self::Unexpected => "check that endpoint is an S3 server, and its http:// or https://",
        }
    }
}

impl fmt::Display for OriginErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was asked of S3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// ListObjectsV2.
    List,
    /// GetObject.
    Get,
}

/// Where a request went: all that a message names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Endpoint URL, or the region where there is none.
    pub endpoint: Arc<str>,
    /// Bucket.
    pub bucket: Arc<str>,
    /// Last four characters of the access key's id; `None` when anonymous or not known.
    pub key_id_tail: Option<String>,
}

/// A request to S3 that did not give what was asked for; cheap to clone, since many readers may share one.
#[derive(Debug, Clone)]
pub struct OriginError(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: OriginErrorKind,
    request: Request,
    target: Target,
    object: String,
    said: String,
    tries: u32,
}

impl OriginError {
    /// Tells what happened; `object` is the key, or the prefix of a listing; `said` the other side's own words.
    pub(super) fn new(
        kind: OriginErrorKind,
        request: Request,
        target: Target,
        object: &str,
        said: String,
        tries: u32,
    ) -> Self {
        Self(Arc::new(Inner { kind, request, target, object: object.to_owned(), said, tries }))
    }

    /// The kind.
    pub fn kind(&self) -> OriginErrorKind {
        self.0.kind
    }

    /// Whether the same request may well succeed a moment later.
    pub fn is_transient(&self) -> bool {
        self.0.kind.is_transient()
    }

    /// The key of the object, or the prefix of the listing.
    pub fn object(&self) -> &str {
        &self.0.object
    }

    /// What the user can do about it.
    pub fn cure(&self) -> &'static str {
        self.0.kind.cure()
    }
}

impl fmt::Display for OriginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, request, target, object, said, tries } = &*self.0;
        match request {
            Request::List => write!(f, "list prefix {object:?} of bucket {:?}", target.bucket)?,
            Request::Get => write!(f, "read object {object:?} of bucket {:?}", target.bucket)?,
        }
        write!(f, " at {}: {}", target.endpoint, kind.says())?;
        if !said.is_empty() {
            write!(f, " ({said})")?;
        }
        match &target.key_id_tail {
            Some(tail) => write!(f, ", access key ...{tail}")?,
            None if kind.is_about_credentials() => write!(f, ", no access key")?,
            None => {}
        }
        if *tries > 1 {
            write!(f, ", tried {tries} times")?;
        }
        write!(f, "; {}", kind.cure())
    }
}

// Without a source: what the SDK's errors say is in `said`, and they could not be shared by many readers.
impl Error for OriginError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_endpoint_bucket_key_and_the_key_ids_tail() {
        let target = Target {
            endpoint: "http://s3:9000".into(),
            bucket: "train".into(),
            key_id_tail: Some("WXYZ".to_owned()),
        };
        let error = OriginError::new(
            OriginErrorKind::AccessDenied,
            Request::Get,
            target,
            "a/b.jpg",
            "AccessDenied: no".to_owned(),
            3,
        );
        assert_eq!(
            error.to_string(),
            "read object \"a/b.jpg\" of bucket \"train\" at http://s3:9000: access denied (AccessDenied: no), access key ...WXYZ, \
             tried 3 times; allow s3:ListBucket on the bucket and s3:GetObject on its objects"
        );
    }

    #[test]
    fn names_of_kinds_are_distinct() {
        let mut names = OriginErrorKind::ALL.map(OriginErrorKind::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), OriginErrorKind::ALL.len());
    }
}
