//! What does the mount process count, and under which names?

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_api::wire::ErrorCode;
use millrace_fuse_session::MetricsSnapshot;
use millrace_store::{NotKept, Store};
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use crate::dataset_fs::mode::Choice;

/// At most one line about unreadable chunks in this time, however many there are: they are counted one by one.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Counters of the read path; clones share them.
#[derive(Debug, Clone)]
pub struct ReadCounters {
    /// Reads answered from the node store alone.
    pub hits: IntCounter,
    misses: IntCounter,
    joins: IntCounter,
    /// Bytes of chunks that came from workers.
    pub fetched_bytes: IntCounter,
    errors: IntCounterVec,
    log: Arc<Mutex<LogLimit>>,
}

#[derive(Debug, Default)]
struct LogLimit {
    last: Option<Instant>,
    suppressed: u64,
}

impl ReadCounters {
    /// Registers the counters.
    ///
    /// # Errors
    /// When one of the names is taken.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let reads = IntCounterVec::new(
            Opts::new(
                "csi_driver_reads_total",
                "Reads by where their bytes were: node store hit, miss, or join of a fetch under way.",
            ),
            &["result"],
        )?;
        let fetched_bytes =
            IntCounter::new("csi_driver_fetched_bytes_total", "Bytes that came from workers.")?;
        let errors = IntCounterVec::new(
            Opts::new(
                "csi_driver_read_errors_total",
                "Fetches of chunks that failed, by the reason that the worker or the client gave.",
            ),
            &["code"],
        )?;
        registry.register(Box::new(reads.clone()))?;
        registry.register(Box::new(fetched_bytes.clone()))?;
        registry.register(Box::new(errors.clone()))?;
        let by = |result| reads.with_label_values(&[result]);
        let (hits, misses, joins) = (by("hit"), by("miss"), by("join"));
        Ok(Self { hits, misses, joins, fetched_bytes, errors, log: Arc::default() })
    }

    /// Counts a read that the node store could not answer.
    pub fn count_miss(&self, is_join: bool) {
        if is_join { &self.joins } else { &self.misses }.inc();
    }

    /// Counts a failed fetch; `Some` with the number of failures not logged before, if this one is to be logged.
    pub fn count_error(&self, code: ErrorCode) -> Option<u64> {
        let label = match code {
            ErrorCode::Unknown(_) => "unknown".to_owned(),
            known => format!("{known:?}"),
        };
        self.errors.with_label_values(&[&label]).inc();
        let mut log = self.log.lock();
        // The one clock here only spaces log lines.
        let now = Instant::now();
        if log.last.is_some_and(|last| now.duration_since(last) < LOG_INTERVAL) {
            log.suppressed += 1;
            return None;
        }
        log.last = Some(now);
        Some(std::mem::take(&mut log.suppressed))
    }
}

/// Shows how the kernel is served, and why.
///
/// # Errors
/// When the name is taken.
pub fn show_mode(registry: &Registry, choice: Choice) -> Result<(), prometheus::Error> {
    let mode = IntGaugeVec::new(
        Opts::new(
            "csi_driver_mount_mode",
            "1 for the way in which the kernel is served (files, packed), with the reason (asked, small_files, large_files, kernel).",
        ),
        &["mode", "reason"],
    )?;
    mode.with_label_values(&[choice.served.name(), choice.because.name()]).set(1);
    registry.register(Box::new(mode))
}

/// Shows the session's and the node store's own counters, read when they are asked for.
pub struct Snapshots {
    session: Box<dyn Fn() -> Option<MetricsSnapshot> + Send + Sync>,
    store: Option<Store>,
    families: Families,
}

struct Families {
    requests: IntCounterVec,
    request_errors: IntCounterVec,
    in_flight: IntGauge,
    interrupted: IntCounter,
    store_bytes: IntCounterVec,
    store_used: IntGaugeVec,
    store_evictions: IntCounter,
    store_corrupt: IntCounter,
    store_not_kept: IntCounterVec,
}

impl Snapshots {
    /// Registers the metrics; `session` gives the session's counters while there is one.
    ///
    /// # Errors
    /// When one of the names is taken.
    pub fn register(
        registry: &Registry,
        session: impl Fn() -> Option<MetricsSnapshot> + Send + Sync + 'static,
        store: Option<Store>,
    ) -> Result<(), prometheus::Error> {
        let families = Families::new()?;
        registry.register(Box::new(Self { session: Box::new(session), store, families }))
    }

