//! How does an ETag fit into a file record?
//!
//! Nearly all are an MD5 or, of multipart uploads, a hash and the number of parts: those are kept as 16 raw bytes and a
//! number. What is written otherwise in any way is kept as text, so that every ETag reads back as it was.

use std::borrow::Cow;

use super::format::{ETAG_KIND_SHIFT, FileRecord, TextRef};
use super::view::IndexView;
use zerocopy::FromBytes;

const KIND_NONE: u8 = 0;
const KIND_HASH: u8 = 1;
const KIND_PARTS: u8 = 2;
const KIND_TEXT: u8 = 3;

/// An ETag in the form that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Etag<'a> {
    None,
    Hash([u8; 16]),
    Parts([u8; 16], u32),
    Text(&'a str),
}

impl<'a> Etag<'a> {
    pub fn parse(text: &'a str) -> Self {
        if text.is_empty() {
            return Self::None;
        }
        Self::parse_hash(text).unwrap_or(Self::Text(text))
    }

    fn parse_hash(text: &str) -> Option<Self> {
        let (digits, rest) = text.split_at_checked(32)?;
        let hash = crate::ids::parse_hex(digits)?;
        if rest.is_empty() {
            return Some(Self::Hash(hash));
        }
        let digits = rest.strip_prefix('-')?;
        let parts: u32 = digits.parse().ok()?;
        // `+7` and `007` are numbers too, but would read back as `7`.
        (parts.to_string() == digits).then_some(Self::Parts(hash, parts))
    }

    /// The bits of the flags byte.
    pub fn flags(&self) -> u8 {
        let kind = match self {
            Self::None => KIND_NONE,
            Self::Hash(_) => KIND_HASH,
            Self::Parts(..) => KIND_PARTS,
            Self::Text(_) => KIND_TEXT,
        };
        kind << ETAG_KIND_SHIFT
    }
}

pub(super) fn read<'a>(view: &IndexView<'a>, record: &FileRecord) -> Option<Cow<'a, str>> {
    Some(match record.flags >> ETAG_KIND_SHIFT {
        KIND_NONE => Cow::Borrowed(""),
        KIND_HASH => Cow::Owned(hex(&record.etag)),
        KIND_PARTS => Cow::Owned(format!("{}-{}", hex(&record.etag), record.etag_parts.get())),
        KIND_TEXT => Cow::Borrowed(view.str(TextRef::read_from_prefix(&record.etag).ok()?.0)?),
        _ => return None,
    })
}

fn hex(bytes: &[u8; 16]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_reads_back_as_it_was_is_kept_short() {
        let hash = "00112233445566778899aabbccddeeff";
        assert!(matches!(Etag::parse(hash), Etag::Hash(_)));
        assert!(matches!(Etag::parse(&format!("{hash}-10000")), Etag::Parts(_, 10_000)));
        assert_eq!(Etag::parse(""), Etag::None);
        let texts = [
            hash.to_uppercase(),
            format!("{hash}-"),
            format!("{hash}-007"),
            format!("{hash}-+7"),
            format!("{hash}-4294967296"),
            format!("{hash}0"),
            "é".repeat(16) + "-1",
            "0".repeat(31) + "é",
            "x".to_owned(),
        ];
        for text in &texts {
            assert_eq!(Etag::parse(text), Etag::Text(text));
        }
    }
}
