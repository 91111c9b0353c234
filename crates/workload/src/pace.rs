//! Which operations are worth timing?
//!
//! A 4 KiB read from the page cache takes less than 1 µs, and asking the time twice 50 ns: to time each would be to measure
//! the measuring. So quick operations are timed one in so many.

/// The share of an operation's time that timing it may take, as one in so many: 0.2 %. 1 % is promised for all.
const SHARE: u64 = 500;

/// At most so many operations pass between two looks at the clock: what 1 µs operations take is then 0.1 ms, and a mount that
/// becomes slow is noticed soon.
const MAX_STRIDE: u64 = 128;

/// Decides by what was timed so far.
#[derive(Debug)]
pub(crate) struct Pace {
    cost_nanos: u64,
    mean_nanos: u64,
    /// Operations still to pass untimed.
    left: u64,
}

impl Pace {
    /// Where timing one operation takes so long. The first operation is timed.
    pub fn new(cost_nanos: u64) -> Self {
        Self { cost_nanos, mean_nanos: u64::MAX, left: 0 }
    }

    /// Whether to time the next operation.
    pub fn is_due(&mut self) -> bool {
        match self.left.checked_sub(1) {
            None => true,
            Some(left) => {
                self.left = left;
                false
            }
        }
    }

    /// Learns how long the timed operation took.
    pub fn learn(&mut self, nanos: u64) {
        // Quick to believe in slower operations, slow to believe in faster ones: a stall must not hide the next.
        self.mean_nanos = match self.mean_nanos {
            u64::MAX => nanos,
            mean if nanos > mean => mean / 2 + nanos / 2,
            mean => mean - mean / 8 + nanos / 8,
        };
        self.left = stride(self.cost_nanos, self.mean_nanos) - 1;
    }
}

/// One in how many operations is timed, where they take `mean_nanos` and timing one takes `cost_nanos`.
fn stride(cost_nanos: u64, mean_nanos: u64) -> u64 {
    (cost_nanos.saturating_mul(SHARE)).div_ceil(mean_nanos.max(1)).clamp(1, MAX_STRIDE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timing_takes_less_than_one_percent() {
        // 30 ns: a clock in the vDSO; 60 ns and 5 ns for the histogram are what was measured.
        for cost in [30, 60, 100] {
            for mean in [200, 700, 1_000, 5_000, 20_000, 1_000_000] {
                let share = cost as f64 / (stride(cost, mean) * mean) as f64;
                assert!(share <= 0.01, "{cost} ns of {mean} ns: {share}");
            }
        }
    }

    #[test]
    fn slow_operations_are_all_timed() {
        let mut pace = Pace::new(60);
        for _ in 0..100 {
            assert!(pace.is_due());
            pace.learn(100_000);
        }
    }

    #[test]
    fn quick_operations_are_timed_now_and_then_until_they_are_slow() {
        let mut pace = Pace::new(60);
        let mut timed = 0;
        for _ in 0..10_000 {
            if pace.is_due() {
                pace.learn(600);
                timed += 1;
            }
        }
        assert!((190..=250).contains(&timed), "{timed}");
        while !pace.is_due() {}
        pace.learn(1_000_000);
        assert!(pace.is_due());
    }
}
