//! What time is it, and when is it time to go on?

use std::time::Duration;

use rustix::thread::{ClockId, clock_nanosleep_absolute};
use rustix::time::{Timespec, clock_gettime};

/// A clock that never goes back.
///
/// Tests put one in its place whose time passes only while all threads wait. For its sake threads are counted by
/// [`Clock::enter`], and those that wait for each other say so by [`Clock::blocked`]; a real clock needs neither.
pub trait Clock: Sync {
    /// Time since some moment in the past.
    fn now(&self) -> Duration;
    /// Returns once it is `deadline`, or at once where it is later.
    fn sleep_until(&self, deadline: Duration);
    /// So many threads are about to start.
    fn enter(&self, _threads: usize) {}
    /// The calling thread is about to end, or one that was to start did not.
    fn leave(&self) {}
    /// The calling thread is about to wait for another one.
    fn blocked(&self) {}
    /// So many threads that were [`Clock::blocked`] are about to go on.
    fn unblocked(&self, _threads: usize) {}
}

/// The kernel's CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, Default)]
pub struct Monotonic;

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        // Never negative: it counts from the start of the machine.
        Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
    }

    fn sleep_until(&self, deadline: Duration) {
        let Ok(deadline) = Timespec::try_from(deadline) else { return };
        // Interrupted by a signal that did not end the program.
        while clock_nanosleep_absolute(ClockId::Monotonic, &deadline) == Err(rustix::io::Errno::INTR) {}
    }
}

/// How long it takes to ask the time, by asking it often; nanoseconds.
pub fn cost_nanos(clock: &dyn Clock) -> u64 {
    // 50 readings take 2 µs by the vDSO and 50 µs where each is a call of the kernel: some of the rounds pass without the
    // thread being interrupted, and the shortest of them counts.
    const ROUNDS: u32 = 20;
    const READINGS: u32 = 50;
    let round = |_| {
        let started = clock.now();
        let mut last = started;
        for _ in 0..READINGS {
            last = std::hint::black_box(clock.now());
        }
        (last - started) / READINGS
    };
    let shortest = (0..ROUNDS).map(round).min().unwrap_or_default();
    u64::try_from(shortest.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_at_its_deadline_and_not_before() {
        let clock = Monotonic;
        let deadline = clock.now() + Duration::from_millis(2);
        clock.sleep_until(deadline);
        let woken = clock.now();
        assert!(woken >= deadline);
        clock.sleep_until(deadline);
        assert!(cost_nanos(&clock) < 1_000_000);
    }
}
