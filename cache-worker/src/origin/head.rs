//! Does the head of an answer speak of the object version and the range that were asked for?

use std::ops::Range;

use super::error::OriginErrorKind as Kind;
use super::get::ObjectVersion;

/// What the head of an answer to GetObject says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Head<'a> {
    pub etag: Option<&'a str>,
    pub content_range: Option<&'a str>,
    pub content_length: Option<u64>,
}

/// Compares; servers that ignore `If-Match` or `Range` are found out here.
pub(super) fn judge(
    object: &ObjectVersion,
    asked: &Range<u64>,
    head: Head<'_>,
) -> Result<(), (Kind, String)> {
    let Head { etag, content_range, content_length } = head;
    if let Some(etag) = etag
        && !object.etag.is_empty()
        && bare(etag) != object.etag
    {
        return Err((Kind::Changed, format!("ETag {} in place of {}", bare(etag), object.etag)));
    }
    // Whose bytes these are cannot be told, should the server ignore If-Match.
    if etag.is_none() && !object.etag.is_empty() {
        return Err((Kind::Unexpected, "no ETag".to_owned()));
    }
    let len = asked.end - asked.start;
    let Some(content_range) = content_range else {
        // Without a range it is the whole object.
        return match content_length {
            Some(size) if size != object.size => {
                Err((Kind::Changed, format!("{size} bytes in place of {}", object.size)))
            }
            _ if len != object.size => {
                Err((Kind::WrongRange, "the whole object in place of a range".to_owned()))
            }
            _ => Ok(()),
        };
    };
    let Some((range, total)) = parse(content_range) else {
        return Err((Kind::WrongRange, format!("Content-Range {content_range:?}")));
    };
    if let Some(total) = total
        && total != object.size
    {
        return Err((Kind::Changed, format!("{total} bytes in place of {}", object.size)));
    }
    if range != *asked {
        return Err((Kind::WrongRange, format!("Content-Range {content_range:?}, asked for {asked:?}")));
    }
    match content_length {
        Some(given) if given != len => {
            Err((Kind::WrongRange, format!("Content-Length {given} for {len} bytes asked for")))
        }
        _ => Ok(()),
    }
}

/// The ETag without quotes, and without the mark of a weak one.
pub(super) fn bare(etag: &str) -> &str {
    let etag = etag.strip_prefix("W/").unwrap_or(etag);
    etag.strip_prefix('"').and_then(|etag| etag.strip_suffix('"')).unwrap_or(etag)
}

/// `bytes first-last/total`, where the total may be `*`.
fn parse(content_range: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (range, total) = content_range.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let total = match total {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    (first <= last).then_some((first..last.checked_add(1)?, total))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100_000))]

        #[test]
        fn a_mutated_head_passes_only_if_it_means_the_same(
            at in 0usize..20, with in any::<u8>(), etag in "[\"W/e1]{0,6}", length in proptest::option::of(8u64..12),
        ) {
            let mut text = b"bytes 10-19/100".to_vec();
            if let Some(byte) = text.get_mut(at) {
                *byte = with;
            }
            let text = String::from_utf8_lossy(&text).into_owned();
            let object = ObjectVersion { key: "k".into(), etag: "e1".into(), size: 100 };
            let head = Head { etag: Some(&etag), content_range: Some(&text), content_length: length };
            if judge(&object, &(10..20), head).is_ok() {
                prop_assert_eq!(bare(&etag), "e1");
                prop_assert!(length.is_none_or(|length| length == 10));
                let total = text.strip_prefix("bytes 10-19/").unwrap();
                prop_assert!(total == "*" || total.parse() == Ok(100));
            }
        }
    }

    fn judge_of(etag: &str, content_range: Option<&str>, content_length: Option<u64>) -> Option<Kind> {
        let object = ObjectVersion { key: "k".into(), etag: "e1".into(), size: 100 };
        let head = Head { etag: Some(etag), content_range, content_length };
        judge(&object, &(10..20), head).err().map(|(kind, _)| kind)
    }

    #[test]
    fn only_the_asked_range_of_the_asked_version_passes() {
        assert_eq!(judge_of("\"e1\"", Some("bytes 10-19/100"), Some(10)), None);
        assert_eq!(judge_of("W/\"e1\"", Some("bytes 10-19/*"), None), None);
        assert_eq!(judge_of("e2", Some("bytes 10-19/100"), Some(10)), Some(Kind::Changed));
        assert_eq!(judge_of("e1", Some("bytes 10-19/101"), Some(10)), Some(Kind::Changed));
        assert_eq!(judge_of("e1", None, Some(99)), Some(Kind::Changed));
        for wrong in [
            "bytes 11-20/100",
            "bytes 10-18/100",
            "bytes 10-20/100",
            "bytes 19-10/100",
            "10-19/100",
            "bytes x",
        ] {
            assert_eq!(judge_of("e1", Some(wrong), Some(10)), Some(Kind::WrongRange), "{wrong}");
        }
        assert_eq!(judge_of("e1", Some("bytes 10-19/100"), Some(9)), Some(Kind::WrongRange));
        assert_eq!(judge_of("e1", None, Some(100)), Some(Kind::WrongRange), "range ignored");
    }

    #[test]
    fn an_answer_that_does_not_say_its_version_is_refused() {
        let object = ObjectVersion { key: "k".into(), etag: "e1".into(), size: 7 };
        let head = Head { etag: None, content_range: None, content_length: Some(7) };
        assert!(matches!(judge(&object, &(0..7), head), Err((Kind::Unexpected, _))));
    }

    #[test]
    fn a_whole_object_may_come_without_a_range() {
        let object = ObjectVersion { key: "k".into(), etag: String::new(), size: 7 };
        let head = Head { etag: Some("any"), content_range: None, content_length: Some(7) };
        assert_eq!(judge(&object, &(0..7), head), Ok(()));
    }
}
