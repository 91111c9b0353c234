//! Which keys are on a page of a listing?
//!
//! The rules of ListObjectsV2, over any ordered source of keys that can be told to go on at a place
//! (<https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html>).

use crate::backend::Meta;

/// S3 puts at most this many keys and common prefixes on a page.
pub const MAX_KEYS: usize = 1000;

/// One key of a listing.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub key: Vec<u8>,
    pub meta: Meta,
}

/// Where a page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    First,
    /// After this key.
    After(Vec<u8>),
    /// After all keys that begin with this prefix, which the page before ended with.
    AfterPrefix(Vec<u8>),
}

/// What was asked for.
#[derive(Debug, Clone)]
pub(crate) struct ListQuery {
    pub prefix: Vec<u8>,
    pub delimiter: Vec<u8>,
    pub start: Start,
    pub max_keys: usize,
}

/// What is answered: both lists in order of keys.
#[derive(Debug, Default)]
pub(crate) struct ListPage {
    pub entries: Vec<Entry>,
    pub common_prefixes: Vec<Vec<u8>>,
    /// Where the next page begins; None on the last page.
    pub next: Option<Start>,
}

/// Keys in ascending order of their bytes.
pub(crate) trait Keys {
    /// Goes to the first key that is not below `from`.
    fn seek(&mut self, from: &[u8]);
    /// The key at the current place; goes on to the one behind it.
    fn next(&mut self) -> Option<Entry>;
}

/// Collects a page.
pub(crate) fn page(keys: &mut dyn Keys, query: &ListQuery) -> ListPage {
    let mut page = ListPage::default();
    let max_keys = query.max_keys.min(MAX_KEYS);
    let Some(first) = first_place(query) else { return page };
    if max_keys == 0 {
        return page;
    }
    keys.seek(&first);
    let mut last = query.start.clone();
    while let Some(entry) = keys.next() {
        if !entry.key.starts_with(&query.prefix) {
            break;
        }
        if page.entries.len() + page.common_prefixes.len() == max_keys {
            page.next = Some(last);
            break;
        }
        match common_prefix(&entry.key, query) {
            Some(prefix) => {
                page.common_prefixes.push(prefix.to_vec());
                last = Start::AfterPrefix(prefix.to_vec());
                match successor(prefix) {
                    Some(next) => keys.seek(&next),
                    None => break,
                }
            }
            None => {
                last = Start::After(entry.key.clone());
                page.entries.push(entry);
            }
        }
    }
    page
}

/// The lowest key that may be on the page; None when no key can be.
fn first_place(query: &ListQuery) -> Option<Vec<u8>> {
    let after = match &query.start {
        Start::First => Vec::new(),
        Start::After(key) => [key.as_slice(), b"\0"].concat(),
        Start::AfterPrefix(prefix) => successor(prefix)?,
    };
    Some(after.max(query.prefix.clone()))
}

fn common_prefix<'a>(key: &'a [u8], query: &ListQuery) -> Option<&'a [u8]> {
    let rest = key.get(query.prefix.len()..)?;
    if query.delimiter.is_empty() {
        return None;
    }
    let at = rest.windows(query.delimiter.len()).position(|window| window == query.delimiter)?;
    key.get(..query.prefix.len() + at + query.delimiter.len())
}

/// The lowest byte string above all that begin with `prefix`; None when there is none.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut next = prefix.get(..=keep)?.to_vec();
    *next.last_mut()? += 1;
    Some(next)
}

impl Start {
    /// The continuation token: opaque to clients, as S3 says.
    pub fn token(&self) -> String {
        let (kind, bytes) = match self {
            Self::First => ('0', &[][..]),
            Self::After(key) => ('1', key.as_slice()),
            Self::AfterPrefix(prefix) => ('2', prefix.as_slice()),
        };
        let mut token = String::with_capacity(1 + 2 * bytes.len());
        token.push(kind);
        for byte in bytes {
            token.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
            token.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
        }
        token
    }

    /// Reads what [`Start::token`] wrote; None when it did not.
    pub fn from_token(token: &str) -> Option<Self> {
        let (kind, digits) = token.split_at_checked(1)?;
        if digits.len() % 2 != 0 {
            return None;
        }
        let bytes = digits
            .as_bytes()
            .chunks(2)
            .map(|pair| match pair {
                [high, low] => {
                    let high = char::from(*high).to_digit(16)?;
                    let low = char::from(*low).to_digit(16)?;
                    u8::try_from(high << 4 | low).ok()
                }
                _ => None,
            })
            .collect::<Option<Vec<u8>>>()?;
        match kind {
            "0" => Some(Self::First),
            "1" => Some(Self::After(bytes)),
            "2" => Some(Self::AfterPrefix(bytes)),
            _ => None,
        }
    }
}

