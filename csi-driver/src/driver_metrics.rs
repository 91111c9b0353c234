//! What does the driver count, and under which names?

use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};
use tonic::Code;

/// A call of kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// NodePublishVolume.
    Publish,
    /// NodeUnpublishVolume.
    Unpublish,
    /// NodeGetVolumeStats.
    Stats,
}

/// Why a mount process had to be started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartReason {
    /// It did not come up.
    Start,
    /// It ended by itself.
    Died,
    /// It gave no answer for too long, and was killed.
    Hung,
}

impl Call {
    /// Its name in logs and labels.
    pub fn name(self) -> &'static str {
        match self {
            Call::Publish => "publish",
            Call::Unpublish => "unpublish",
            Call::Stats => "stats",
        }
    }
}

/// The counters of the driver; clones share them.
#[derive(Debug, Clone)]
pub struct DriverMetrics {
    seconds: HistogramVec,
    failures: IntCounterVec,
    restarts: IntCounterVec,
}

impl DriverMetrics {
    /// Registers the counters.
    ///
    /// # Errors
    /// When one of the names is taken.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        // A publish of a version that is mounted takes milliseconds, a first one a second, and it may wait for workers.
        let buckets = vec![0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
        let seconds = HistogramVec::new(
            HistogramOpts::new("csi_driver_call_seconds", "Time that kubelet's calls took.").buckets(buckets),
            &["call"],
        )?;
        let failures = IntCounterVec::new(
            Opts::new("csi_driver_call_failures_total", "Calls of kubelet that failed, by gRPC code."),
            &["call", "code"],
        )?;
        let restarts = IntCounterVec::new(
            Opts::new(
                "csi_driver_mount_process_restarts_total",
                "Mount processes that ended otherwise than asked: did not start, died, or hung and were killed.",
            ),
            &["reason"],
        )?;
        registry.register(Box::new(seconds.clone()))?;
        registry.register(Box::new(failures.clone()))?;
        registry.register(Box::new(restarts.clone()))?;
        Ok(Self { seconds, failures, restarts })
    }

    /// Counts a call that ended.
    pub fn observe(&self, call: Call, code: Code, took: Duration) {
        self.seconds.with_label_values(&[call.name()]).observe(took.as_secs_f64());
        if code != Code::Ok {
            self.failures.with_label_values(&[call.name(), &format!("{code:?}")]).inc();
        }
    }

    /// Counts a mount process that ended otherwise than asked.
    pub fn count_restart(&self, reason: RestartReason) {
        let reason = match reason {
            RestartReason::Start => "start",
            RestartReason::Died => "died",
            RestartReason::Hung => "hung",
        };
        self.restarts.with_label_values(&[reason]).inc();
    }
}

/// What is there now, looked at when it is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Now {
    /// Targets that are published.
    pub published: usize,
    /// Mount processes.
    pub mounts: usize,
    /// Bytes granted to node caches.
    pub cache_granted_bytes: u64,
    /// The bound for that, 0 where there is none.
    pub cache_limit_bytes: u64,
}

/// Shows [`Now`] as gauges.
pub struct NowGauges {
    look: Box<dyn Fn() -> Now + Send + Sync>,
    published: IntGauge,
    mounts: IntGauge,
    cache_granted: IntGauge,
    cache_limit: IntGauge,
}

impl NowGauges {
    /// Registers the gauges.
    ///
    /// # Errors
    /// When one of the names is taken.
    pub fn register(
        registry: &Registry,
        look: impl Fn() -> Now + Send + Sync + 'static,
    ) -> Result<(), prometheus::Error> {
        registry.register(Box::new(Self {
            look: Box::new(look),
            published: IntGauge::new(
                "csi_driver_published_targets",
                "Targets at which a dataset is published.",
            )?,
            mounts: IntGauge::new(
                "csi_driver_mount_processes",
                "Mount processes, one for each dataset version in use.",
            )?,
            cache_granted: IntGauge::new(
                "csi_driver_node_cache_granted_bytes",
                "Bytes that the datasets with a cache on this node may keep, in all.",
            )?,
            cache_limit: IntGauge::new(
                "csi_driver_node_cache_limit_bytes",
                "Bytes that all datasets may keep on this node; 0: no limit.",
            )?,
        }))
    }

    fn all(&self) -> [&IntGauge; 4] {
        [&self.published, &self.mounts, &self.cache_granted, &self.cache_limit]
    }
}

impl Collector for NowGauges {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(|gauge| gauge.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Now { published, mounts, cache_granted_bytes, cache_limit_bytes } = (self.look)();
        self.published.set(published as i64);
        self.mounts.set(mounts as i64);
        self.cache_granted.set(i64::try_from(cache_granted_bytes).unwrap_or(i64::MAX));
        self.cache_limit.set(i64::try_from(cache_limit_bytes).unwrap_or(i64::MAX));
        self.all().into_iter().flat_map(|gauge| gauge.collect()).collect()
    }
}
