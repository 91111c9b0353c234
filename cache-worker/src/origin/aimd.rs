//! How many requests may be under way at once, given how the last ones went?
//!
//! Additive increase, multiplicative decrease, as TCP does it. The decision is pure: the clock is passed in.

use std::time::{Duration, Instant};

/// Growth is fast again this long after the last sign of overload, so that a passing one costs seconds, not minutes.
const CALM: Duration = Duration::from_millis(1000);
/// One overload shows in many answers at once; only the first within this time counts. A few round trips to S3.
const ONE_OVERLOAD: Duration = Duration::from_millis(100);
/// What is left of the window after an overload. Guess: milder than TCP's half, since S3's limits are per prefix.
const DECREASE: f64 = 0.7;

/// How a request ended, as far as the window is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered.
    Answered,
    /// The server asked to slow down, or did not answer in time.
    Overload,
    /// It says nothing about load: cancelled, refused, wrong key.
    Neutral,
}

/// The limit and what it was drawn from.
#[derive(Debug)]
pub struct Aimd {
    limit: f64,
    min: f64,
    max: f64,
    decreased: Option<Instant>,
}

impl Aimd {
    /// Starts at `initial`, and stays within `min..=max` (`min` is at least 1).
    pub fn new(min: usize, initial: usize, max: usize) -> Self {
        let min = min.max(1);
        let max = max.max(min);
        Self { limit: initial.clamp(min, max) as f64, min: min as f64, max: max as f64, decreased: None }
    }

    /// The number of requests that may be under way.
    pub fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Takes note of a request that ended at `now` when `in_flight` others were under way.
    pub fn note(&mut self, outcome: Outcome, in_flight: usize, now: Instant) {
        let since = self.decreased.map(|at| now.saturating_duration_since(at));
        match outcome {
            // A window that is not used says nothing about whether a larger one would do.
            Outcome::Answered if (in_flight + 1) * 2 >= self.limit() => {
                let step = if since.is_none_or(|since| since >= CALM) { 1.0 } else { 1.0 / self.limit };
                self.limit = (self.limit + step).min(self.max);
            }
            Outcome::Overload if since.is_none_or(|since| since >= ONE_OVERLOAD) => {
                self.limit = (self.limit * DECREASE).max(self.min);
                self.decreased = Some(now);
            }
            Outcome::Answered | Outcome::Overload | Outcome::Neutral => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers a window full of requests every 30 ms.
    fn run(aimd: &mut Aimd, from: Instant, rounds: u32, overload_every: usize) -> Instant {
        let mut count = 0;
        for round in 0..rounds {
            let now = from + Duration::from_millis(30) * round;
            let window = aimd.limit();
            for _ in 0..window {
                count += 1;
                let overload = overload_every > 0 && count % overload_every == 0;
                aimd.note(if overload { Outcome::Overload } else { Outcome::Answered }, window - 1, now);
            }
        }
        from + Duration::from_millis(30) * rounds
    }

    #[test]
    fn a_window_that_is_used_opens_within_a_second() {
        let mut aimd = Aimd::new(4, 16, 128);
        run(&mut aimd, Instant::now(), 33, 0);
        assert_eq!(aimd.limit(), 128);
    }

    #[test]
    fn a_window_that_is_not_used_stays() {
        let mut aimd = Aimd::new(4, 16, 128);
        (0..1000).for_each(|_| aimd.note(Outcome::Answered, 3, Instant::now()));
        assert_eq!(aimd.limit(), 16);
    }

    #[test]
    fn many_503s_nearly_close_the_window_and_it_recovers_within_two_seconds() {
        let mut aimd = Aimd::new(4, 64, 128);
        let now = run(&mut aimd, Instant::now(), 200, 3);
        assert!((4..=16).contains(&aimd.limit()), "{}", aimd.limit());
        run(&mut aimd, now, 66, 0);
        assert!(aimd.limit() >= 64, "{}", aimd.limit());
    }

    #[test]
    fn one_burst_of_503s_counts_once() {
        let mut aimd = Aimd::new(4, 100, 128);
        let now = Instant::now();
        (0..50).for_each(|_| aimd.note(Outcome::Overload, 99, now));
        assert_eq!(aimd.limit(), 70);
    }
}
