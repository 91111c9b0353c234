//! How do several threads do the same for a while, and what did they do in all?

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::clock::{self, Clock};
use crate::error::Error;
use crate::latency::{Latencies, LatencySummary, nanos};
use crate::pace::Pace;

/// More threads than this are not started: each has its buffer and its stack.
pub const MAX_THREADS: usize = 1024;

/// How something is run.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    /// By which clock.
    pub clock: &'a dyn Clock,
    /// On how many threads, at least one.
    pub threads: usize,
    /// For how long at most.
    pub runtime: Duration,
    /// Where pseudo-random numbers start.
    pub seed: u64,
}

/// What was done in all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// From the first thread's start to the last one's end.
    pub seconds: f64,
    /// Operations: reads, opens, stats.
    pub operations: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Files read to their end, or entries looked at.
    pub files: u64,
    /// Whether all that was to be done was done before the time was over.
    pub is_complete: bool,
    /// Times of the operations.
    pub latency: Option<LatencySummary>,
}

impl Outcome {
    /// Megabytes (10^6 bytes) a second.
    pub fn megabytes_per_second(&self) -> f64 {
        rate(self.bytes as f64 / 1e6, self.seconds)
    }

    /// Operations a second.
    pub fn operations_per_second(&self) -> f64 {
        rate(self.operations as f64, self.seconds)
    }

    /// Files a second.
    pub fn files_per_second(&self) -> f64 {
        rate(self.files as f64, self.seconds)
    }
}

/// Something a second; 0 where no time passed.
pub(crate) fn rate(amount: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount / seconds } else { 0.0 }
}

/// One thread's part.
pub(crate) struct Worker<'a> {
    /// Which thread, from 0 on.
    pub index: usize,
    /// Bytes read.
    pub bytes: u64,
    /// Files done.
    pub files: u64,
    clock: &'a dyn Clock,
    is_ended: &'a AtomicBool,
    deadline: Duration,
    seen: Duration,
    operations: u64,
    pace: Pace,
    latencies: Latencies,
}

impl Worker<'_> {
    /// Whether there is time left, by the last look at the clock, and no other thread has met an error.
    pub fn goes_on(&self) -> bool {
        self.seen < self.deadline && !self.is_ended.load(Ordering::Relaxed)
    }

    /// Does an operation, and times it where that is worth it.
    pub fn time<T>(&mut self, operation: impl FnOnce() -> T) -> T {
        self.operations += 1;
        if !self.pace.is_due() {
            return operation();
        }
        let started = self.clock.now();
        let result = operation();
        self.seen = self.clock.now();
        let took = nanos(self.seen - started);
        self.pace.learn(took);
        self.latencies.add(took);
        result
    }
}

