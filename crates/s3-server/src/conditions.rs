//! Does a conditional request go through, and which range of the object does it get?
//!
//! As RFC 9110 §13.2.2 orders the conditions, which is what S3 does.

use std::ops;

use s3s::dto::{ETag, ETagCondition, Range, Timestamp};

/// What kept a request from its object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    PreconditionFailed,
    NotModified,
    InvalidRange,
}

/// The conditional headers of a GET or HEAD.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    pub if_match: Option<ETagCondition>,
    pub if_none_match: Option<ETagCondition>,
    pub if_modified_since: Option<Timestamp>,
    pub if_unmodified_since: Option<Timestamp>,
}

impl Conditions {
    /// Compares with the object's ETag and its time in whole seconds.
    pub fn check(&self, etag: &str, modified: &Timestamp) -> Result<(), Refusal> {
        match (&self.if_match, &self.if_unmodified_since) {
            (Some(ETagCondition::ETag(ETag::Strong(wanted))), _) if wanted != etag => {
                return Err(Refusal::PreconditionFailed);
            }
            (Some(ETagCondition::ETag(ETag::Weak(_))), _) => return Err(Refusal::PreconditionFailed),
            (None, Some(since)) if modified > since => return Err(Refusal::PreconditionFailed),
            _ => {}
        }
        match (&self.if_none_match, &self.if_modified_since) {
            (Some(ETagCondition::Any), _) => Err(Refusal::NotModified),
            (Some(ETagCondition::ETag(known)), _) if known.value() == etag => Err(Refusal::NotModified),
            (None, Some(since)) if modified <= since => Err(Refusal::NotModified),
            _ => Ok(()),
        }
    }
}

/// The bytes that a Range header means in an object of `size`; all of them without the header.
pub(crate) fn resolve(range: Option<Range>, size: u64) -> Result<ops::Range<u64>, Refusal> {
    match range {
        None => Ok(0..size),
        Some(range) => range.check(size).map_err(|_| Refusal::InvalidRange),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        (SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).into()
    }

    fn etag(value: &str) -> Option<ETagCondition> {
        Some(ETagCondition::ETag(ETag::Strong(value.to_owned())))
    }

    #[test]
    fn conditions_are_weighed_in_the_order_of_the_rfc() {
        let failed = Err(Refusal::PreconditionFailed);
        let unchanged = Err(Refusal::NotModified);
        let none = Conditions::default;
        for (conditions, expected) in [
            (none(), Ok(())),
            (Conditions { if_match: etag("a"), ..none() }, Ok(())),
            (Conditions { if_match: etag("b"), ..none() }, failed),
            (Conditions { if_match: Some(ETagCondition::Any), ..none() }, Ok(())),
            (Conditions { if_none_match: etag("a"), ..none() }, unchanged),
            (Conditions { if_none_match: etag("b"), ..none() }, Ok(())),
            (Conditions { if_modified_since: Some(at(10)), ..none() }, Err(Refusal::NotModified)),
            (Conditions { if_modified_since: Some(at(9)), ..none() }, Ok(())),
            (Conditions { if_unmodified_since: Some(at(9)), ..none() }, Err(Refusal::PreconditionFailed)),
            (Conditions { if_unmodified_since: Some(at(9)), if_match: etag("a"), ..none() }, Ok(())),
            (Conditions { if_modified_since: Some(at(10)), if_none_match: etag("b"), ..none() }, Ok(())),
        ] {
            assert_eq!(conditions.check("a", &at(10)), expected, "{conditions:?}");
        }
    }

    #[test]
    fn ranges_are_closed_open_or_a_suffix() {
        let range = |text: &str| resolve(Some(Range::parse(text).unwrap()), 100);
        assert_eq!(range("bytes=0-0"), Ok(0..1));
        assert_eq!(range("bytes=10-"), Ok(10..100));
        assert_eq!(range("bytes=90-1000"), Ok(90..100));
        assert_eq!(range("bytes=-7"), Ok(93..100));
        assert_eq!(range("bytes=-700"), Ok(0..100));
        assert_eq!(range("bytes=100-"), Err(Refusal::InvalidRange));
        assert_eq!(range("bytes=-0"), Err(Refusal::InvalidRange));
        assert_eq!(resolve(None, 0), Ok(0..0));
    }
}
