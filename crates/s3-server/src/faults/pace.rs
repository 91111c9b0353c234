//! When may the next bytes be sent so that a rate is kept?

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How far a sender may be behind its schedule and still catch up: longer than a timer or a busy processor is late,
/// short enough that no burst is seen.
const TOLERANCE: Duration = Duration::from_millis(20);

/// A schedule of bytes at a rate. Bytes are due when the last of them would have left a line of that rate.
#[derive(Debug)]
pub(crate) struct Schedule {
    nanos_per_byte: f64,
    /// When all bytes scheduled so far are due.
    due: Instant,
}

impl Schedule {
    /// `bytes_per_second` from `now` on; nothing is saved up.
    pub fn new(bytes_per_second: u64, now: Instant) -> Self {
        Self { nanos_per_byte: 1e9 / bytes_per_second.max(1) as f64, due: now }
    }

    /// Schedules `bytes` and says when they are due.
    pub fn reserve(&mut self, bytes: usize, now: Instant) -> Instant {
        let span = Duration::from_nanos((bytes as f64 * self.nanos_per_byte) as u64);
        let earliest = now.checked_sub(TOLERANCE).unwrap_or(now);
        self.due = self.due.max(earliest) + span;
        self.due
    }
}

/// The schedule that the answers of one connection share, so that many short answers keep the rate too.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stream {
    schedule: Arc<Mutex<Option<(u64, Schedule)>>>,
}

impl Stream {
    /// Begins an answer under a rate: what the answers before have taken too much is kept, what they left is not.
    fn begin(&self, rate: u64, now: Instant) {
        let mut schedule = self.schedule.lock();
        match &mut *schedule {
            Some((old, schedule)) if *old == rate => schedule.due = schedule.due.max(now),
            other => *other = Some((rate, Schedule::new(rate, now))),
        }
    }

    fn reserve(&self, bytes: usize, now: Instant) -> Instant {
        self.schedule.lock().as_mut().map_or(now, |(_, schedule)| schedule.reserve(bytes, now))
    }
}

/// The caps of one answer: that of its connection and that of the server.
pub(crate) struct Pace {
    stream: Option<Stream>,
    shared: Option<Arc<Mutex<Schedule>>>,
    /// Bytes that are sent at once at most.
    pub quantum: usize,
}

impl Pace {
    /// None when there is no cap.
    pub fn new(
        per_stream: Option<u64>,
        stream: &Stream,
        shared: Option<(u64, Arc<Mutex<Schedule>>)>,
        now: Instant,
    ) -> Option<Self> {
        // A millisecond's bytes: timers are no finer. Of a shared cap a quarter, since several streams share it.
        let slowest = per_stream.into_iter().chain(shared.as_ref().map(|(rate, _)| rate / 4)).min()?;
        let quantum = (slowest / 1000).clamp(4 << 10, 256 << 10) as usize;
        let stream = per_stream.map(|rate| {
            stream.begin(rate, now);
            stream.clone()
        });
        Some(Self { stream, shared: shared.map(|(_, schedule)| schedule), quantum })
    }

    /// Schedules `bytes` under all caps and says when they are due.
    pub fn reserve(&mut self, bytes: usize, now: Instant) -> Instant {
        let stream = self.stream.as_ref().map_or(now, |stream| stream.reserve(bytes, now));
        let shared = self.shared.as_ref().map_or(now, |schedule| schedule.lock().reserve(bytes, now));
        stream.max(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends as a late timer lets it: each wait ends `late` after the bytes are due.
    fn elapsed(rate: u64, total: usize, quantum: usize, late: Duration) -> f64 {
        let start = Instant::now();
        let mut now = start;
        let mut schedule = Schedule::new(rate, now);
        for _ in 0..total / quantum {
            let due = schedule.reserve(quantum, now);
            if due > now {
                now = due + late;
            }
        }
        now.duration_since(start).as_secs_f64()
    }

    #[test]
    fn the_rate_is_kept_although_every_timer_is_late() {
        for (rate, quantum) in [(80_000_000, 80_000), (400_000_000, 100_000), (1_000_000, 4096)] {
            for late in [0, 1, 3, 10].map(Duration::from_millis) {
                let seconds = elapsed(rate, rate as usize, quantum, late);
                assert!((0.98..1.03).contains(&seconds), "{rate} {quantum} {late:?}: {seconds}");
            }
        }
    }

    #[test]
    fn a_pause_earns_no_more_than_the_tolerance() {
        let start = Instant::now();
        let mut schedule = Schedule::new(1_000_000, start);
        let later = start + Duration::from_secs(5);
        let due = schedule.reserve(1_000_000, later);
        assert_eq!(due, later - TOLERANCE + Duration::from_secs(1));
    }

    #[test]
    fn streams_under_one_cap_share_it() {
        let now = Instant::now();
        let stream = Stream::default();
        let shared = Arc::new(Mutex::new(Schedule::new(1_000_000, now)));
        let mut first = Pace::new(None, &stream, Some((1_000_000, shared.clone())), now).unwrap();
        let mut second = Pace::new(Some(10_000_000), &stream, Some((1_000_000, shared)), now).unwrap();
        first.reserve(500_000, now);
        assert_eq!(second.reserve(500_000, now), now + Duration::from_secs(1));
        assert!(Pace::new(None, &stream, None, now).is_none());
    }

    #[test]
    fn answers_of_one_connection_keep_its_rate_together() {
        let now = Instant::now();
        let stream = Stream::default();
        for count in 1..=100 {
            let mut pace = Pace::new(Some(1_000_000), &stream, None, now).unwrap();
            assert_eq!(pace.reserve(1000, now), now + Duration::from_millis(count));
        }
        let later = now + Duration::from_secs(1);
        let mut pace = Pace::new(Some(1_000_000), &stream, None, later).unwrap();
        assert_eq!(pace.reserve(1000, later), later + Duration::from_millis(1));
        let mut faster = Pace::new(Some(2_000_000), &stream, None, later).unwrap();
        assert_eq!(faster.reserve(1000, later), later + Duration::from_micros(500));
    }
}
