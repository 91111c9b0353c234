//! What does a fault plan say?
//!
//! ```yaml
//! firstByte: 30ms            # from the request to the first byte of its answer
//! jitter: 5ms                # added at random, 0 to this much
//! listPage: 30ms             # the same for a page of a listing; firstByte when absent
//! perStream: 80MB            # bytes a second of each connection
//! total: 400MB               # bytes a second of all answers together
//! seed: 1
//! rules:
//! - {fault: {kind: slowDown}, operations: [GetObject], probability: 0.3}
//! - {fault: {kind: truncate, after: 64KiB}, keys: "img/**", count: 2}
//! ```

use serde::{Deserialize, Serialize};

use super::rule::Rule;
use crate::units::{ByteCount, InvalidValue, Span};

/// A plan never needs more rules than this; each request is compared with each rule.
const MAX_RULES: usize = 64;
/// Slower than this a body would wait longer for one piece than any client's deadline.
const MIN_RATE: u64 = 1000;

/// All faults of a server; the default has none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FaultPlan {
    /// Time from the request to the first byte of its answer.
    pub first_byte: Option<Span>,
    /// Added to each latency at random, from nothing to this much.
    pub jitter: Option<Span>,
    /// Time from a request for a page of a listing to its answer; `first_byte` when absent.
    pub list_page: Option<Span>,
    /// Bytes a second of each connection, and so of each answer.
    pub per_stream: Option<ByteCount>,
    /// Bytes a second of all answers' bodies together.
    pub total: Option<ByteCount>,
    /// For everything random in the plan: the same seed and order of requests give the same faults.
    pub seed: u64,
    /// Faults of single requests; all that match are applied.
    pub rules: Vec<Rule>,
}

/// A plan that could not be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidPlan {
    /// The text is no plan: not YAML or JSON, or an unknown field.
    #[error(
        "fault plan is not valid: see the cause for line and field, and the documentation of the plan for its fields"
    )]
    Syntax(#[source] serde_yaml::Error),
    /// A field has a value that makes no sense.
    #[error("fault plan is not valid")]
    Value(#[from] InvalidValue),
}

impl FaultPlan {
    /// Reads a plan from YAML or JSON.
    ///
    /// # Errors
    /// Says which line or field is wrong.
    pub fn from_yaml(text: &str) -> Result<Self, InvalidPlan> {
        let plan: Self = serde_yaml::from_str(text).map_err(InvalidPlan::Syntax)?;
        plan.validate()?;
        Ok(plan)
    }

    /// Checks the values of all fields.
    ///
    /// # Errors
    /// Names the field, the value and the cure.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        for (field, rate) in [("perStream", self.per_stream), ("total", self.total)] {
            if let Some(rate) = rate
                && rate.0 < MIN_RATE
            {
                return Err(InvalidValue::new(
                    field,
                    &rate.to_string(),
                    "use at least 1KB a second, or leave it out",
                ));
            }
        }
        if self.rules.len() > MAX_RULES {
            return Err(InvalidValue::new("rules", &self.rules.len().to_string(), "use at most 64 rules"));
        }
        self.rules.iter().try_for_each(Rule::validate)
    }

    /// The same plan with one rule more.
    pub fn rule(mut self, rule: impl Into<Rule>) -> Self {
        self.rules.push(rule.into());
        self
    }

    /// The same plan with a latency to the first byte, also of listings.
    pub fn with_first_byte(mut self, latency: std::time::Duration) -> Self {
        self.first_byte = Some(Span(latency));
        self
    }

    /// The same plan with another latency of a page of a listing.
    pub fn with_list_page(mut self, latency: std::time::Duration) -> Self {
        self.list_page = Some(Span(latency));
        self
    }

    /// The same plan with caps in bytes a second, of each connection and of all together.
    pub fn with_rates(mut self, per_stream: Option<u64>, total: Option<u64>) -> Self {
        self.per_stream = per_stream.map(ByteCount);
        self.total = total.map(ByteCount);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::rule::Fault;

    #[test]
    fn a_plan_is_read_from_yaml_and_from_json() {
        let yaml = "
firstByte: 30ms
listPage: 2s
perStream: 80MB
total: 400MB
rules:
- {fault: {kind: slowDown}, operations: [GetObject], probability: 0.3}
- {fault: {kind: truncate, after: 64KiB}, keys: 'img/**', count: 2, skip: 1}
";
        let plan = FaultPlan::from_yaml(yaml).unwrap();
        assert_eq!(plan.rules[1].fault, Fault::Truncate { after: ByteCount(65_536) });
        assert_eq!((plan.rules[1].count, plan.rules[1].skip), (Some(2), 1));
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(FaultPlan::from_yaml(&json).unwrap(), plan);
    }

    #[test]
    fn a_bad_plan_is_refused_with_field_and_value() {
        for (text, part) in [
            ("colour: red", "colour"),
            ("perStream: 3", "perStream"),
            ("rules: [{fault: {kind: explode}}]", "explode"),
            ("rules: [{fault: {kind: slowDown}, probability: 2}]", "probability"),
            ("rules: [{fault: {kind: slowDown}, keys: '['}]", "keys"),
            ("rules: [{fault: {kind: slowDown}, operations: [Fly]}]", "Fly"),
            ("firstByte: soon", "soon"),
            ("rules: [{fault: {kind: error, status: 99, code: X}}]", "status"),
        ] {
            let err = FaultPlan::from_yaml(text).unwrap_err();
            let message = format!(
                "{err}: {}",
                std::error::Error::source(&err).map(ToString::to_string).unwrap_or_default()
            );
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
