//! What do the store, the origin, the data port and the warm-ups count?
//!
//! They keep their own counters; these are read when metrics are gathered. Every label has the fixed values that the
//! part itself names.

use std::sync::Weak;

use millrace_store::NotKept;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use crate::origin::error::OriginErrorKind;
use crate::worker::Worker;

/// Names and help texts of the counters without a label.
const COUNTERS: [(&str, &str); 19] = [
    ("cache_worker_origin_bytes_total", "Bytes of objects received from the origin."),
    ("cache_worker_origin_retries_total", "Requests sent to the origin again."),
    ("cache_worker_origin_throttles_total", "Answers of the origin that asked to slow down."),
    ("cache_worker_store_hit_chunks_total", "Chunks asked of the store that were there."),
    ("cache_worker_store_hit_bytes_total", "Bytes of those."),
    ("cache_worker_store_miss_chunks_total", "Chunks asked of the store that were not there."),
    ("cache_worker_store_written_chunks_total", "Chunks written to the store."),
    ("cache_worker_store_written_bytes_total", "Bytes of those."),
    ("cache_worker_store_evicted_blocks_total", "Blocks evicted from the store."),
    ("cache_worker_store_evicted_bytes_total", "Bytes freed by that."),
    ("cache_worker_store_corrupt_chunks_total", "Chunks dropped because they did not match their checksum."),
    ("cache_worker_store_damaged_files_total", "Store files dropped whole."),
    (
        "cache_worker_store_read_errors_total",
        "Reads of the store that the file system answered with an error.",
    ),
    ("cache_worker_data_port_reads_total", "Read requests on the data port."),
    ("cache_worker_data_port_file_bytes_total", "Payload sent from store files."),
    ("cache_worker_data_port_memory_bytes_total", "Payload sent from memory."),
    ("cache_worker_data_port_errors_total", "Error frames sent."),
    ("cache_worker_data_port_refused_total", "Connections that ended in their hello."),
    ("cache_worker_data_port_stalled_total", "Connections closed because the client took no bytes."),
];

/// Reads the counters of a worker's parts.
struct Observed {
    /// Not held: the registry outlives the worker.
    worker: Weak<Worker>,
    counters: Vec<IntCounterVec>,
    origin_requests: IntCounterVec,
    origin_errors: IntCounterVec,
    not_kept: IntCounterVec,
    window: IntGaugeVec,
    used: IntGaugeVec,
    quota: IntGaugeVec,
    files: IntGaugeVec,
    data_port: IntGaugeVec,
    warm_up_objects: IntGaugeVec,
    warm_up_bytes: IntGaugeVec,
    epoch: IntGaugeVec,
}

/// Adds the metrics of a worker's parts to the registry.
///
/// # Errors
/// When the registry has one of them already.
pub fn register(registry: &Registry, worker: Weak<Worker>) -> Result<(), prometheus::Error> {
    registry.register(Box::new(Observed::new(worker)?))
}

impl Observed {
    fn new(worker: Weak<Worker>) -> Result<Self, prometheus::Error> {
        let counters = COUNTERS.iter().map(|(name, help)| counter(name, help, &[]));
        Ok(Self {
            worker,
            counters: counters.collect::<Result<_, _>>()?,
            origin_requests: counter(
                "cache_worker_origin_requests_total",
                "Requests sent to the origin.",
                &["operation"],
            )?,
            origin_errors: counter(
                "cache_worker_origin_errors_total",
                "Failed tries at the origin, by kind.",
                &["kind"],
            )?,
            not_kept: counter(
                "cache_worker_store_not_kept_chunks_total",
                "Chunks not kept, by reason.",
                &["reason"],
            )?,
            window: gauge(
                "cache_worker_origin_window_requests",
                "Requests to the origin: allowed, under way, waiting.",
                &["kind"],
            )?,
            used: gauge("cache_worker_store_used_bytes", "Bytes allocated in a tier.", &["tier"])?,
            quota: gauge("cache_worker_store_quota_bytes", "Bytes that a tier may allocate.", &["tier"])?,
            files: gauge("cache_worker_store_files", "Store files of a tier.", &["tier"])?,
            data_port: gauge(
                "cache_worker_data_port_connections",
                "Connections open on the data port.",
                &[],
            )?,
            warm_up_objects: gauge(
                "cache_worker_warm_up_objects",
                "Objects of the warm-ups, by state.",
                &["state"],
            )?,
            warm_up_bytes: gauge("cache_worker_warm_up_bytes", "Bytes of the warm-ups.", &["state"])?,
            epoch: gauge("cache_worker_membership_epoch", "Epoch of the membership in use.", &[])?,
        })
    }

