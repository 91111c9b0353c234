//! Which operation on which bucket and key does a request mean?

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use http::{HeaderMap, Method, Uri};
use serde::{Deserialize, Serialize};

use crate::units::InvalidValue;

/// What a request asks for, by its name in S3's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Operation {
    /// The list of buckets.
    ListBuckets,
    /// Whether a bucket is there.
    HeadBucket,
    /// A page of a listing, first version of the API.
    ListObjects,
    /// A page of a listing.
    ListObjectsV2,
    /// What is known of an object.
    HeadObject,
    /// The bytes of an object.
    GetObject,
    /// Writing an object.
    PutObject,
    /// Removing an object.
    DeleteObject,
    /// Temporary credentials for a token, from the STS side of the server.
    AssumeRoleWithWebIdentity,
    /// Anything else.
    Other,
}

impl Operation {
    /// All operations, in the order of counters.
    pub const ALL: [Self; 10] = [
        Self::ListBuckets,
        Self::HeadBucket,
        Self::ListObjects,
        Self::ListObjectsV2,
        Self::HeadObject,
        Self::GetObject,
        Self::PutObject,
        Self::DeleteObject,
        Self::AssumeRoleWithWebIdentity,
        Self::Other,
    ];

    /// The name in S3's API.
    pub fn name(self) -> &'static str {
        match self {
            Self::ListBuckets => "ListBuckets",
            Self::HeadBucket => "HeadBucket",
            Self::ListObjects => "ListObjects",
            Self::ListObjectsV2 => "ListObjectsV2",
            Self::HeadObject => "HeadObject",
            Self::GetObject => "GetObject",
            Self::PutObject => "PutObject",
            Self::DeleteObject => "DeleteObject",
            Self::AssumeRoleWithWebIdentity => "AssumeRoleWithWebIdentity",
            Self::Other => "Other",
        }
    }

    /// Whether the answer is a page of a listing.
    pub fn is_listing(self) -> bool {
        matches!(self, Self::ListObjects | Self::ListObjectsV2)
    }
}

impl FromStr for Operation {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|operation| operation.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|operation| operation.name()).collect();
            InvalidValue::new("operation", text, format!("use one of {}", names.join(", ")))
        })
    }
}

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub operation: Operation,
    pub bucket: Option<String>,
    /// Decoded.
    pub key: Option<Vec<u8>>,
}

