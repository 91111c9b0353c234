//! How does one epoch run: ranks that compute in step, and threads that read ahead for them?

use std::num::NonZeroU64;
use std::time::Duration;

use parking_lot::Mutex;

use super::au::{RankTimes, StepTimes, mean};
use super::barrier::Barrier;
use super::order::{RankOrder, Sample};
use super::profile::TRANSFER_BYTES;
use super::queue::Queue;
use super::reader::{Scratch, Source};
use super::timeline::Timeline;
use super::{Ended, Epoch, Job};
use crate::error::Error;
use crate::latency::{Latencies, nanos};

/// What came of an epoch.
pub(super) struct Done {
    pub epoch: Epoch,
    pub bytes: u64,
    pub latencies: Latencies,
    pub timeline: Timeline,
}

/// Runs an epoch that starts so many seconds after the job's start.
pub(super) fn run(
    job: Job<'_>,
    orders: Vec<RankOrder>,
    source: &dyn Source,
    after_seconds: f64,
) -> Result<Done, Error> {
    let least = orders.iter().map(|order| order.samples.len() as u64).min().unwrap_or(0);
    let steps = (least / job.profile.batch.max(1)).min(job.max_steps.unwrap_or(u64::MAX));
    let crew = Crew::new(job, orders, steps);
    let begun = job.clock.now();
    let after = Duration::from_secs_f64(after_seconds);
    let threads = job.profile.read_threads.max(1);
    job.clock.enter(crew.ranks.len() * (threads + 1));
    std::thread::scope(|scope| {
        let crew = &crew;
        let roles = (0..threads).map(Role::Reader).chain([Role::Accelerator]);
        for rank in 0..crew.ranks.len() {
            for role in roles.clone() {
                let spawned = std::thread::Builder::new().spawn_scoped(scope, move || {
                    match role {
                        Role::Reader(thread) => crew.read(rank, thread, source),
                        Role::Accelerator => crew.compute(rank, begun, after),
                    }
                    job.clock.leave();
                });
                if let Err(source) = spawned {
                    job.clock.leave();
                    crew.fail(Error::Thread { source });
                }
            }
        }
    });
    crew.done()
}

/// What a thread does for its rank.
#[derive(Debug, Clone, Copy)]
enum Role {
    Reader(usize),
    Accelerator,
}

/// All threads of an epoch and what they share.
struct Crew<'a> {
    job: Job<'a>,
    steps: u64,
    ranks: Vec<Rank<'a>>,
    barrier: Barrier<'a>,
    results: Mutex<Results>,
}

/// One rank and its readers.
struct Rank<'a> {
    samples: Vec<Sample>,
    queue: Queue<'a>,
}

#[derive(Default)]
struct Results {
    ranks: Vec<(usize, RankTimes, Duration)>,
    bytes: u64,
    latencies: Latencies,
    timeline: Timeline,
    error: Option<Error>,
}

impl<'a> Crew<'a> {
    fn new(job: Job<'a>, orders: Vec<RankOrder>, steps: u64) -> Self {
        let rank = |order: RankOrder| {
            let RankOrder { samples, threads } = order;
            let queue = Queue::new(job.clock, &job.profile, threads, steps * job.profile.batch);
            Rank { samples, queue }
        };
        let barrier = Barrier::new(job.clock, orders.len());
        Self { job, steps, ranks: orders.into_iter().map(rank).collect(), barrier, results: Mutex::default() }
    }

    /// A reading thread: takes samples as far ahead as the queue allows.
    fn read(&self, rank: usize, thread: usize, source: &dyn Source) {
        let Rank { samples, queue } = &self.ranks[rank];
        let clock = self.job.clock;
        let mut scratch = Scratch::new(usize::try_from(TRANSFER_BYTES).unwrap_or(usize::MAX));
        let (mut bytes, mut latencies) = (0, Latencies::default());
        while let Some(number) = queue.next(thread) {
            let started = clock.now();
            // The queue has no more samples than the order.
            let read = match source.read(&samples[number as usize], &mut scratch) {
                Ok(read) => read,
                Err(error) => return self.fail(error),
            };
            latencies.add(nanos(clock.now() - started));
            bytes += read;
            queue.put(number);
        }
        let mut results = self.results.lock();
        results.bytes += bytes;
        results.latencies.merge(&latencies);
    }

    /// An accelerator.
    fn compute(&self, rank: usize, begun: Duration, after: Duration) {
        // The kernel's usual slack of 50 µs is 1.4 % of the shortest computation; where it cannot be changed, sleeps are longer.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let Ok((times, timeline, first_wait)) = self.steps_of(rank, begun, after) else { return };
        let mut results = self.results.lock();
        results.ranks.push((rank, times, first_wait));
        results.timeline.merge(timeline);
    }

    fn steps_of(
        &self,
        rank: usize,
        begun: Duration,
        after: Duration,
    ) -> Result<(RankTimes, Timeline, Duration), Ended> {
        let (clock, profile, queue) = (self.job.clock, &self.job.profile, &self.ranks[rank].queue);
        let (mut times, mut timeline, mut first_wait) =
            (RankTimes::default(), Timeline::default(), Duration::ZERO);
        self.barrier.meet()?;
        let started = clock.now();
        let mut loading = started;
        for step in 0..self.steps {
            queue.take_batch()?;
            let loaded = clock.now();
            clock.sleep_until(loaded + profile.compute);
            let computed = clock.now();
            self.barrier.meet()?;
            let met = clock.now();
            let step_times =
                StepTimes { wait: loaded - loading, compute: computed - loaded, barrier: met - computed };
            if step == 0 {
                first_wait = step_times.wait;
            }
            times.add(step_times);
            timeline.add(after + (met - begun), step_times);
            loading = met;
        }
        times.total = clock.now() - started;
        Ok((times, timeline, first_wait))
    }

    /// Ends all threads. The first error is kept.
    fn fail(&self, error: Error) {
        self.results.lock().error.get_or_insert(error);
        self.ranks.iter().for_each(|rank| rank.queue.end());
        self.barrier.end();
    }

    fn done(self) -> Result<Done, Error> {
        let Results { mut ranks, bytes, latencies, timeline, error } = self.results.into_inner();
        if let Some(error) = error {
            return Err(error);
        }
        ranks.sort_by_key(|(rank, _, _)| *rank);
        let au_of_ranks: Vec<Option<f64>> = ranks.iter().map(|(_, times, _)| times.utilization()).collect();
        let seconds = |part: &dyn Fn(&RankTimes, Duration) -> Duration| {
            ranks.iter().map(|(_, times, first_wait)| part(times, *first_wait).as_secs_f64()).sum::<f64>()
        };
        let longest = |part: &dyn Fn(&RankTimes, Duration) -> Duration| {
            ranks
                .iter()
                .map(|(_, times, first_wait)| part(times, *first_wait))
                .max()
                .unwrap_or_default()
                .as_secs_f64()
        };
        let epoch = Epoch {
            au: mean(au_of_ranks.iter().copied()),
            au_of_ranks,
            seconds: longest(&|times, _| times.total),
            steps: self.steps,
            samples: self.steps * self.job.profile.batch * ranks.len() as u64,
            wait_seconds: seconds(&|times, first_wait| times.wait - first_wait),
            compute_seconds: seconds(&|times, _| times.compute - times.first_compute),
            barrier_seconds: seconds(&|times, _| times.barrier),
            first_wait_seconds: longest(&|_, first_wait| first_wait),
        };
        Ok(Done { epoch, bytes, latencies, timeline })
    }
}
