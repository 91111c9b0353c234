//! What may go wrong with one request, and with which requests?

use std::str::FromStr;

use globset::{GlobBuilder, GlobMatcher};
use serde::{Deserialize, Serialize};

use crate::target::Operation;
use crate::units::{ByteCount, InvalidValue, Span};

/// One way in which a request goes wrong.
///
/// In the short form a kind is followed by its fields: `truncate,after=64KiB`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Fault {
    /// Answers 503 SlowDown; counted as a throttle.
    SlowDown,
    /// Answers any S3 error.
    Error {
        /// HTTP status, 300 to 599.
        status: u16,
        /// The S3 error code, for example `AccessDenied`.
        code: String,
        /// Text of the message; empty for none.
        #[serde(default)]
        message: String,
    },
    /// Closes the connection in the middle of a body whose Content-Length promised more.
    Truncate {
        /// Bytes of the body that are sent.
        #[serde(default)]
        after: ByteCount,
    },
    /// Resets the connection (TCP RST) in the middle of a body.
    Reset {
        /// Bytes of the body that are sent.
        #[serde(default)]
        after: ByteCount,
    },
    /// Resets the connection instead of answering.
    Drop,
    /// Accepts the request and never answers.
    Hang,
    /// Stops in the middle of a body and keeps the connection open.
    Stall {
        /// Bytes of the body that are sent.
        #[serde(default)]
        after: ByteCount,
    },
    /// Answers this much later.
    Delay {
        /// Added to the plan's latency.
        by: Span,
    },
    /// Another ETag, the same bytes: the object seems to have been written again.
    ChangedEtag,
    /// Another ETag and other bytes: the object has been overwritten after the listing.
    Overwritten,
    /// NoSuchKey for an object that listings still show.
    Deleted,
    /// Answers as if the request had no If-Match.
    IfMatchIgnored,
    /// Answers as if the request had no Range: 200 with the whole object.
    RangeIgnored,
    /// Answers with the range behind the one asked for, and says so in Content-Range.
    WrongRange,
    /// Other bytes than the object has, under right headers.
    CorruptBody,
    /// Shuffles the keys of a page.
    ListingOutOfOrder,
    /// Leaves the ETags out of a page.
    ListingWithoutEtags,
}

/// A fault and the requests that it befalls.
///
/// The short form is `<kind>[,<field>=<value>]...`, for example `slowDown,probability=0.3,keys=img/**` or
/// `error,status=403,code=AccessDenied,operation=GetObject`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rule {
    /// What goes wrong.
    pub fault: Fault,
    /// Name of the bucket; all buckets when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// Glob over the key, `*` within a segment and `**` over several; requests without a key do not match. All requests
    /// when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<String>,
    /// The operations; when empty, those that the fault can befall.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<Operation>,
    /// Share of the matching requests that are befallen, 0 to 1.
    #[serde(default = "certain")]
    pub probability: f64,
    /// How many requests are befallen at most; no limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// How many matching requests pass before the first is befallen.
    #[serde(default)]
    pub skip: u64,
}

fn certain() -> f64 {
    1.0
}

impl From<Fault> for Rule {
    fn from(fault: Fault) -> Self {
        Self {
            fault,
            bucket: None,
            keys: None,
            operations: Vec::new(),
            probability: 1.0,
            count: None,
            skip: 0,
        }
    }
}

const FIELDS: &str = "bucket, keys, operation, probability, count, skip, and those of the kind: after, by, status, code, message";

impl FromStr for Rule {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(',').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let mut fault = serde_json::Map::new();
        fault.insert("kind".to_owned(), kind.into());
        let mut rule = Self::from(Fault::Hang);
        for part in parts {
            let (field, value) = part.split_once('=').ok_or_else(|| {
                InvalidValue::new(
                    "fault",
                    part,
                    format!("write field=value, with one of the fields {FIELDS}"),
                )
            })?;
            let number =
                || value.parse().map_err(|_| InvalidValue::new(field, value, "write a whole number"));
            match field {
                "bucket" => rule.bucket = Some(value.to_owned()),
                "keys" => rule.keys = Some(value.to_owned()),
                "operation" => rule.operations.push(value.parse()?),
                "probability" => {
                    rule.probability =
                        value.parse().map_err(|_| InvalidValue::new(field, value, PROBABILITY_CURE))?;
                }
                "count" => rule.count = Some(number()?),
                "skip" => rule.skip = number()?,
                "status" => {
                    fault.insert(field.to_owned(), number()?.into());
                }
                "after" | "by" | "code" | "message" => {
                    fault.insert(field.to_owned(), value.into());
                }
                _ => return Err(InvalidValue::new("fault", field, format!("the fields are {FIELDS}"))),
            }
        }
        rule.fault = serde_json::from_value(fault.into()).map_err(|err| {
            InvalidValue::new("fault", text, format!("{err}; the general fields are {FIELDS}"))
        })?;
        rule.validate()?;
        Ok(rule)
    }
}

