//! Which share of its time did an accelerator compute?
//!
//! The arithmetic of DLIO (`utils/statscounter.py`): for each epoch and rank
//!
//! ```text
//! AU = sum of compute[1..] / ((end - start) - first step's wait and compute)
//! ```
//!
//! the first step apart, since it fills the pipeline; the mean over ranks, then over epochs.

use std::time::Duration;

/// Times of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepTimes {
    /// From asking for the batch to having it.
    pub wait: Duration,
    /// From having it to the end of the computation.
    pub compute: Duration,
    /// From there until all ranks were as far.
    pub barrier: Duration,
}

/// Times of one rank in one epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RankTimes {
    /// Steps done.
    pub steps: u64,
    /// Sum of the waits.
    pub wait: Duration,
    /// Sum of the computations.
    pub compute: Duration,
    /// Sum of the waits for other ranks.
    pub barrier: Duration,
    /// Wait and computation of the first step.
    pub first_step: Duration,
    /// Computation of the first step.
    pub first_compute: Duration,
    /// From the epoch's start to its end.
    pub total: Duration,
}

impl RankTimes {
    /// Adds the next step.
    pub fn add(&mut self, step: StepTimes) {
        let StepTimes { wait, compute, barrier } = step;
        if self.steps == 0 {
            self.first_step = wait + compute;
            self.first_compute = compute;
        }
        self.steps += 1;
        self.wait += wait;
        self.compute += compute;
        self.barrier += barrier;
    }

    /// The share, from 0 to 1; `None` with fewer than two steps.
    pub fn utilization(&self) -> Option<f64> {
        let measured = self.total.checked_sub(self.first_step)?.as_secs_f64();
        let computed = self.compute.checked_sub(self.first_compute)?.as_secs_f64();
        (self.steps >= 2 && measured > 0.0).then(|| computed / measured)
    }
}

/// The mean of all that is known; `None` where nothing is, or one of them is not.
pub fn mean(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    let values: Vec<f64> = values.into_iter().collect::<Option<_>>()?;
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn times(steps: &[(u64, u64, u64)], total: u64) -> RankTimes {
        let mut times = RankTimes::default();
        for (wait, compute, barrier) in steps {
            times.add(StepTimes { wait: ms(*wait), compute: ms(*compute), barrier: ms(*barrier) });
        }
        times.total = ms(total);
        times
    }

    #[test]
    fn the_first_step_is_left_out_above_and_below() {
        // By hand: 3 × 435 computed after the first; the epoch of 4,050 less the first step's 2,000 + 435.
        let times = times(&[(2_000, 435, 0), (0, 435, 0), (310, 435, 0), (0, 435, 0)], 4_050);
        let by_hand = 1_305.0 / (4_050.0 - 2_435.0);
        assert!((times.utilization().unwrap() - by_hand).abs() < 1e-12);
        assert_eq!((times.wait, times.compute), (ms(2_310), ms(1_740)));
    }

    #[test]
    fn time_at_the_barrier_counts_against_the_rank_also_in_the_first_step() {
        // The first step's barrier of 100 stays below: 2 × 500 / (1,900 - 600).
        let times = times(&[(100, 500, 100), (0, 500, 200), (0, 500, 0)], 1_900);
        assert!((times.utilization().unwrap() - 1_000.0 / 1_300.0).abs() < 1e-12);
    }

    #[test]
    fn an_accelerator_that_never_waits_is_at_one() {
        let times = times(&[(50, 500, 0), (0, 500, 0), (0, 500, 0)], 1_550);
        assert_eq!(times.utilization(), Some(1.0));
    }

    #[test]
    fn one_step_says_nothing() {
        assert_eq!(times(&[(10, 20, 0)], 30).utilization(), None);
        assert_eq!(RankTimes::default().utilization(), None);
    }

    #[test]
    fn means_are_of_ranks_and_then_of_epochs() {
        let epochs = [mean([Some(0.9), Some(0.7)]), mean([Some(1.0), Some(0.8)])];
        assert!((mean(epochs).unwrap() - 0.85).abs() < 1e-12);
        assert_eq!(mean([Some(1.0), None]), None);
        assert_eq!(mean([]), None);
    }
}