    fn observe(&self, worker: &Worker) {
        let (origin, store) = (worker.sources.counters().now(), worker.fetcher.store.stats());
        let port = &worker.server_counters;
        let values: [u64; COUNTERS.len()] = [
            origin.bytes,
            origin.retries,
            origin.throttles,
            store.hit_chunks,
            store.hit_bytes,
            store.miss_chunks,
            store.written_chunks,
            store.written_bytes,
            store.evicted_blocks,
            store.evicted_bytes,
            store.corrupt_chunks,
            store.damaged_files,
            store.read_errors,
            port.reads.get(),
            port.file_bytes.get(),
            port.memory_bytes.get(),
            port.errors.get(),
            port.refused.get(),
            port.stalled.get(),
        ];
        for (counter, value) in self.counters.iter().zip(values) {
            set(counter, &[], value);
        }
        set(&self.origin_requests, &["get"], origin.gets);
        set(&self.origin_requests, &["list"], origin.lists);
        for kind in OriginErrorKind::ALL {
            set(&self.origin_errors, &[kind.name()], origin.of(kind));
        }
        for (reason, count) in NotKept::ALL.iter().zip(store.not_kept) {
            set(&self.not_kept, &[reason.label()], count);
        }
        let window = worker.sources.window().now();
        for (kind, value) in [
            ("limit", window.limit),
            ("foreground", window.foreground),
            ("warm_up", window.warm_up),
            ("foreground_waiting", window.foreground_waiting),
            ("warm_up_waiting", window.warm_up_waiting),
        ] {
            self.window.with_label_values(&[kind]).set(value as i64);
        }
        for (number, tier) in worker.fetcher.store.usage().tiers.iter().enumerate() {
            let tier_label = number.to_string();
            self.used.with_label_values(&[&tier_label]).set(tier.used_bytes as i64);
            self.quota.with_label_values(&[&tier_label]).set(tier.quota_bytes as i64);
            self.files.with_label_values(&[&tier_label]).set(tier.files as i64);
        }
        self.data_port.with_label_values(&[] as &[&str]).set(port.connections.get() as i64);
        self.epoch.with_label_values(&[] as &[&str]).set(worker.members.current().epoch as i64);
        self.observe_warm_ups(worker);
    }

    fn observe_warm_ups(&self, worker: &Worker) {
        let (mut objects, mut bytes) = ([0; 4], [0; 2]);
        for version in worker.in_use() {
            let now = worker.warm_ups.now(&version, 0);
            for (sum, value) in
                objects.iter_mut().zip([now.listed, now.counts.done, now.counts.failed, now.pending])
            {
                *sum += value as i64;
            }
            bytes[0] += now.counts.bytes_done as i64;
            bytes[1] += now.bytes_total as i64;
        }
        for (state, value) in ["listed", "done", "failed", "pending"].iter().zip(objects) {
            self.warm_up_objects.with_label_values(&[*state]).set(value);
        }
        for (state, value) in ["done", "total"].iter().zip(bytes) {
            self.warm_up_bytes.with_label_values(&[*state]).set(value);
        }
    }

    fn all(&self) -> Vec<&dyn Collector> {
        let counters = self.counters.iter().map(|counter| counter as &dyn Collector);
        let others: [&dyn Collector; 11] = [
            &self.origin_requests,
            &self.origin_errors,
            &self.not_kept,
            &self.window,
            &self.used,
            &self.quota,
            &self.files,
            &self.data_port,
            &self.warm_up_objects,
            &self.warm_up_bytes,
            &self.epoch,
        ];
        counters.chain(others).collect()
    }
}

impl Collector for Observed {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if let Some(worker) = self.worker.upgrade() {
            self.observe(&worker);
        }
        self.all().into_iter().flat_map(Collector::collect).collect()
    }
}

/// Makes a counter show a value that is counted elsewhere.
fn set(counter: &IntCounterVec, labels: &[&str], value: u64) {
    let counter = counter.with_label_values(labels);
    // Two scrapes at once may show a value twice the step; the next one is right.
    counter.inc_by(value.saturating_sub(counter.get()));
}

fn counter(name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
    IntCounterVec::new(Opts::new(name, help), labels)
}

fn gauge(name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
    IntGaugeVec::new(Opts::new(name, help), labels)
}
