//! What befalls this request under the plan in force?

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use globset::GlobMatcher;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::pace::{Pace, Schedule, Stream};
use super::plan::FaultPlan;
use super::rule::{Fault, Rule};
use crate::target::Target;
use crate::units::InvalidValue;

/// A plan in force: its rules with what they have done so far.
pub(crate) struct Active {
    plan: FaultPlan,
    rules: Vec<ActiveRule>,
    total: Option<(u64, Arc<Mutex<Schedule>>)>,
    /// Requests so far, for the jitter.
    requests: AtomicU64,
}

struct ActiveRule {
    rule: Rule,
    keys: Option<GlobMatcher>,
    matched: AtomicU64,
    applied: AtomicU64,
}

/// What befalls one request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Decision {
    /// Time from the request to the first byte of the answer.
    pub latency: Duration,
    /// The first of the plan's rules first.
    pub faults: Vec<Fault>,
    /// For what is random within the answer.
    pub random: u64,
}

impl Active {
    pub fn new(plan: FaultPlan, now: Instant) -> Result<Self, InvalidValue> {
        plan.validate()?;
        let rules = plan
            .rules
            .iter()
            .map(|rule| {
                Ok(ActiveRule {
                    keys: rule.matcher()?,
                    rule: rule.clone(),
                    matched: AtomicU64::new(0),
                    applied: AtomicU64::new(0),
                })
            })
            .collect::<Result<_, InvalidValue>>()?;
        let total = plan.total.map(|rate| (rate.0, Arc::new(Mutex::new(Schedule::new(rate.0, now)))));
        Ok(Self { plan, rules, total, requests: AtomicU64::new(0) })
    }

    pub fn plan(&self) -> &FaultPlan {
        &self.plan
    }

    /// How often each rule has been applied, in the plan's order.
    pub fn applied(&self) -> Vec<u64> {
        self.rules.iter().map(|rule| rule.applied.load(Ordering::Relaxed)).collect()
    }

    /// What befalls the request; counts it.
    pub fn decide(&self, target: &Target) -> Decision {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let random = self.random(u64::MAX, number);
        let base = match self.plan.list_page {
            Some(list_page) if target.operation.is_listing() => Some(list_page),
            _ => self.plan.first_byte,
        };
        let jitter = self.plan.jitter.map_or(Duration::ZERO, |jitter| jitter.0.mul_f64(share(random)));
        let mut decision =
            Decision { latency: base.unwrap_or_default().0 + jitter, faults: Vec::new(), random };
        for (index, rule) in self.rules.iter().enumerate() {
            if rule.matches(target) && rule.strikes(|number| self.random(index as u64, number)) {
                match &rule.rule.fault {
                    Fault::Delay { by } => decision.latency += by.0,
                    fault => decision.faults.push(fault.clone()),
                }
            }
        }
        decision
    }

    /// The caps for an answer that begins now on a connection.
    pub fn pace(&self, stream: &Stream, now: Instant) -> Option<Pace> {
        Pace::new(self.plan.per_stream.map(|rate| rate.0), stream, self.total.clone(), now)
    }

    fn random(&self, stream: u64, number: u64) -> u64 {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&stream.to_le_bytes());
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        xxh3_64_with_seed(&bytes, self.plan.seed)
    }
}

impl ActiveRule {
    fn matches(&self, target: &Target) -> bool {
        let Rule { bucket, .. } = &self.rule;
        self.rule.concerns(target.operation)
            && bucket.as_ref().is_none_or(|bucket| target.bucket.as_ref() == Some(bucket))
            && self.keys.as_ref().is_none_or(|glob| {
                use std::os::unix::ffi::OsStrExt;
                target.key.as_ref().is_some_and(|key| glob.is_match(std::ffi::OsStr::from_bytes(key)))
            })
    }