/// Encodes a key as S3 does under `encoding-type=url`: a space becomes `+`, `/` stays, bytes that are no UTF-8 are
/// encoded as they are.
pub(crate) fn url_encode(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len() + 16);
    for byte in key {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'*' | b'/' => {
                text.push(char::from(*byte))
            }
            b' ' => text.push('+'),
            _ => {
                const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
                text.push('%');
                text.push(char::from(DIGITS[usize::from(byte >> 4)]));
                text.push(char::from(DIGITS[usize::from(byte & 15)]));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    struct Sorted {
        keys: Vec<Vec<u8>>,
        at: usize,
    }

    impl Keys for Sorted {
        fn seek(&mut self, from: &[u8]) {
            self.at = self.keys.partition_point(|key| key.as_slice() < from);
        }
        fn next(&mut self) -> Option<Entry> {
            let key = self.keys.get(self.at)?.clone();
            self.at += 1;
            let meta =
                Meta { size: 0, etag: String::new(), modified: SystemTime::UNIX_EPOCH, storage_class: None };
            Some(Entry { key, meta })
        }
    }

    fn sorted(keys: &[&[u8]]) -> Sorted {
        let mut keys: Vec<Vec<u8>> = keys.iter().map(|key| key.to_vec()).collect();
        keys.sort();
        Sorted { keys, at: 0 }
    }

    const AWKWARD: &[&[u8]] = &[
        b"a",
        b"a/",
        b"a//b",
        b"a/b",
        b"a/b/c",
        b"a0",
        b"b",
        b"b/\xff",
        b"b/\xff\xff",
        b"c/x",
        b"/",
        b"//",
        b"/d",
        b"\xff",
        b"\xff\xff/z",
        b"z",
        b"a\x00",
        b"./x",
        b"../y",
    ];

    /// All pages, each asked for with the token of the one before.
    fn walk(
        keys: &mut Sorted,
        prefix: &[u8],
        delimiter: &[u8],
        start: Start,
        max_keys: usize,
    ) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let mut query = ListQuery { prefix: prefix.to_vec(), delimiter: delimiter.to_vec(), start, max_keys };
        let (mut all, mut prefixes) = (Vec::new(), Vec::new());
        loop {
            let page = page(keys, &query);
            assert!(page.entries.len() + page.common_prefixes.len() <= max_keys);
            all.extend(page.entries.into_iter().map(|entry| entry.key));
            prefixes.extend(page.common_prefixes);
            match page.next {
                Some(next) => query.start = Start::from_token(&next.token()).unwrap(),
                None => return (all, prefixes),
            }
        }
    }

    #[test]
    fn every_page_size_prefix_and_delimiter_agrees_with_the_model() {
        let mut keys = sorted(AWKWARD);
        for prefix in [&b""[..], b"a", b"a/", b"b/", b"/", b"\xff", b"nothing"] {
            for delimiter in [&b""[..], b"/", b"//", b"\xff"] {
                let (mut contents, mut prefixes) = (Vec::new(), Vec::new());
                for key in keys.keys.iter().filter(|key| key.starts_with(prefix)) {
                    let rest = &key[prefix.len()..];
                    let at = rest.windows(delimiter.len().max(1)).position(|w| w == delimiter);
                    match at {
                        Some(at) => prefixes.push(key[..prefix.len() + at + delimiter.len()].to_vec()),
                        None => contents.push(key.clone()),
                    }
                }
                prefixes.dedup();
                for max_keys in 1..=AWKWARD.len() {
                    let got = walk(&mut keys, prefix, delimiter, Start::First, max_keys);
                    assert_eq!(
                        got,
                        (contents.clone(), prefixes.clone()),
                        "{prefix:?} {delimiter:?} {max_keys}"
                    );
                }
            }
        }
    }

    #[test]
    fn start_after_excludes_the_key_itself() {
        let mut keys = sorted(AWKWARD);
        for start in AWKWARD {
            let expected: Vec<Vec<u8>> =
                keys.keys.iter().filter(|key| key.as_slice() > *start).cloned().collect();
            assert_eq!(walk(&mut keys, b"", b"", Start::After(start.to_vec()), 3).0, expected);
        }
    }

    #[test]
    fn a_page_of_no_keys_is_the_last() {
        let query = ListQuery { prefix: vec![], delimiter: vec![], start: Start::First, max_keys: 0 };
        let page = page(&mut sorted(AWKWARD), &query);
        assert!(page.entries.is_empty() && page.next.is_none());
    }

    #[test]
    fn tokens_that_are_not_ours_are_refused() {
        for token in ["", "x", "3aa", "1a", "1zz", "1é", "2+a"] {
            assert_eq!(Start::from_token(token), None, "{token}");
        }
    }

    #[test]
    fn keys_are_encoded_as_s3_does() {
        assert_eq!(url_encode(b"a b/c+d~\x01\xff\xc3\xa9"), "a+b/c%2Bd%7E%01%FF%C3%A9");
    }
}