impl Target {
    /// Reads path, query and Host; `domains` are those under which buckets are host names.
    pub fn of(method: &Method, uri: &Uri, headers: &HeaderMap, domains: &[String]) -> Self {
        let path = percent_decode(uri.path().strip_prefix('/').unwrap_or(uri.path()));
        let host = headers.get(http::header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let (bucket, key) = match virtual_bucket(host, domains) {
            Some(bucket) => (bucket.into_bytes(), path),
            None => match path.iter().position(|byte| *byte == b'/') {
                Some(slash) => (path[..slash].to_vec(), path[slash + 1..].to_vec()),
                None => (path, Vec::new()),
            },
        };
        let (has_bucket, has_key) = (!bucket.is_empty(), !key.is_empty());
        let query = uri.query().unwrap_or_default();
        let operation = match (method, has_bucket, has_key) {
            (&Method::GET, false, _) => Operation::ListBuckets,
            (&Method::POST, false, _) => Operation::AssumeRoleWithWebIdentity,
            (&Method::HEAD, true, false) => Operation::HeadBucket,
            (&Method::GET, true, false) if query.split('&').any(|part| part == "list-type=2") => {
                Operation::ListObjectsV2
            }
            (&Method::GET, true, false) if !has_subresource(query) => Operation::ListObjects,
            (&Method::HEAD, true, true) => Operation::HeadObject,
            (&Method::GET, true, true) if !has_subresource(query) => Operation::GetObject,
            (&Method::PUT, true, true) if !has_subresource(query) => Operation::PutObject,
            (&Method::DELETE, true, true) if !has_subresource(query) => Operation::DeleteObject,
            _ => Operation::Other,
        };
        Self {
            operation,
            bucket: has_bucket.then(|| String::from_utf8_lossy(&bucket).into_owned()),
            key: has_key.then_some(key),
        }
    }
}

/// Whether the query names something of the bucket or object other than its listing or content (`?acl`, `?tagging`).
fn has_subresource(query: &str) -> bool {
    const PLAIN: [&str; 8] =
        ["prefix", "delimiter", "marker", "max-keys", "encoding-type", "x-id", "versionId", "partNumber"];
    query.split('&').filter(|part| !part.is_empty()).any(|part| {
        let name = part.split('=').next().unwrap_or_default();
        !PLAIN.contains(&name) && !name.starts_with("X-Amz-") && !name.starts_with("response-")
    })
}

/// The bucket named by a Host header; None for addresses, for the bare domains and for foreign names.
pub(crate) fn virtual_bucket(host: &str, domains: &[String]) -> Option<String> {
    if host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok() {
        return None;
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    domains.iter().find_map(|domain| {
        let bucket = name.strip_suffix(domain.as_str())?.strip_suffix('.')?;
        (!bucket.is_empty()).then(|| bucket.to_ascii_lowercase())
    })
}

/// Decodes `%XX`; anything else stays as it is.
pub(crate) fn percent_decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        if *first == b'%'
            && let [high, low, after @ ..] = tail
            && let (Some(high), Some(low)) = (digit(high), digit(low))
        {
            bytes.push((high << 4 | low) as u8);
            rest = after;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    bytes
}

/// Decodes one value of a form or query: `+` is a space.
pub(crate) fn form_decode(text: &str) -> String {
    let plain: Cow<'_, str> = if text.contains('+') { text.replace('+', " ").into() } else { text.into() };
    String::from_utf8_lossy(&percent_decode(&plain)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(method: Method, uri: &str, host: &str) -> (Operation, Option<String>, Option<Vec<u8>>) {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::HOST, host.parse().unwrap());
        let target = Target::of(&method, &uri.parse().unwrap(), &headers, &["localhost".to_owned()]);
        (target.operation, target.bucket, target.key)
    }

    #[test]
    fn operations_are_told_from_method_path_and_query() {
        use Operation::*;
        let bucket = || Some("b".to_owned());
        let key = |key: &[u8]| Some(key.to_vec());
        for (method, uri, operation, bucket, key) in [
            (Method::GET, "/", ListBuckets, None, None),
            (Method::HEAD, "/b", HeadBucket, bucket(), None),
            (Method::GET, "/b?list-type=2&prefix=x", ListObjectsV2, bucket(), None),
            (Method::GET, "/b/?prefix=x&marker=y", ListObjects, bucket(), None),
            (Method::GET, "/b?location", Other, bucket(), None),
            (Method::GET, "/b/k%20x?x-id=GetObject", GetObject, bucket(), key(b"k x")),
            (Method::GET, "/b//k", GetObject, bucket(), key(b"/k")),
            (Method::GET, "/b/k?acl", Other, bucket(), key(b"k")),
            (Method::HEAD, "/b/%FF", HeadObject, bucket(), key(b"\xff")),
            (Method::PUT, "/b/k", PutObject, bucket(), key(b"k")),
            (Method::DELETE, "/b/k", DeleteObject, bucket(), key(b"k")),
            (Method::POST, "/", AssumeRoleWithWebIdentity, None, None),
        ] {
            assert_eq!(target(method, uri, "127.0.0.1:9000"), (operation, bucket, key), "{uri}");
        }
    }

    #[test]
    fn the_bucket_is_taken_from_the_host_under_our_domains_only() {
        let got = target(Method::GET, "/k/l", "b.localhost:9000");
        assert_eq!(got, (Operation::GetObject, Some("b".to_owned()), Some(b"k/l".to_vec())));
        let got = target(Method::GET, "/b/k", "localhost:9000");
        assert_eq!(got, (Operation::GetObject, Some("b".to_owned()), Some(b"k".to_vec())));
        assert_eq!(target(Method::GET, "/b/k", "b.example.com").1, Some("b".to_owned()));
        assert_eq!(target(Method::GET, "/b/k", "[::1]:80").1, Some("b".to_owned()));
    }

    #[test]
    fn decoding_leaves_what_is_not_encoded() {
        assert_eq!(percent_decode("a%2Fb%zz%4"), b"a/b%zz%4");
        assert_eq!(form_decode("a+b%2Bc"), "a b+c");
    }
}
