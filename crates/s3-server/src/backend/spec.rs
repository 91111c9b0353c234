//! Which keys and sizes does a synthetic bucket have?

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::units::{ByteCount, InvalidValue};

/// More keys than any listing test asks for, few enough that every key index and its digits stay small.
const MAX_OBJECTS: u64 = 1_000_000_000;
/// S3's limit on one object.
const MAX_OBJECT_BYTES: u64 = 5 << 40;
/// Levels of folders; keys stay far below S3's 1,024 bytes.
const MAX_DEPTH: u32 = 8;

/// A bucket whose keys and bodies are computed, so that any number and size costs neither memory nor disk.
///
/// Written `bucket=train,objects=10000,size=100KiB,prefix=img/,per-dir=100`; several are joined by `;`. Key number
/// `i` is `<prefix><folders>f<i><suffix>` with zero-padded numbers, so that keys are in order of `i`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntheticSpec {
    /// Name of the bucket.
    pub bucket: String,
    /// Number of keys, at most a thousand million. Not used when `keys` are given.
    pub objects: u64,
    /// Smallest size of an object.
    pub min_size: ByteCount,
    /// Largest size of an object; each object's size is chosen by its key between the two, both included.
    pub max_size: ByteCount,
    /// Text before each key.
    pub prefix: String,
    /// Text behind each key.
    pub suffix: String,
    /// Children of each folder; 0 puts all keys at one level.
    pub per_dir: u64,
    /// Levels of folders when `per_dir` is not 0.
    pub depth: u32,
    /// Another seed gives other bodies, sizes and ETags.
    pub seed: u64,
    /// Explicit keys in place of the pattern.
    pub keys: Option<Vec<String>>,
}

impl Default for SyntheticSpec {
    fn default() -> Self {
        Self {
            bucket: "synthetic".to_owned(),
            objects: 1000,
            min_size: ByteCount(100 << 10),
            max_size: ByteCount(100 << 10),
            prefix: String::new(),
            suffix: ".bin".to_owned(),
            per_dir: 0,
            depth: 1,
            seed: 0,
            keys: None,
        }
    }
}

const FIELDS: &str = "bucket, objects, size, prefix, suffix, per-dir, depth, seed";

impl FromStr for SyntheticSpec {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut spec = Self::default();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let (field, value) = part.trim().split_once('=').ok_or_else(|| {
                InvalidValue::new(
                    "synthetic spec",
                    part,
                    format!("write field=value, with one of the fields {FIELDS}"),
                )
            })?;
            spec.set(field, value)?;
        }
        spec.validate()?;
        Ok(spec)
    }
}

