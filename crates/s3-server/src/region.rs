//! For which region and time was a request signed?

use http::{HeaderMap, Uri};
use jiff::civil::DateTime;
use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use crate::target::form_decode;

/// What S3 allows between a request's time and its own.
const MAX_SKEW: SignedDuration = SignedDuration::from_mins(15);

/// How a request for a bucket of another region is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Redirect {
    /// 301 PermanentRedirect.
    #[default]
    Permanent,
    /// 400 AuthorizationHeaderMalformed.
    Malformed,
}

/// The region in the credential scope of the signature; None for anonymous requests.
pub(crate) fn signed_for(headers: &HeaderMap, uri: &Uri) -> Option<String> {
    let header = headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let scope = match header {
        Some(header) => header.split_once("Credential=")?.1.split(',').next()?.to_owned(),
        None => form_decode(uri.query()?.split('&').find_map(|part| part.strip_prefix("X-Amz-Credential="))?),
    };
    // <access key>/<date>/<region>/<service>/aws4_request, from the end since an access key may hold slashes.
    scope.trim().rsplit('/').nth(2).map(str::to_owned)
}

/// Whether the request's time is too far from `now`; never for anonymous requests.
pub(crate) fn skewed(headers: &HeaderMap, now: Timestamp) -> bool {
    let Some(date) = headers.get("x-amz-date").and_then(|date| date.to_str().ok()) else { return false };
    let parsed = DateTime::strptime("%Y%m%dT%H%M%SZ", date).and_then(|time| TimeZone::UTC.to_timestamp(time));
    parsed.is_ok_and(|time| time.duration_since(now).abs() > MAX_SKEW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_is_read_from_header_or_query() {
        let mut headers = HeaderMap::new();
        let plain: Uri = "/b/k".parse().unwrap();
        assert_eq!(signed_for(&headers, &plain), None);
        let query: Uri =
            "/b/k?X-Amz-Credential=AK%2F20260101%2Feu-west-1%2Fs3%2Faws4_request&x=y".parse().unwrap();
        assert_eq!(signed_for(&headers, &query).as_deref(), Some("eu-west-1"));
        let value = "AWS4-HMAC-SHA256 Credential=A/K/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
        headers.insert("authorization", value.parse().unwrap());
        assert_eq!(signed_for(&headers, &plain).as_deref(), Some("us-east-1"));
    }

    #[test]
    fn a_quarter_of_an_hour_is_still_right() {
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-date", "20260101T120000Z".parse().unwrap());
        let at = |text: &str| skewed(&headers, text.parse().unwrap());
        assert!(!at("2026-01-01T12:15:00Z") && !at("2026-01-01T11:45:00Z"));
        assert!(at("2026-01-01T12:15:01Z") && at("2026-01-01T11:44:59Z"));
        assert!(!skewed(&HeaderMap::new(), Timestamp::now()));
    }
}