/// Runs `body` once on each thread; it ends by itself, at the latest soon after [`Worker::goes_on`] says so, and returns whether
/// it did all it had to.
///
/// # Errors
/// The first error of a thread; the others end early then. `Thread` where one cannot be started.
pub(crate) fn on_threads<F>(plan: Plan<'_>, body: F) -> Result<Outcome, Error>
where
    F: Fn(&mut Worker<'_>) -> Result<bool, Error> + Sync,
{
    let Plan { clock, threads, runtime, seed: _ } = plan;
    let cost_nanos = 2 * clock::cost_nanos(clock) + HISTOGRAM_NANOS;
    let is_ended = AtomicBool::new(false);
    let started = clock.now();
    let deadline = started.saturating_add(runtime);
    let work = |index| {
        let pace = Pace::new(cost_nanos);
        let latencies = Latencies::default();
        let mut worker = Worker {
            index,
            bytes: 0,
            files: 0,
            clock,
            is_ended: &is_ended,
            deadline,
            seen: started,
            operations: 0,
            pace,
            latencies,
        };
        let done = body(&mut worker);
        if done.is_err() {
            is_ended.store(true, Ordering::Relaxed);
        }
        done.map(|is_complete| (worker, is_complete))
    };
    let work = &work;
    let mut outcome =
        Outcome { seconds: 0.0, operations: 0, bytes: 0, files: 0, is_complete: true, latency: None };
    let mut latencies = Latencies::default();
    std::thread::scope(|scope| {
        let mut running = Vec::with_capacity(threads);
        for index in 0..threads.clamp(1, MAX_THREADS) {
            let started = std::thread::Builder::new().spawn_scoped(scope, move || work(index));
            running.push(started.map_err(|source| {
                is_ended.store(true, Ordering::Relaxed);
                Error::Thread { source }
            })?);
        }
        for thread in running {
            let (worker, is_complete) = match thread.join() {
                Ok(done) => done?,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            outcome.operations += worker.operations;
            outcome.bytes += worker.bytes;
            outcome.files += worker.files;
            outcome.is_complete &= is_complete;
            latencies.merge(&worker.latencies);
        }
        outcome.seconds = (clock.now() - started).as_secs_f64();
        Ok(())
    })?;
    outcome.latency = latencies.summary();
    Ok(outcome)
}

/// Does something with each item once; each thread takes the next one, with what it makes for itself at its start. `each` says
/// whether it came to the end of its item.
///
/// # Errors
/// The first that `each` meets.
pub(crate) fn for_each<T, S, F>(
    plan: Plan<'_>,
    items: &[T],
    start: impl Fn() -> S + Sync,
    each: F,
) -> Result<Outcome, Error>
where
    T: Sync,
    F: Fn(&mut Worker<'_>, &T, &mut S) -> Result<bool, Error> + Sync,
{
    let next = AtomicUsize::new(0);
    on_threads(plan, |worker| {
        let mut own = start();
        while worker.goes_on() {
            let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) else { return Ok(true) };
            if !each(worker, item, &mut own)? {
                return Ok(false);
            }
            worker.files += 1;
        }
        Ok(next.load(Ordering::Relaxed) >= items.len())
    })
}

/// What it takes to record a time, in nanoseconds: measured, 4 to 10 on a 3 GHz core.
const HISTOGRAM_NANOS: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Monotonic;
    use std::sync::atomic::AtomicU64;

    fn plan(threads: usize, runtime: Duration) -> Plan<'static> {
        Plan { clock: &Monotonic, threads, runtime, seed: 0 }
    }

    #[test]
    fn parts_of_all_threads_are_added_up() {
        let outcome = on_threads(plan(3, Duration::from_secs(60)), |worker| {
            for _ in 0..10 {
                worker.time(|| std::hint::black_box(1));
            }
            worker.bytes += 100;
            worker.files += 1;
            Ok(worker.index != 1)
        })
        .unwrap();
        assert_eq!((outcome.operations, outcome.bytes, outcome.files), (30, 300, 3));
        assert!(!outcome.is_complete && outcome.latency.is_some() && outcome.seconds > 0.0);
    }

    #[test]
    fn threads_end_when_the_time_is_over() {
        let ran = on_threads(plan(2, Duration::ZERO), |worker| Ok(!worker.goes_on())).unwrap();
        assert!(ran.is_complete);
        let runtime = Duration::from_millis(5);
        let ran = on_threads(plan(2, runtime), |worker| {
            while worker.goes_on() {
                worker.time(std::thread::yield_now);
            }
            Ok(true)
        })
        .unwrap();
        assert!(ran.seconds >= runtime.as_secs_f64());
    }

    #[test]
    fn an_error_of_one_thread_ends_the_others() {
        let turns = AtomicU64::new(0);
        let error = on_threads(plan(2, Duration::MAX), |worker| {
            if worker.index == 1 {
                return Err(Error::UnalignedBlock { bytes: 7 });
            }
            while worker.goes_on() {
                turns.fetch_add(1, Ordering::Relaxed);
                std::thread::yield_now();
            }
            Ok(true)
        });
        assert!(matches!(error, Err(Error::UnalignedBlock { bytes: 7 })));
    }
}