    fn refresh(&self) {
        let Families { requests, request_errors, in_flight, interrupted, .. } = &self.families;
        if let Some(snapshot) = (self.session)() {
            for (opcode, count) in &snapshot.requests {
                raise(&requests.with_label_values(&[opcode.name()]), *count);
            }
            for (class, count) in &snapshot.errors {
                raise(&request_errors.with_label_values(&[class.name()]), *count);
            }
            in_flight.set(snapshot.in_flight as i64);
            raise(interrupted, snapshot.interrupted);
        }
        if let Some(store) = &self.store {
            self.refresh_store(store);
        }
    }

    fn refresh_store(&self, store: &Store) {
        let Families { store_bytes, store_used, store_evictions, store_corrupt, store_not_kept, .. } =
            &self.families;
        let stats = store.stats();
        raise(&store_bytes.with_label_values(&["read"]), stats.hit_bytes - stats.borrowed_bytes);
        raise(&store_bytes.with_label_values(&["read_from_local_worker"]), stats.borrowed_bytes);
        raise(&store_bytes.with_label_values(&["written"]), stats.written_bytes);
        raise(store_evictions, stats.evicted_blocks);
        raise(store_corrupt, stats.corrupt_chunks);
        for (reason, count) in NotKept::ALL.iter().zip(stats.not_kept) {
            raise(&store_not_kept.with_label_values(&[reason.label()]), count);
        }
        let usage = store.usage();
        let quota: u64 = usage.tiers.iter().map(|tier| tier.quota_bytes).sum();
        store_used.with_label_values(&["used"]).set(usage.used_bytes() as i64);
        store_used.with_label_values(&["quota"]).set(quota as i64);
    }
}

impl Families {
    fn new() -> Result<Self, prometheus::Error> {
        let counters = |name, help, label: &str| IntCounterVec::new(Opts::new(name, help), &[label]);
        Ok(Self {
            requests: counters(
                "csi_driver_fuse_requests_total",
                "Requests of the kernel, by opcode.",
                "opcode",
            )?,
            request_errors: counters(
                "csi_driver_fuse_errors_total",
                "Requests answered with an error, by class.",
                "class",
            )?,
            in_flight: IntGauge::new("csi_driver_fuse_in_flight", "Requests of the kernel being answered.")?,
            interrupted: IntCounter::new(
                "csi_driver_fuse_interrupted_total",
                "Requests whose reader gave up.",
            )?,
            store_bytes: counters(
                "csi_driver_node_store_bytes_total",
                "Bytes read from and written to the node store, and read from tiers of workers on this node.",
                "direction",
            )?,
            store_used: IntGaugeVec::new(
                Opts::new("csi_driver_node_store_bytes", "Bytes that the node store uses, and may use."),
                &["state"],
            )?,
            store_evictions: IntCounter::new(
                "csi_driver_node_store_evictions_total",
                "Blocks evicted from the node store.",
            )?,
            store_corrupt: IntCounter::new(
                "csi_driver_node_store_corrupt_chunks_total",
                "Chunks of the node store that did not match their checksum; they were fetched again.",
            )?,
            store_not_kept: counters(
                "csi_driver_node_store_not_kept_total",
                "Chunks served without being kept, by reason.",
                "reason",
            )?,
        })
    }

    fn all(&self) -> [&dyn Collector; 9] {
        let Self {
            requests,
            request_errors,
            in_flight,
            interrupted,
            store_bytes,
            store_used,
            store_evictions,
            store_corrupt,
            store_not_kept,
        } = self;
        [
            requests,
            request_errors,
            in_flight,
            interrupted,
            store_bytes,
            store_used,
            store_evictions,
            store_corrupt,
            store_not_kept,
        ]
    }
}

impl Collector for Snapshots {
    fn desc(&self) -> Vec<&Desc> {
        self.families.all().into_iter().flat_map(|family| family.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.refresh();
        self.families.all().into_iter().flat_map(|family| family.collect()).collect()
    }
}

/// Brings a counter up to a value that never falls.
fn raise(counter: &IntCounter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}
