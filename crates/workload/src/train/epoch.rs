//! How does one epoch run: ranks that compute in step, and threads that read ahead for them?

use std::num::NonZeroU64;
use std::time::Duration;

use parking_lot::Mutex;

use super::au::{RankTimes, StepTimes, mean};
use super::order::RankOrder;
use super::profile::TRANSFER_BYTES;
use super::reader::{Scratch, Source};
use super::shared::{Announce, Shared};
use super::timeline::Timeline;
use super::{Epoch, Job};
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
    barrier: Shared<'a, Barrier>,
    results: Mutex<Results>,
}

/// One rank and its readers.
struct Rank<'a> {
    order: RankOrder,
    queue: Shared<'a, Queue>,
}

/// What is read and what is taken.
#[derive(Debug, Default)]
struct Queue {
    is_started: bool,
    is_ended: bool,
    /// Of each reading thread where it reads its own files, else only the first counts: the next sample.
    next: Vec<usize>,
    /// Batches asked for, and batches that the rank has.
    requested: u64,
    taken: u64,
    /// Samples read of the batches that are not taken yet, in their order.
    read: std::collections::VecDeque<u64>,
}

/// Where ranks wait for each other.
#[derive(Debug, Default)]
struct Barrier {
    arrived: usize,
    round: u64,
    is_ended: bool,
}

#[derive(Default)]
struct Results {
    ranks: Vec<(usize, RankTimes, Duration)>,
    bytes: u64,
    latencies: Latencies,
    timeline: Timeline,
    error: Option<Error>,
}

/// The epoch has met an error somewhere.
struct Ended;

impl<'a> Crew<'a> {
    fn new(job: Job<'a>, orders: Vec<RankOrder>, steps: u64) -> Self {
        let threads = job.profile.read_threads.max(1);
        let rank = |order: RankOrder| {
            let next = vec![0; if order.threads.is_some() { threads } else { 1 }];
            Rank { order, queue: Shared::new(job.clock, Queue { next, ..Queue::default() }) }
        };
        Self {
            job,
            steps,
            ranks: orders.into_iter().map(rank).collect(),
            barrier: Shared::new(job.clock, Barrier::default()),
            results: Mutex::default(),
        }
    }

    /// A reading thread: takes samples as far ahead as the queue allows.
    fn read(&self, rank: usize, thread: usize, source: &dyn Source) {
        let Rank { order, queue } = &self.ranks[rank];
        let (batch, clock) = (self.job.profile.batch, self.job.clock);
        let mut scratch = Scratch::new(usize::try_from(TRANSFER_BYTES).unwrap_or(usize::MAX));
        let (mut bytes, mut latencies) = (0, Latencies::default());
        while let Some(number) = self.next_sample(rank, thread) {
            let started = clock.now();
            let read = match source.read(&order.samples[number], &mut scratch) {
                Ok(read) => read,
                Err(error) => return self.fail(error),
            };
            latencies.add(nanos(clock.now() - started));
            bytes += read;
            queue.change(|queue| queue.put(number as u64 / batch, batch));
        }
        let mut results = self.results.lock();
        results.bytes += bytes;
        results.latencies.merge(&latencies);
    }

    /// The next sample for a thread, once it may be read; `None` at the end.
    fn next_sample(&self, rank: usize, thread: usize) -> Option<usize> {
        let Rank { order, queue } = &self.ranks[rank];
        let profile = &self.job.profile;
        let last = usize::try_from(self.steps * profile.batch).unwrap_or(usize::MAX).min(order.samples.len());
        queue.take(|queue| {
            let own = if order.threads.is_some() { thread } else { 0 };
            let next = &mut queue.next[own];
            // Records of other threads' files are passed over.
            while let Some(threads) = &order.threads
                && *next < last
                && usize::from(threads[*next]) != thread
            {
                *next += 1;
            }
            let number = *next;
            if queue.is_ended || number >= last {
                return Some((None, Announce::No));
            }
            if !queue.is_started
                || number as u64 >= queue.horizon(profile.batch, profile.prefetch, profile.read_threads)
            {
                return None;
            }
            queue.next[own] += 1;
            Some((Some(number), Announce::No))
        })
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
        self.meet()?;
        let started = clock.now();
        queue.change(|queue| {
            queue.is_started = true;
            Announce::Yes
        });
        let mut loading = started;
        for step in 0..self.steps {
            queue.change(Queue::request);
            queue.take(|queue| queue.take_batch(profile.batch))?;
            let loaded = clock.now();
            clock.sleep_until(loaded + profile.compute);
            let computed = clock.now();
            self.meet()?;
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

    /// Waits until all ranks are here.
    fn meet(&self) -> Result<(), Ended> {
        let mut round = 0;
        self.barrier.change(|barrier| {
            round = barrier.round;
            barrier.arrived += 1;
            if barrier.arrived < self.ranks.len() {
                return Announce::No;
            }
            barrier.arrived = 0;
            barrier.round += 1;
            Announce::Yes
        });
        self.barrier.take(|barrier| {
            let is_over = barrier.is_ended || barrier.round != round;
            let result = if barrier.is_ended { Err(Ended) } else { Ok(()) };
            is_over.then_some((result, Announce::No))
        })
    }

    /// Ends all threads. The first error is kept.
    fn fail(&self, error: Error) {
        self.results.lock().error.get_or_insert(error);
        for rank in &self.ranks {
            rank.queue.change(|queue| {
                queue.is_ended = true;
                Announce::Yes
            });
        }
        self.barrier.change(|barrier| {
            barrier.is_ended = true;
            Announce::Yes
        });
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

impl Queue {
    /// The first sample that may not be read yet: `prefetch` batches lie ready at most, besides what each thread has in hand; what
    /// was asked for may always be read.
    fn horizon(&self, batch: u64, prefetch: u64, threads: usize) -> u64 {
        let in_hand = if prefetch == 0 { 0 } else { threads as u64 };
        ((self.taken + prefetch) * batch + in_hand).max(self.requested * batch)
    }

    /// A sample of a batch was read.
    fn put(&mut self, number: u64, batch: u64) -> Announce {
        // Batches before `taken` are complete, so none of their samples comes again.
        let index = usize::try_from(number.saturating_sub(self.taken)).unwrap_or(usize::MAX);
        if index >= self.read.len() {
            self.read.resize(index + 1, 0);
        }
        self.read[index] += 1;
        if index == 0 && self.read[0] >= batch { Announce::Yes } else { Announce::No }
    }

    fn request(&mut self) -> Announce {
        self.requested += 1;
        // With batches lying ready the request changes nothing for the readers.
        if self.requested > self.taken { Announce::Yes } else { Announce::No }
    }

    /// The next batch, where it is complete.
    fn take_batch(&mut self, batch: u64) -> Option<(Result<(), Ended>, Announce)> {
        if self.is_ended {
            return Some((Err(Ended), Announce::No));
        }
        if self.read.front().is_none_or(|read| *read < batch) {
            return None;
        }
        self.read.pop_front();
        self.taken += 1;
        Some((Ok(()), Announce::Yes))
    }
}
