//! How long does the origin usually take?

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Weight of a new measurement, as a share of 8: a change of the origin's speed shows after some ten requests.
const WEIGHT: u64 = 8;

/// Moving averages over all requests. Concurrent updates may lose one another, which an average does not mind.
#[derive(Debug)]
pub struct Timing {
    first_byte_us: AtomicU64,
    chunk_ns: AtomicU64,
}

impl Default for Timing {
    /// Until measured: 30 ms to the first byte and 80 MB/s a stream, as S3 has it from within its region.
    fn default() -> Self {
        Self { first_byte_us: AtomicU64::new(30_000), chunk_ns: AtomicU64::new(800_000) }
    }
}

impl Timing {
    /// Notes the time from a request to its first byte.
    pub fn first_byte(&self, took: Duration) {
        average(&self.first_byte_us, took.as_micros() as u64);
    }

    /// Notes the time between two chunks of a stream.
    pub fn chunk(&self, took: Duration) {
        average(&self.chunk_ns, took.as_nanos() as u64);
    }

    /// The usual time to the first byte.
    pub fn usual_first_byte(&self) -> Duration {
        Duration::from_micros(self.first_byte_us.load(Ordering::Relaxed))
    }

    /// The usual time for one more chunk of a stream.
    pub fn usual_chunk(&self) -> Duration {
        Duration::from_nanos(self.chunk_ns.load(Ordering::Relaxed))
    }
}

fn average(value: &AtomicU64, new: u64) {
    let old = value.load(Ordering::Relaxed);
    value.store(old - old / WEIGHT + new / WEIGHT, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_follows_the_origin() {
        let timing = Timing::default();
        (0..40).for_each(|_| timing.first_byte(Duration::from_millis(2)));
        let usual = timing.usual_first_byte();
        assert!(usual > Duration::from_micros(1900) && usual < Duration::from_millis(3), "{usual:?}");
    }
}
