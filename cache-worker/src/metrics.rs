//! What does this worker count?
//!
//! Names, help texts and labels of all metrics of a cache worker; every label has the fixed values listed here.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// Where the chunks of a read came from: values of the label `from`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// The store had them.
    Hit,
    /// Another read's fetch brought them.
    Join,
    /// This read's own fetch brought them.
    Miss,
}

impl From {
    fn label(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Join => "join",
            Self::Miss => "miss",
        }
    }
}

/// What reads and fetches count; clones share the counters.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Reads answered, by where the first missing chunk came from.
    hit: Level,
    join: Level,
    miss: Level,
    /// Reads that ended with an error, by code.
    pub read_errors: IntCounterVec,
    /// Time that a read waited for chunks that were not in the store.
    pub read_wait: Histogram,
    /// Requests to the origin that this worker decided on and that are under way.
    pub flights: IntGauge,
    /// Blocks and packs that wait to be completed behind a read.
    pub background_queue: IntGauge,
    /// Hints dropped because the queue was full.
    pub background_dropped: IntCounter,
    /// Bytes of chunks in memory.
    pub in_flight_bytes: IntGauge,
    /// Chunks asked for a second time because the first request would have brought them late.
    pub overtaken_chunks: IntCounter,
    /// Chunks that arrived though they were there already.
    pub duplicate_chunks: IntCounter,
    /// Objects that cannot be read as indexed.
    pub failed_objects: IntGauge,
    /// Failures seen, by reason.
    pub failures: IntCounterVec,
}

#[derive(Debug, Clone)]
struct Level {
    chunks: IntCounter,
    bytes: IntCounter,
}

impl Metrics {
    /// Makes and registers the metrics.
    ///
    /// # Errors
    /// When the registry has one of them already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let chunks =
            counters(registry, "cache_worker_read_chunks_total", "Chunks sent to readers.", &["from"])?;
        let bytes = counters(registry, "cache_worker_read_bytes_total", "Bytes sent to readers.", &["from"])?;
        let level = |from: From| Level {
            chunks: chunks.with_label_values(&[from.label()]),
            bytes: bytes.with_label_values(&[from.label()]),
        };
        // From a chunk that another flight is about to bring to a read that outlives an outage.
        let buckets = prometheus::exponential_buckets(0.001, 2.0, 18)?;
        let read_wait = Histogram::with_opts(
            HistogramOpts::new(
                "cache_worker_read_wait_seconds",
                "Time that a read waited for chunks not in the store.",
            )
            .buckets(buckets),
        )?;
        registry.register(Box::new(read_wait.clone()))?;
        Ok(Self {
            hit: level(From::Hit),
            join: level(From::Join),
            miss: level(From::Miss),
            read_errors: counters(
                registry,
                "cache_worker_read_errors_total",
                "Reads that ended with an error.",
                &["code"],
            )?,
            read_wait,
            flights: gauge(
                registry,
                "cache_worker_flights",
                "Requests to the origin decided on and under way.",
            )?,
            background_queue: gauge(
                registry,
                "cache_worker_background_queue_blocks",
                "Blocks and packs that wait to be completed behind a read.",
            )?,
            background_dropped: counter(
                registry,
                "cache_worker_background_dropped_total",
                "Blocks and packs not completed behind a read because the queue was full.",
            )?,
            in_flight_bytes: gauge(
                registry,
                "cache_worker_in_flight_bytes",
                "Bytes of chunks in memory, on their way to readers and store.",
            )?,
            overtaken_chunks: counter(
                registry,
                "cache_worker_overtaken_chunks_total",
                "Chunks asked for again because the first request would have brought them late.",
            )?,
            duplicate_chunks: counter(
                registry,
                "cache_worker_duplicate_chunks_total",
                "Chunks that arrived from the origin though they were there already.",
            )?,
            failed_objects: gauge(
                registry,
                "cache_worker_failed_objects",
                "Objects that cannot be read from the origin as indexed.",
            )?,
            failures: counters(
                registry,
                "cache_worker_object_failures_total",
                "Objects found unreadable, by reason.",
                &["reason"],
            )?,
        })
    }

    /// Counts chunks sent to a reader.
    pub fn sent(&self, from: From, chunks: u64, bytes: u64) {
        let level = match from {
            From::Hit => &self.hit,
            From::Join => &self.join,
            From::Miss => &self.miss,
        };
        level.chunks.inc_by(chunks);
        level.bytes.inc_by(bytes);
    }

    /// Chunks sent so far, by where they came from.
    pub fn chunks_sent(&self, from: From) -> u64 {
        match from {
            From::Hit => self.hit.chunks.get(),
            From::Join => self.join.chunks.get(),
            From::Miss => self.miss.chunks.get(),
        }
    }
}

fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntCounterVec, prometheus::Error> {
    let counters = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(counters.clone()))?;
    Ok(counters)
}

fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    let counter = IntCounter::new(name, help)?;
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}

fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    let gauge = IntGauge::new(name, help)?;
    registry.register(Box::new(gauge.clone()))?;
    Ok(gauge)
}
