//! How are sizes and modes written in a Dataset, and what do they mean? Each type holds only what it can mean.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::block::BlockSize;

/// Longest text of a size: no number of bytes needs more, and CEL rules want a bound.
const MAX_SIZE_CHARS: usize = 24;

const SIZE_PATTERN: &str = r"^[0-9]{1,15}(\.[0-9]{1,3})?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$";

/// A number of bytes, written as a Kubernetes quantity without sign or exponent: `50Gi`, `1.5T`, `0`. Keeps the text as the
/// user wrote it. Fractions of a byte are rounded up, as Kubernetes does.
#[derive(Clone, PartialEq, Eq)]
pub struct ByteSize {
    text: String,
    bytes: u64,
}

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a size in bytes: write a number and a unit, such as 50Gi (k, M, G, T, P are powers of 1000; Ki, Mi, Gi, Ti, Pi of 1024)"
)]
pub struct ParseByteSize {
    /// The text.
    pub text: String,
}

impl ByteSize {
    /// The number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl FromStr for ByteSize {
    type Err = ParseByteSize;

    fn from_str(text: &str) -> Result<Self, ParseByteSize> {
        let bytes = parse_bytes(text).ok_or_else(|| ParseByteSize { text: text.to_owned() })?;
        Ok(Self { text: text.to_owned(), bytes })
    }
}

/// Parses what [`SIZE_PATTERN`] matches; what is more than a `u64` holds is its maximum.
fn parse_bytes(text: &str) -> Option<u64> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(unit_at)?;
    let unit: u128 = match unit {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "P" => 1_000_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str, most: usize| -> Option<u128> {
        let is_number = (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| text.parse().ok())?
    };
    let thousandths =
        digits(whole, 15)? * 1000 + digits(fraction, 3)? * 10u128.pow(3 - fraction.len() as u32);
    let bytes = (thousandths * unit).div_ceil(1000);
    Some(u64::try_from(bytes).unwrap_or(u64::MAX))
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByteSize({})", self.text)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 50Gi")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize { text: bytes.to_string(), bytes })
            }

            fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes)
                    .map_err(|_| E::invalid_value(Unexpected::Signed(bytes), &self))
                    .and_then(|b| self.visit_u64(b))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl JsonSchema for ByteSize {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            // Else the derive lets it be null where it has a default, which the type does not.
            "nullable": false,
            "maxLength": MAX_SIZE_CHARS,
            "pattern": SIZE_PATTERN,
        })
    }
}

/// Size of the blocks that a large object is cut into, and that small ones are packed into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names say it")]
pub enum BlockSizeName {
    #[serde(rename = "1Mi")]
    Mi1,
    #[serde(rename = "2Mi")]
    Mi2,
    #[serde(rename = "4Mi")]
    Mi4,
    #[default]
    #[serde(rename = "8Mi")]
    Mi8,
    #[serde(rename = "16Mi")]
    Mi16,
    #[serde(rename = "32Mi")]
    Mi32,
    #[serde(rename = "64Mi")]
    Mi64,
}

impl BlockSizeName {
    /// The block size of this name.
    pub fn block_size(self) -> BlockSize {
        let mib: u64 = match self {
            Self::Mi1 => 1,
            Self::Mi2 => 2,
            Self::Mi4 => 4,
            Self::Mi8 => 8,
            Self::Mi16 => 16,
            Self::Mi32 => 32,
            Self::Mi64 => 64,
        };
        BlockSize::new(mib << 20).expect("each name is a power of two from 1 to 64 MiB")
    }
}

/// Permission bits of files or folders, written in octal: `"0444"`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Mode(u16);

/// A text that is no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a mode: write three or four octal digits in quotes, such as \"0444\"")]
pub struct ParseMode {
    /// The text.
    pub text: String,
}

impl Mode {
    /// The mode with these permission bits; bits above `0o777` are dropped.
    pub const fn new(bits: u16) -> Self {
        Self(bits & 0o777)
    }

    /// The permission bits, `0..=0o777`.
    pub fn bits(self) -> u16 {
        self.0
    }
}

impl FromStr for Mode {
    type Err = ParseMode;

    fn from_str(text: &str) -> Result<Self, ParseMode> {
        let digits = text.strip_prefix('0').filter(|rest| rest.len() == 3).unwrap_or(text);
        let is_octal = digits.len() == 3 && digits.bytes().all(|b| (b'0'..=b'7').contains(&b));
        let bits = is_octal.then(|| u16::from_str_radix(digits, 8).ok()).flatten();
        bits.map(Self).ok_or_else(|| ParseMode { text: text.to_owned() })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mode({self})")
    }
}

impl Serialize for Mode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Mode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Mode {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Mode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "maxLength": 4 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_mean_what_kubernetes_means_by_them() {
        for (text, bytes) in [
            ("0", 0),
            ("1", 1),
            ("8388608", 8 << 20),
            ("1k", 1000),
            ("8Mi", 8 << 20),
            ("200Gi", 200 << 30),
            ("1.5G", 1_500_000_000),
            ("0.001", 1),
            ("1.001Ki", 1026),
            ("999999999999999Pi", u64::MAX),
        ] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, text));
        }
    }

    #[test]
    fn what_is_no_size_is_named_with_the_cure() {
        for text in [
            "",
            "Gi",
            "-1",
            "+1",
            "1e3",
            "1 Gi",
            "1gi",
            "1.Gi",
            ".5Gi",
            "1.0005",
            "1..5",
            "1KiB",
            "1é",
            "1234567890123456",
        ] {
            let error = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{text:?} is not a size")) && error.contains("50Gi"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_size_may_be_a_number() {
        let size: ByteSize = serde_json::from_str("0").unwrap();
        assert_eq!(size.bytes(), 0);
        let error = serde_json::from_str::<ByteSize>("-5").unwrap_err().to_string();
        assert!(error.contains("-5") && error.contains("50Gi"), "{error}");
    }

    #[test]
    fn the_pattern_of_the_crd_allows_what_the_parser_takes() {
        use kube::core::cel::Validator;
        let schema = serde_json::json!({"x-kubernetes-validations": [{"rule": format!("self.matches({SIZE_PATTERN:?})")}]});
        for text in [
            "0",
            "8Mi",
            "1.5G",
            "999999999999999Pi",
            "",
            "Gi",
            "-1",
            "1e3",
            "1.0005",
            "1234567890123456",
            "1KiB",
            "1é",
        ] {
            let allowed = Validator::new().validate(&schema, &serde_json::json!(text), None).is_ok();
            assert_eq!(allowed, text.parse::<ByteSize>().is_ok(), "{text}");
        }
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!("0444".parse::<Mode>().unwrap().bits(), 0o444);
        assert_eq!("750".parse::<Mode>().unwrap().to_string(), "0750");
        for text in ["", "44", "0448", "1777", "00444", "r--r--r--", "-444", "+44"] {
            let error = text.parse::<Mode>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{text:?} is not a mode")) && error.contains("\"0444\""),
                "{error}"
            );
        }
    }
}
