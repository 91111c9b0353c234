//! How are sizes, rates and durations written in specs, flags and fault plans?

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value that could not be read: names the field, the value and the cure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value:?} is not valid: {cure}")]
pub struct InvalidValue {
    /// The field that the value was given for.
    pub field: String,
    /// The value as it was given.
    pub value: String,
    /// What to write instead.
    pub cure: String,
}

impl InvalidValue {
    pub(crate) fn new(field: &str, value: &str, cure: impl Into<String>) -> Self {
        Self { field: field.to_owned(), value: value.to_owned(), cure: cure.into() }
    }

    /// The same complaint about the field that the value was really given for.
    pub(crate) fn in_field(self, field: &str) -> Self {
        Self { field: field.to_owned(), ..self }
    }
}

/// A number of bytes, or of bytes in a second; written `4096`, `100KiB`, `80MB`, `5TiB`.
///
/// `K`, `KB` and so on count in thousands, `Ki` and `KiB` in 1024s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ByteCount(pub u64);

const SIZE_CURE: &str = "write a whole number with an optional unit, such as 4096, 100KiB, 8Mi, 80MB or 5TiB";

impl FromStr for ByteCount {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidValue::new("size", text, SIZE_CURE);
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let (digits, unit) = trimmed.split_at(split);
        let number: u64 = digits.parse().map_err(|_| invalid())?;
        let factor: u64 = match unit.trim().trim_end_matches("/s").to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" => 1_000,
            "m" | "mb" => 1_000_000,
            "g" | "gb" => 1_000_000_000,
            "t" | "tb" => 1_000_000_000_000,
            "ki" | "kib" => 1 << 10,
            "mi" | "mib" => 1 << 20,
            "gi" | "gib" => 1 << 30,
            "ti" | "tib" => 1 << 40,
            _ => return Err(invalid()),
        };
        number.checked_mul(factor).map(ByteCount).ok_or_else(invalid)
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if self.0 >= 1 << shift && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// A span of time; written `30ms`, `1500us`, `2s`, `1m`; a bare number counts milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Span(pub Duration);

const SPAN_CURE: &str = "write a whole number with a unit, such as 500us, 30ms, 2s or 1m";

impl FromStr for Span {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidValue::new("duration", text, SPAN_CURE);
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let (digits, unit) = trimmed.split_at(split);
        let number: u64 = digits.parse().map_err(|_| invalid())?;
        let span = match unit.trim() {
            "us" => Duration::from_micros(number),
            "" | "ms" => Duration::from_millis(number),
            "s" => Duration::from_secs(number),
            "m" => Duration::from_secs(number.checked_mul(60).ok_or_else(invalid)?),
            _ => return Err(invalid()),
        };
        Ok(Span(span))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        if micros.is_multiple_of(1_000) { write!(f, "{}ms", micros / 1_000) } else { write!(f, "{micros}us") }
    }
}

impl Serialize for ByteCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a unit may look like in JSON or YAML.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a whole number, or text of a number with a unit")]
enum Written {
    Number(u64),
    Text(String),
}

impl<'de> Deserialize<'de> for ByteCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(ByteCount(number)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(Span(Duration::from_millis(number))),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_decimal_and_binary_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("100KiB", 102_400),
            ("8Mi", 8 << 20),
            ("80MB", 80_000_000),
            ("400MB/s", 400_000_000),
            ("5TiB", 5 << 40),
        ] {
            assert_eq!(text.parse::<ByteCount>().unwrap(), ByteCount(bytes), "{text}");
        }
    }

    #[test]
    fn a_bad_size_is_refused_with_field_value_and_cure() {
        for text in ["", "x", "1XB", "-1", "99999999999999TiB", "1.5MiB"] {
            let message = text.parse::<ByteCount>().unwrap_err().to_string();
            assert!(
                message.contains("size") && message.contains(text) && message.contains("100KiB"),
                "{message}"
            );
        }
    }

    #[test]
    fn spans_are_read_with_units_and_bare_milliseconds() {
        for (text, span) in [
            ("30", Duration::from_millis(30)),
            ("30ms", Duration::from_millis(30)),
            ("500us", Duration::from_micros(500)),
            ("2s", Duration::from_secs(2)),
            ("1m", Duration::from_secs(60)),
        ] {
            assert_eq!(text.parse::<Span>().unwrap(), Span(span), "{text}");
        }
        assert!("2 weeks".parse::<Span>().is_err());
    }

    #[test]
    fn what_is_printed_is_read_again() {
        for bytes in [0, 1, 1000, 1024, 80_000_000, 8 << 20, 5 << 40, (5 << 40) + 1] {
            assert_eq!(ByteCount(bytes).to_string().parse::<ByteCount>().unwrap().0, bytes);
        }
        let span = Span(Duration::from_micros(1500));
        assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
    }
}