    /// Counts a matching request and says whether it is befallen.
    fn strikes(&self, random: impl Fn(u64) -> u64) -> bool {
        let number = self.matched.fetch_add(1, Ordering::Relaxed);
        if number < self.rule.skip || share(random(number)) >= self.rule.probability {
            return false;
        }
        let limit = self.rule.count.unwrap_or(u64::MAX);
        let counted = |applied| (applied < limit).then_some(applied + 1);
        self.applied.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted).is_ok()
    }
}

/// A random number as a share of 1, 1 excluded.
fn share(random: u64) -> f64 {
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

impl Decision {
    /// Whether one of the faults is `fault`.
    pub fn has(&self, fault: &Fault) -> bool {
        self.faults.contains(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Operation;
    use crate::units::Span;

    fn get(key: &str) -> Target {
        Target {
            operation: Operation::GetObject,
            bucket: Some("b".to_owned()),
            key: Some(key.as_bytes().to_vec()),
        }
    }

    fn list() -> Target {
        Target { operation: Operation::ListObjectsV2, bucket: Some("b".to_owned()), key: None }
    }

    fn active(rules: impl IntoIterator<Item = Rule>) -> Active {
        Active::new(FaultPlan { rules: rules.into_iter().collect(), ..FaultPlan::default() }, Instant::now())
            .unwrap()
    }

    fn struck(active: &Active, target: &Target) -> bool {
        !active.decide(target).faults.is_empty()
    }

    #[test]
    fn a_rule_befalls_its_keys_operations_and_bucket_only() {
        let rule = Rule::from(Fault::SlowDown);
        let by_key = active([rule.clone().keys("img/*")]);
        assert!(struck(&by_key, &get("img/1")));
        assert!(
            !struck(&by_key, &get("img/a/1")) && !struck(&by_key, &get("txt/1")) && !struck(&by_key, &list())
        );
        let by_operation = active([rule.clone().operation(Operation::ListObjectsV2)]);
        assert!(struck(&by_operation, &list()) && !struck(&by_operation, &get("img/1")));
        let by_bucket = active([rule.bucket("other")]);
        assert!(!struck(&by_bucket, &get("img/1")));
        let by_nature = active([Rule::from(Fault::ListingOutOfOrder)]);
        assert!(struck(&by_nature, &list()) && !struck(&by_nature, &get("img/1")));
    }

    #[test]
    fn skip_and_count_bound_what_is_befallen() {
        let active = active([Rule::from(Fault::Hang).skip(2).count(3)]);
        let pattern: Vec<bool> = (0..8).map(|_| struck(&active, &get("k"))).collect();
        assert_eq!(pattern, [false, false, true, true, true, false, false, false]);
        assert_eq!(active.applied(), [3]);
    }

    #[test]
    fn a_share_of_requests_is_befallen_and_the_seed_decides_which() {
        let plan = |seed| {
            FaultPlan { seed, ..FaultPlan::default() }.rule(Rule::from(Fault::SlowDown).probability(0.3))
        };
        let run = |seed| {
            let active = Active::new(plan(seed), Instant::now()).unwrap();
            (0..10_000).map(|_| struck(&active, &get("k"))).collect::<Vec<_>>()
        };
        let first = run(1);
        let share = first.iter().filter(|struck| **struck).count();
        assert!((2_800..3_200).contains(&share), "{share}");
        assert_eq!(first, run(1));
        assert_ne!(first, run(2));
    }

    #[test]
    fn latencies_add_up_and_listings_have_their_own() {
        let plan = FaultPlan {
            first_byte: Some(Span(Duration::from_millis(30))),
            list_page: Some(Span(Duration::from_millis(100))),
            jitter: Some(Span(Duration::from_millis(10))),
            ..FaultPlan::default()
        };
        let active =
            Active::new(plan.rule("delay,by=1s,keys=slow".parse::<Rule>().unwrap()), Instant::now()).unwrap();
        let millis = |target| active.decide(&target).latency.as_millis();
        for _ in 0..100 {
            assert!((30..41).contains(&millis(get("k"))));
            assert!((100..111).contains(&millis(list())));
            assert!((1030..1041).contains(&millis(get("slow"))));
        }
    }
}
