//! How are opens counted, and how is told which of them the kernel serves itself?

use std::sync::Weak;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

use super::pass_through::PassThrough;

/// By which way a file was opened, and why not by the best one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The kernel reads the file itself.
    Passthrough,
    /// Small files share a store file.
    Packed,
    /// Chunks are absent.
    Incomplete,
    /// It is to be verified first.
    Unverified,
    /// It was opened through us before, and still is.
    Held,
    /// The kernel refused the file.
    Refused,
}

impl How {
    const ALL: [Self; 6] =
        [Self::Passthrough, Self::Packed, Self::Incomplete, Self::Unverified, Self::Held, Self::Refused];

    fn name(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Packed => "packed",
            Self::Incomplete => "incomplete",
            Self::Unverified => "unverified",
            Self::Held => "held",
            Self::Refused => "refused",
        }
    }
}

/// Counts opens of files where the kernel can be given some.
#[derive(Debug, Clone)]
pub struct OpenCounters {
    opens: [IntCounter; How::ALL.len()],
    switches: IntCounter,
}

impl OpenCounters {
    /// Registers the counters.
    ///
    /// # Errors
    /// When one of the names is taken.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let opens = IntCounterVec::new(
            Opts::new(
                "csi_driver_opens_total",
                "Opens of files: passthrough, or the reason why the kernel does not read the file itself.",
            ),
            &["how"],
        )?;
        let switches = IntCounter::new(
            "csi_driver_node_switches_total",
            "Opens that were sent to the other node of their file, because it is held open in another way.",
        )?;
        registry.register(Box::new(opens.clone()))?;
        registry.register(Box::new(switches.clone()))?;
        Ok(Self { opens: How::ALL.map(|how| opens.with_label_values(&[how.name()])), switches })
    }

    /// Counts an open.
    pub fn count(&self, how: How) {
        if let Some(counter) = self.opens.get(how as usize) {
            counter.inc();
        }
    }

    /// Counts an open that was sent to the other node.
    pub fn count_switch(&self) {
        self.switches.inc();
    }
}

/// Shows what the kernel holds open, read when it is asked for.
pub struct OpenGauges {
    pass_through: Weak<PassThrough>,
    files: IntGaugeVec,
    ids: IntGaugeVec,
}

impl OpenGauges {
    /// Registers the gauges.
    ///
    /// # Errors
    /// When one of the names is taken.
    pub fn register(registry: &Registry, pass_through: Weak<PassThrough>) -> Result<(), prometheus::Error> {
        let files = IntGaugeVec::new(
            Opts::new(
                "csi_driver_open_files",
                "Large files that are open: passthrough, cached, or ambiguous (of a former process).",
            ),
            &["mode"],
        )?;
        let ids = IntGaugeVec::new(
            Opts::new(
                "csi_driver_backing_ids",
                "Files that the kernel was given to read itself: in use, or kept for the next open.",
            ),
            &["state"],
        )?;
        registry.register(Box::new(Self { pass_through, files, ids }))
    }
}

impl Collector for OpenGauges {
    fn desc(&self) -> Vec<&Desc> {
        self.files.desc().into_iter().chain(self.ids.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if let Some(pass_through) = self.pass_through.upgrade() {
            let counts = pass_through.table().counts();
            let set =
                |gauge: &IntGaugeVec, label, count: u64| gauge.with_label_values(&[label]).set(count as i64);
            set(&self.files, "passthrough", counts.passthrough);
            set(&self.files, "cached", counts.cached);
            set(&self.files, "ambiguous", counts.ambiguous);
            set(&self.ids, "in_use", counts.ids_open);
            set(&self.ids, "idle", counts.ids_idle);
        }
        self.files.collect().into_iter().chain(self.ids.collect()).collect()
    }
}
