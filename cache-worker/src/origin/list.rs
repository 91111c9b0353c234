//! What is on one page of a listing?

use aws_sdk_s3::operation::list_objects_v2::ListObjectsV2Output;
use aws_sdk_s3::types::{EncodingType, ObjectStorageClass, OptionalObjectAttributes, RequestPayer};
use tokio::time::{Instant, timeout_at};

use super::Origin;
use super::classify::{self, Verdict};
use super::config::Deadlines;
use super::error::{OriginError, OriginErrorKind as Kind, Request};
use super::get::outcome_of;
use super::head::bare;
use super::retry::Retry;
use super::trouble::Asked;
use super::window::{Outcome, Priority};

/// What a page counts as in the window, bytes: 1,000 keys of some 100 bytes with their XML, rounded up.
const PAGE_BYTES: u64 = 1 << 20;

/// Where a page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageStart {
    /// At the first key.
    First,
    /// Behind this key.
    After(String),
    /// Where the last page ended.
    Token(String),
}

/// One page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// In the order in which the server gave them.
    pub objects: Vec<Listed>,
    /// Goes on at the next page; `None` on the last.
    pub next: Option<String>,
}

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The whole key.
    pub key: Vec<u8>,
    /// Bytes.
    pub size: u64,
    /// Without quotes; empty where the server gives none.
    pub etag: String,
    /// Milliseconds since 1970; 0 where the server does not say.
    pub modified_ms: i64,
    /// Whether it must be restored before it can be read.
    pub is_archived: bool,
}

pub(super) async fn page(
    origin: &Origin,
    prefix: &str,
    start: &PageStart,
    priority: Priority,
    deadline: Instant,
) -> Result<Page, OriginError> {
    let mut retry = Retry::new(deadline);
    loop {
        match try_page(origin, prefix, start, priority, &mut retry).await {
            Ok(page) => {
                origin.went_well();
                return Ok(page);
            }
            Err(verdict) => origin.failed(&mut retry, &Asked::List(prefix.to_owned()), verdict).await?,
        }
    }
}

async fn try_page(
    origin: &Origin,
    prefix: &str,
    start: &PageStart,
    priority: Priority,
    retry: &mut Retry,
) -> Result<Page, Verdict> {
    let timed_out = |words: &str| Verdict { kind: Kind::TimedOut, said: words.to_owned(), region: None };
    let permit = timeout_at(retry.deadline(), origin.window().acquire(priority, PAGE_BYTES))
        .await
        .map_err(|_| timed_out("no place in the window of requests"))?;
    // The whole page must come in this time; servers that walk a folder for it may take a while.
    let until = (Instant::now() + Deadlines::LONGEST_WAIT).min(retry.deadline());
    retry.sent_with(origin.clients().credentials_generation());
    origin.counters().sent(Request::List);
    let answered = match timeout_at(until, send(origin, prefix, start)).await {
        Err(_) => Err(timed_out("no page")),
        Ok(Err(verdict)) => Err(verdict),
        Ok(Ok(answer)) => read(answer),
    };
    permit.end(answered.as_ref().map_or_else(|verdict| outcome_of(verdict.kind), |_| Outcome::Answered));
    answered
}

async fn send(origin: &Origin, prefix: &str, start: &PageStart) -> Result<ListObjectsV2Output, Verdict> {
    let config = origin.config();
    let client = origin.clients().now();
    // Url, since XML has no way to write some control characters.
    let mut call = client.s3.list_objects_v2().bucket(&config.bucket).encoding_type(EncodingType::Url);
    if !prefix.is_empty() {
        call = call.prefix(prefix);
    }
    call = match start {
        PageStart::First => call,
        PageStart::After(key) => call.start_after(key),
        PageStart::Token(token) => call.continuation_token(token),
    };
    // Which archived objects have been restored is only said to who asks.
    call = call.optional_object_attributes(OptionalObjectAttributes::RestoreStatus);
    if config.requester_pays {
        call = call.request_payer(RequestPayer::Requester);
    }
    call.send().await.map_err(|err| match classify::of_call(&err) {
        // A listing has no key to be missing: a bare 404 is the bucket.
        verdict if verdict.kind == Kind::NoSuchKey => Verdict { kind: Kind::NoSuchBucket, ..verdict },
        verdict => verdict,
    })
}

fn read(answer: ListObjectsV2Output) -> Result<Page, Verdict> {
    let unexpected = |words: &str| Verdict { kind: Kind::Unexpected, said: words.to_owned(), region: None };
    let is_encoded = answer.encoding_type == Some(EncodingType::Url);
    let next = match (answer.is_truncated, answer.next_continuation_token) {
        (Some(true), Some(token)) => Some(token),
        (Some(true), None) => return Err(unexpected("a page says that more follow, but not where")),
        (_, _) => None,
    };
    let mut objects = Vec::with_capacity(answer.contents.as_ref().map_or(0, Vec::len));
    for object in answer.contents.unwrap_or_default() {
        let key = object.key.ok_or_else(|| unexpected("an object without a key"))?;
        let size = object.size.and_then(|size| u64::try_from(size).ok());
        let is_archived =
            matches!(
                object.storage_class,
                Some(ObjectStorageClass::Glacier | ObjectStorageClass::DeepArchive)
            ) && object.restore_status.as_ref().is_none_or(|restore| restore.restore_expiry_date.is_none());
        objects.push(Listed {
            key: if is_encoded { decode(key) } else { key.into_bytes() },
            size: size.ok_or_else(|| unexpected("an object without a size"))?,
            etag: object.e_tag.as_deref().map(bare).unwrap_or_default().to_owned(),
            modified_ms: object.last_modified.and_then(|at| at.to_millis().ok()).unwrap_or(0),
            is_archived,
        });
    }
    Ok(Page { objects, next })
}

/// Undoes S3's encoding of keys: `+` for a space, `%` and two digits for any other byte.
fn decode(key: String) -> Vec<u8> {
    if !key.bytes().any(|byte| byte == b'%' || byte == b'+') {
        return key.into_bytes();
    }
    let encoded = key.as_bytes();
    let mut decoded = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after) {
            (b'+', _) => decoded.push(b' '),
            (b'%', [high, low, after @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                decoded.push(digit(*high) << 4 | digit(*low));
                rest = after;
            }
            (byte, _) => decoded.push(byte),
        }
    }
    decoded
}

fn digit(hex: u8) -> u8 {
    char::from(hex).to_digit(16).map_or(0, |digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100_000))]

        #[test]
        fn any_text_is_decoded_and_what_was_encoded_comes_back(
            key in proptest::collection::vec(any::<u8>(), 0..12), text in "[%+0-9a-fA-Fxyz]{0,16}",
        ) {
            let encoded: String = key.iter().map(|byte| format!("%{byte:02X}")).collect();
            prop_assert_eq!(decode(encoded), key);
            prop_assert!(decode(text.clone()).len() <= text.len());
        }
    }

    #[test]
    fn keys_are_decoded_to_bytes() {
        for (encoded, key) in [
            ("a/b.jpg", &b"a/b.jpg"[..]),
            ("a+b%2Bc", b"a b+c"),
            ("%00%ff%C3%A4", b"\x00\xff\xc3\xa4"),
            ("50%", b"50%"),
            ("%zz%1", b"%zz%1"),
        ] {
            assert_eq!(decode(encoded.to_owned()), key, "{encoded}");
        }
    }
}