const PROBABILITY_CURE: &str = "write a number from 0 to 1, such as 0.3";

impl Rule {
    /// The same for keys that match a glob.
    pub fn keys(mut self, glob: impl Into<String>) -> Self {
        self.keys = Some(glob.into());
        self
    }

    /// The same for one bucket.
    pub fn bucket(mut self, bucket: impl Into<String>) -> Self {
        self.bucket = Some(bucket.into());
        self
    }

    /// The same for one operation (more).
    pub fn operation(mut self, operation: Operation) -> Self {
        self.operations.push(operation);
        self
    }

    /// The same for a share of the requests.
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    /// The same for so many requests at most.
    pub fn count(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    /// The same after so many requests have passed.
    pub fn skip(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidValue> {
        if !(0.0..=1.0).contains(&self.probability) {
            return Err(InvalidValue::new("probability", &self.probability.to_string(), PROBABILITY_CURE));
        }
        if let Fault::Error { status, .. } = self.fault
            && !(300..600).contains(&status)
        {
            return Err(InvalidValue::new(
                "status",
                &status.to_string(),
                "use an HTTP status from 300 to 599",
            ));
        }
        self.matcher().map(|_| ())
    }

    /// The matcher of the keys; None when every request matches.
    pub(crate) fn matcher(&self) -> Result<Option<GlobMatcher>, InvalidValue> {
        let Some(glob) = &self.keys else { return Ok(None) };
        let built = GlobBuilder::new(glob).literal_separator(true).backslash_escape(true).build();
        built.map(|glob| Some(glob.compile_matcher())).map_err(|err| {
            InvalidValue::new("keys", glob, format!("write a glob such as img/** ({})", err.kind()))
        })
    }

    /// Whether the fault can befall the operation, or the rule names it.
    pub(crate) fn concerns(&self, operation: Operation) -> bool {
        if !self.operations.is_empty() {
            return self.operations.contains(&operation);
        }
        match &self.fault {
            Fault::SlowDown | Fault::Error { .. } | Fault::Drop | Fault::Hang | Fault::Delay { .. } => true,
            Fault::Truncate { .. } | Fault::Reset { .. } | Fault::Stall { .. } => {
                operation == Operation::GetObject
            }
            Fault::RangeIgnored | Fault::WrongRange | Fault::CorruptBody => operation == Operation::GetObject,
            Fault::ChangedEtag | Fault::Overwritten | Fault::Deleted | Fault::IfMatchIgnored => {
                matches!(operation, Operation::GetObject | Operation::HeadObject)
            }
            Fault::ListingOutOfOrder | Fault::ListingWithoutEtags => operation.is_listing(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_from_its_short_form() {
        let rule: Rule = "slowDown,probability=0.3,keys=img/**,operation=GetObject".parse().unwrap();
        assert_eq!(
            rule,
            Rule::from(Fault::SlowDown).probability(0.3).keys("img/**").operation(Operation::GetObject)
        );
        let rule: Rule = "truncate,after=64KiB,count=2,skip=1".parse().unwrap();
        assert_eq!(rule, Rule::from(Fault::Truncate { after: ByteCount(65_536) }).count(2).skip(1));
        let rule: Rule = "error,status=403,code=AccessDenied".parse().unwrap();
        let error = Fault::Error { status: 403, code: "AccessDenied".to_owned(), message: String::new() };
        assert_eq!(rule.fault, error);
    }

    #[test]
    fn a_bad_rule_is_refused_with_field_value_and_cure() {
        for (text, part) in [
            ("explode", "explode"),
            ("slowDown,probability=3", "probability"),
            ("slowDown,colour=red", "colour"),
            ("slowDown,keys", "keys"),
            ("delay", "by"),
            ("truncate,after=much", "much"),
            ("slowDown,operation=Fly", "Fly"),
        ] {
            let message = text.parse::<Rule>().unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
