//! How long did operations take: the middle, the slow, the slowest?

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest time that is told apart from longer ones: an hour is longer than any deadline of a mount.
const HIGHEST_NANOS: u64 = 3_600_000_000_000;

/// Digits that are right: a thousandth of the value, at 200 kB a histogram.
const DIGITS: u8 = 3;

/// Times of operations.
#[derive(Debug, Clone)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, HIGHEST_NANOS, DIGITS);
        Self { histogram: histogram.expect("1 is less than half the highest, and 3 digits are allowed") }
    }
}

impl Latencies {
    /// Adds an operation.
    pub fn add(&mut self, nanos: u64) {
        self.histogram.saturating_record(nanos);
    }

    /// Adds those of another thread.
    pub fn merge(&mut self, other: &Self) {
        // The bounds are the same, so none is out of range.
        self.histogram.add(&other.histogram).expect("histograms of the same bounds");
    }

    /// What they say; `None` where nothing was timed.
    pub fn summary(&self) -> Option<LatencySummary> {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        (!self.histogram.is_empty()).then(|| LatencySummary {
            timed: self.histogram.len(),
            mean_us: self.histogram.mean() / 1e3,
            p50_us: micros(self.histogram.value_at_quantile(0.5)),
            p99_us: micros(self.histogram.value_at_quantile(0.99)),
            max_us: micros(self.histogram.max()),
        })
    }
}

/// Times of operations in few numbers, microseconds, three digits right.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencySummary {
    /// How many were timed; quick ones are timed one in so many.
    pub timed: u64,
    /// The mean.
    pub mean_us: f64,
    /// Half took no longer.
    pub p50_us: f64,
    /// 99 % took no longer.
    pub p99_us: f64,
    /// The slowest one of those timed.
    pub max_us: f64,
}

/// Whole nanoseconds.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_values() {
        let mut latencies = Latencies::default();
        for micros in 1..=1_000 {
            latencies.add(micros * 1_000);
        }
        let summary = latencies.summary().unwrap();
        let is_near = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 0.002;
        assert_eq!(summary.timed, 1_000);
        assert!(is_near(summary.p50_us, 500.0), "{summary:?}");
        assert!(is_near(summary.p99_us, 990.0), "{summary:?}");
        assert!(is_near(summary.max_us, 1_000.0), "{summary:?}");
        assert!(is_near(summary.mean_us, 500.5), "{summary:?}");
    }

    #[test]
    fn threads_are_added_up_and_the_slowest_is_kept() {
        let (mut one, mut other) = (Latencies::default(), Latencies::default());
        one.add(1_000);
        other.add(5_000_000_000);
        one.merge(&other);
        let summary = one.summary().unwrap();
        assert_eq!(summary.timed, 2);
        assert!((summary.max_us / 5e6 - 1.0).abs() < 0.002, "{summary:?}");
        assert_eq!(Latencies::default().summary(), None);
    }

    #[test]
    fn times_beyond_the_bounds_count_as_the_bound() {
        let mut latencies = Latencies::default();
        latencies.add(u64::MAX);
        latencies.add(0);
        assert_eq!(latencies.summary().unwrap().timed, 2);
    }
}
