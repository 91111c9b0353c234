//! How do we name the things whose bytes must never be mixed up?

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// Says why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an id: expected 32 lower-case hexadecimal digits")]
pub struct ParseId {
    /// The refused text.
    pub text: String,
}

macro_rules! id16 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = ParseId;

            fn from_str(text: &str) -> Result<Self, ParseId> {
                parse_hex(text).map($name).ok_or_else(|| ParseId { text: text.to_owned() })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    };
}

id16! {
    /// Identifies a dataset version: the first half of the SHA-256 of its index.
    ///
    /// Printed as 32 hexadecimal digits.
    VersionId
}

id16! {
    /// Identifies the bytes of one store file: one version of one large object, or one pack of small ones.
    ///
    /// Two files with the same id hold the same bytes, whatever dataset version they were fetched for.
    ContentId
}

id16! {
    /// Identifies the S3 side of a source: endpoint and bucket.
    OriginId
}

impl OriginId {
    /// Names the bucket at an endpoint; `endpoint` is the URL in use, or `region:` and the region where there is none.
    pub fn of(endpoint: &str, bucket: &str) -> Self {
        Self(digest(b"millrace origin 1", [endpoint.as_bytes(), bucket.as_bytes()]))
    }
}

impl ContentId {
    /// Names one version of one object.
    ///
    /// `size` is in bytes; `etag` is the text between the quotes of S3's answer.
    pub fn of_object(origin: OriginId, key: &[u8], etag: &[u8], size: u64) -> Self {
        Self(digest(b"millrace object 1", [&origin.0[..], key, etag, &size.to_le_bytes()]))
    }

    /// Names a pack by the ids of its members, in the pack's order.
    pub fn of_pack(members: impl IntoIterator<Item = ContentId>) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(b"millrace pack 1");
        for member in members {
            hasher.update(member.0);
        }
        Self(first_half(hasher))
    }
}

/// Identifies one block: a slice of a large object's store file, or (with index 0) a whole pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    /// The store file that the block is part of.
    pub content: ContentId,
    /// Counted from 0 in units of the dataset's block size.
    pub index: u32,
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.content, self.index)
    }
}

/// Hashes length-prefixed parts, so that no two lists of parts have the same text.
fn digest<const N: usize>(domain: &[u8], parts: [&[u8]; N]) -> [u8; 16] {
    let mut hasher = Sha256::new();
    hasher.update(domain);
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    first_half(hasher)
}

fn first_half(hasher: Sha256) -> [u8; 16] {
    let whole: [u8; 32] = hasher.finalize().into();
    let mut half = [0; 16];
    half.copy_from_slice(&whole[..16]);
    half
}

pub(crate) fn parse_hex(text: &str) -> Option<[u8; 16]> {
    let digits = text.as_bytes();
    if digits.len() != 32 {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_id_reads_back_from_its_text() {
        let id = VersionId([0xA5; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("A5".repeat(16).parse::<VersionId>().is_err(), "upper case is refused");
        assert!("a5".repeat(15).parse::<VersionId>().is_err());
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, format!("\"{id}\""));
        assert_eq!(serde_json::from_str::<VersionId>(&json).unwrap(), id);
        assert!(serde_json::from_str::<VersionId>("\"a5\"").is_err());
    }

    proptest! {
        #[test]
        fn an_id_and_its_text_map_one_to_one(bytes: [u8; 16], at in 0usize..32, other in "[^0-9a-f]") {
            let id = ContentId(bytes);
            let text = id.to_string();
            prop_assert_eq!(text.parse(), Ok(id));
            let mut wrong = text;
            wrong.replace_range(at..=at, &other);
            prop_assert_eq!(wrong.parse::<ContentId>(), Err(ParseId { text: wrong }));
        }
    }

    #[test]
    fn object_ids_are_pinned() {
        let origin = OriginId::of("http://127.0.0.1:9000", "train");
        let id = ContentId::of_object(origin, b"a/b.jpg", b"d41d8cd98f00b204e9800998ecf8427e", 7);
        assert_eq!(id.to_string(), "d52520ccd9ac3ccd091ce6203079a859");
        assert_eq!(ContentId::of_pack([id, id]).to_string(), "1c5d4931cd42b81cbc6a51c6c7c0d087");
    }

    #[test]
    fn moving_a_byte_between_key_and_etag_changes_the_id() {
        let origin = OriginId::of("e", "b");
        assert_ne!(
            ContentId::of_object(origin, b"ab", b"c", 1),
            ContentId::of_object(origin, b"a", b"bc", 1)
        );
    }
}