impl SyntheticSpec {
    /// Reads several specs joined by `;`.
    ///
    /// # Errors
    /// Names the field, the value and the cure; also when two specs name one bucket.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, InvalidValue> {
        let mut specs: Vec<Self> = Vec::new();
        for part in text.split(';').filter(|part| !part.trim().is_empty()) {
            let spec: Self = part.parse()?;
            if specs.iter().any(|other| other.bucket == spec.bucket) {
                return Err(InvalidValue::new(
                    "bucket",
                    &spec.bucket,
                    "give each synthetic spec a bucket of its own",
                ));
            }
            specs.push(spec);
        }
        if specs.is_empty() {
            return Err(InvalidValue::new(
                "synthetic spec",
                text,
                "write for example objects=1000,size=100KiB",
            ));
        }
        Ok(specs)
    }

    fn set(&mut self, field: &str, value: &str) -> Result<(), InvalidValue> {
        let number = || {
            let digits = value.replace('_', "");
            digits.parse::<u64>().map_err(|_| InvalidValue::new(field, value, "write a whole number"))
        };
        match field {
            "bucket" => self.bucket = value.to_owned(),
            "objects" => self.objects = number()?,
            "size" => {
                let size = |text: &str| text.parse::<ByteCount>().map_err(|err| err.in_field("size"));
                let (min, max) = value.split_once("..").unwrap_or((value, value));
                (self.min_size, self.max_size) = (size(min)?, size(max)?);
            }
            "prefix" => self.prefix = value.to_owned(),
            "suffix" => self.suffix = value.to_owned(),
            "per-dir" => self.per_dir = number()?,
            "depth" => {
                self.depth = u32::try_from(number()?)
                    .map_err(|_| InvalidValue::new(field, value, format!("write at most {MAX_DEPTH}")))?;
            }
            "seed" => self.seed = number()?,
            _ => return Err(InvalidValue::new("synthetic spec", field, format!("the fields are {FIELDS}"))),
        }
        Ok(())
    }

    /// Checks what the fields must hold together.
    ///
    /// # Errors
    /// Names the field, the value and the cure.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        let refuse = |field: &str, value: &dyn fmt::Display, cure: &str| {
            Err(InvalidValue::new(field, &value.to_string(), cure))
        };
        if !s3s::path::check_bucket_name(&self.bucket) {
            return refuse(
                "bucket",
                &self.bucket,
                "use 3 to 63 lower-case letters, digits, dots and hyphens",
            );
        }
        if self.objects > MAX_OBJECTS {
            return refuse("objects", &self.objects, "use at most 1000000000");
        }
        if self.min_size > self.max_size {
            return refuse(
                "size",
                &format!("{}..{}", self.min_size, self.max_size),
                "put the smaller size first",
            );
        }
        if self.max_size.0 > MAX_OBJECT_BYTES {
            return refuse("size", &self.max_size, "use at most 5TiB, the largest object S3 has");
        }
        if self.depth == 0 || self.depth > MAX_DEPTH {
            return refuse("depth", &self.depth, "use 1 to 8 levels, or per-dir=0 for none");
        }
        if self.per_dir == 1 {
            return refuse("per-dir", &self.per_dir, "use 0 for no folders, or at least 2");
        }
        if self.prefix.len() + self.suffix.len() > 800 {
            return refuse(
                "prefix",
                &self.prefix,
                "use at most 800 bytes in prefix and suffix, a key has 1024 at most",
            );
        }
        Ok(())
    }

    /// Size of the object `key`.
    pub fn size_of(&self, key: &[u8]) -> u64 {
        let span = self.max_size.0 - self.min_size.0;
        if span == 0 {
            return self.min_size.0;
        }
        self.min_size.0 + xxh3_64_with_seed(key, self.seed ^ 0x5153) % (span + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_is_read_from_its_short_form() {
        let spec: SyntheticSpec =
            "bucket=train,objects=10_000,size=64KiB..4MiB,prefix=img/,per-dir=100,depth=2,suffix=.jpg,seed=7"
                .parse()
                .unwrap();
        assert_eq!((spec.bucket.as_str(), spec.objects, spec.per_dir, spec.depth), ("train", 10_000, 100, 2));
        assert_eq!((spec.min_size.0, spec.max_size.0, spec.seed), (64 << 10, 4 << 20, 7));
        assert_eq!((spec.prefix.as_str(), spec.suffix.as_str()), ("img/", ".jpg"));
    }

    #[test]
    fn several_specs_are_joined_by_semicolons() {
        let specs = SyntheticSpec::parse_all("bucket=one,objects=1; bucket=two,size=5TiB").unwrap();
        assert_eq!(specs.iter().map(|spec| spec.bucket.as_str()).collect::<Vec<_>>(), ["one", "two"]);
        assert!(
            SyntheticSpec::parse_all("bucket=one;bucket=one").unwrap_err().to_string().contains("\"one\"")
        );
        assert!(SyntheticSpec::parse_all(" ; ").is_err());
    }

    #[test]
    fn a_bad_spec_is_refused_with_field_value_and_cure() {
        for (text, field, value) in [
            ("objects=many", "objects", "many"),
            ("objects=2000000000", "objects", "2000000000"),
            ("size=1XB", "size", "1XB"),
            ("size=2MiB..1MiB", "size", "2MiB..1MiB"),
            ("size=6TiB", "size", "6TiB"),
            ("bucket=No", "bucket", "No"),
            ("depth=9", "depth", "9"),
            ("per-dir=1", "per-dir", "1"),
            ("colour=red", "synthetic spec", "colour"),
            ("objects", "synthetic spec", "objects"),
        ] {
            let message = text.parse::<SyntheticSpec>().unwrap_err().to_string();
            assert!(message.starts_with(field) && message.contains(value), "{text}: {message}");
        }
    }
}
