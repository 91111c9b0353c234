//! What does the operator count? Names and help are in docs/metrics.md.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// What is counted.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Reconciles that were begun.
    pub reconciles: IntCounter,
    /// Reconciles that failed, by what.
    pub failures: IntCounterVec,
    /// How long a reconcile takes.
    pub duration: Histogram,
    /// Whether this operator holds the lease.
    pub is_leader: IntGauge,
    /// Workers that are connected.
    pub workers: IntGauge,
    /// Datasets that are reconciled.
    pub datasets: IntGauge,
}

impl Metrics {
    /// Registers them.
    ///
    /// # Errors
    /// Where one is registered already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let duration =
            HistogramOpts::new("operator_reconcile_seconds", "How long a reconcile of a Dataset takes.")
                .buckets(vec![0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0]);
        let metrics = Self {
            reconciles: IntCounter::new(
                "operator_reconciles_total",
                "Reconciles of Datasets that were begun.",
            )?,
            failures: IntCounterVec::new(
                Opts::new("operator_reconcile_failures_total", "Reconciles that failed, by what failed."),
                &["reason"],
            )?,
            duration: Histogram::with_opts(duration)?,
            is_leader: IntGauge::new("operator_is_leader", "Whether this operator holds the lease: 1 or 0.")?,
            workers: IntGauge::new("operator_connected_workers", "Workers whose control port is connected.")?,
            datasets: IntGauge::new("operator_datasets", "Datasets that this operator reconciles.")?,
        };
        registry.register(Box::new(metrics.reconciles.clone()))?;
        registry.register(Box::new(metrics.failures.clone()))?;
        registry.register(Box::new(metrics.duration.clone()))?;
        registry.register(Box::new(metrics.is_leader.clone()))?;
        registry.register(Box::new(metrics.workers.clone()))?;
        registry.register(Box::new(metrics.datasets.clone()))?;
        Ok(metrics)
    }
}
