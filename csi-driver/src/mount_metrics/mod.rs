//! How do the metrics of the mount processes come to be shown by the driver, whose port is the one that is scraped?
//!
//! Each scrape asks all of them at the same time, within a deadline, and gives their series the labels of what they show. What
//! is counted never falls while the driver lives: where a process dies, its last counts are added to those of its successor,
//! and where one is stopped they stay for a while, so that every scraper sees the final ones. What was counted after the last
//! look at a process that then died is lost.

mod fetch;
mod text;
mod total;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use millrace_daemon::causes::with_causes;
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{IntGauge, Registry};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::node_mounts::plan::{MountKey, MountPlan};

/// How long the counts of a process that was stopped are shown: several scrapes, also at an interval of minutes.
const LINGER: Duration = Duration::from_secs(600);

/// Most stopped processes that are shown; the one stopped first goes first. Each is a few kilobytes.
const MAX_LINGERING: usize = 128;

/// Name of the gauge that says which processes answered.
const UP: &str = "csi_driver_mount_process_up";

/// The metrics of the mount processes of a node. Clones share them.
#[derive(Debug, Clone)]
pub struct MountMetrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    runtime: Handle,
    up: IntGauge,
    /// Held while processes are asked, so that an older answer never comes after a newer one: that is why it is tokio's.
    asking: tokio::sync::Mutex<()>,
    /// Bounded by the mounts of the node and [`MAX_LINGERING`].
    shown: Mutex<HashMap<MountKey, Shown>>,
}

/// What is shown of one mount process and those of the same key before it.
#[derive(Debug)]
struct Shown {
    labels: Vec<LabelPair>,
    is: Is,
    runs: u64,
    /// What former processes counted.
    former: Vec<MetricFamily>,
    /// What the present one said last.
    last: Vec<MetricFamily>,
}

/// One run of a mount process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    /// Its admin port. A later run may have the same one.
    address: SocketAddr,
    /// Counts the runs of a key.
    number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    /// It serves.
    Up(Run),
    /// It ended, and is being started again.
    Down,
    /// It was stopped.
    Stopped(Instant),
}

/// What one scrape finds.
struct Answer {
    key: MountKey,
    run: Run,
    said: Option<Vec<MetricFamily>>,
}

impl MountMetrics {
    /// Adds the metrics of mount processes to those of the driver. Called on a runtime; the registry must be gathered on a
    /// thread that may block, as the admin port does.
    ///
    /// # Errors
    /// When the name of the gauge is taken.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let up = IntGauge::new(UP, "Whether a mount process answered this scrape: 1 or 0.")?;
        let inner = Inner {
            runtime: Handle::current(),
            up,
            asking: tokio::sync::Mutex::default(),
            shown: Mutex::default(),
        };
        let metrics = Self { inner: Arc::new(inner) };
        registry.register(Box::new(metrics.clone()))?;
        Ok(metrics)
    }

    /// Notes that a mount process serves, and where it tells its metrics.
    pub fn serves(&self, plan: &MountPlan, address: SocketAddr) {
        let mut shown = self.inner.shown.lock();
        let entry = shown.entry(plan.key.clone()).or_insert_with(|| Shown::new(plan));
        entry.settle();
        entry.runs += 1;
        entry.is = Is::Up(Run { address, number: entry.runs });
    }

    /// Notes that a mount process ended otherwise than asked, or did not come up.
    pub fn died(&self, plan: &MountPlan) {
        let mut shown = self.inner.shown.lock();
        let entry = shown.entry(plan.key.clone()).or_insert_with(|| Shown::new(plan));
        entry.settle();
        entry.is = Is::Down;
    }

    /// Asks a mount process for the last time, before it is stopped.
    pub async fn before_stop(&self, key: &MountKey) {
        let run = match self.inner.shown.lock().get(key) {
            Some(Shown { is: Is::Up(run), .. }) => *run,
            _ => return,
        };
        let _asking = self.inner.asking.lock().await;
        self.inner.take(vec![ask(key.clone(), run).await]);
    }

    /// Notes that nobody needs a mount process any more, and that it is gone.
    pub fn stopped(&self, key: &MountKey) {
        let now = Instant::now();
        let mut shown = self.inner.shown.lock();
        if let Some(entry) = shown.get_mut(key) {
            entry.settle();
            entry.is = Is::Stopped(now);
        }
        let mut stopped: Vec<(Instant, MountKey)> = shown
            .iter()
            .filter_map(|(key, shown)| shown.stopped_at().map(|stopped_at| (stopped_at, key.clone())))
            .collect();
        stopped.sort();
        let surplus = stopped.len().saturating_sub(MAX_LINGERING);
        for (_, key) in stopped.drain(..surplus) {
            shown.remove(&key);
        }
    }

    /// Asks all processes at once, and gives what is to be shown.
    async fn gather(&self) -> Vec<MetricFamily> {
        let _asking = self.inner.asking.lock().await;
        let mut asked = JoinSet::new();
        for (key, shown) in &*self.inner.shown.lock() {
            if let Is::Up(run) = shown.is {
                asked.spawn(ask(key.clone(), run));
            }
        }
        let mut answers = Vec::new();
        while let Some(answer) = asked.join_next().await {
            // One that panicked has said nothing.
            answers.extend(answer.ok());
        }
        self.inner.take(answers)
    }
}

async fn ask(key: MountKey, run: Run) -> Answer {
    let said = fetch::read(run.address).await.inspect_err(|error| {
        tracing::debug!(uid = key.uid, version = %key.version, error = with_causes(error), "metrics of a mount process");
    });
    Answer { key, run, said: said.ok() }
}

impl Shown {
    fn new(plan: &MountPlan) -> Self {
        Self { labels: labels(plan), is: Is::Down, runs: 0, former: Vec::new(), last: Vec::new() }
    }

    /// Adds what the present process said to what former ones counted.
    fn settle(&mut self) {
        let last = std::mem::take(&mut self.last);
        self.former = total::add(&self.former, total::counts(&last));
    }

    fn stopped_at(&self) -> Option<Instant> {
        match self.is {
            Is::Stopped(at) => Some(at),
            Is::Up(_) | Is::Down => None,
        }
    }
}

impl Inner {
    /// Takes answers in, and gives all that is to be shown now.
    fn take(&self, answers: Vec<Answer>) -> Vec<MetricFamily> {
        let mut shown = self.shown.lock();
        let mut answered = Vec::new();
        for Answer { key, run, said } in answers {
            // Meanwhile another process may have taken its place.
            let entry = shown.get_mut(&key).filter(|entry| entry.is == Is::Up(run));
            if let (Some(entry), Some(said)) = (entry, said) {
                entry.last = said;
                answered.push(key);
            }
        }
        shown.retain(|_, entry| entry.stopped_at().is_none_or(|at| at.elapsed() < LINGER));
        let mut families = Vec::new();
        for (key, entry) in &*shown {
            let is_up = answered.contains(key);
            // Counts of one that is silent stay where they were, so that sums over processes do not fall.
            let now = if is_up { entry.last.clone() } else { total::counts(&entry.last) };
            let mut own = total::add(&entry.former, now);
            if entry.stopped_at().is_none() {
                own.push(self.up(is_up));
            }
            own.iter_mut().flat_map(|family| family.mut_metric()).for_each(|metric| {
                let own = metric.take_label();
                metric.set_label(own.into_iter().chain(entry.labels.iter().cloned()).collect());
            });
            families.append(&mut own);
        }
        families
    }

    fn up(&self, is_up: bool) -> MetricFamily {
        let mut gauge = Gauge::default();
        gauge.set_value(f64::from(u8::from(is_up)));
        let mut family = MetricFamily::default();
        family.set_name(UP.to_owned());
        family.set_help(self.up.desc().first().map(|desc| desc.help.clone()).unwrap_or_default());
        family.set_field_type(MetricType::GAUGE);
        family.set_metric(vec![Metric::from_gauge(gauge)]);
        family
    }
}

/// What tells the series of one mount process from those of another.
fn labels(plan: &MountPlan) -> Vec<LabelPair> {
    let (namespace, name) = plan.dataset.split_once('/').unwrap_or(("", &plan.dataset));
    let MountKey { uid, version, .. } = &plan.key;
    let pairs = [
        ("namespace", namespace.to_owned()),
        ("dataset", name.to_owned()),
        ("uid", uid.clone()),
        ("version", version.to_string()),
        ("variant", plan.key.variant().unwrap_or_default().to_owned()),
    ];
    // As Prometheus has it: a label without a value is none.
    pairs
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| text::pair(name, value))
        .collect()
}

impl Collector for MountMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.inner.up.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.inner.runtime.block_on(self.gather())
    }
}

#[cfg(test)]
mod tests {
    use millrace_api::ids::VersionId;
    use prometheus::{IntCounter, TextEncoder};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// An admin port that tells one counter; ends when it is aborted.
    async fn process(value: u64) -> (SocketAddr, IntCounter, tokio::task::JoinHandle<()>) {
        let counter = IntCounter::new("csi_driver_x", "x").unwrap();
        counter.inc_by(value);
        let registry = Registry::new();
        registry.register(Box::new(counter.clone())).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 256];
                assert!(stream.read(&mut request).await.unwrap() > 0);
                let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
                stream.write_all(format!("HTTP/1.0 200 OK\r\n\r\n{text}").as_bytes()).await.unwrap();
            }
        };
        (address, counter, tokio::spawn(serve))
    }

    async fn shown(metrics: &MountMetrics) -> Vec<String> {
        let text = TextEncoder::new().encode_to_string(&metrics.gather().await).unwrap();
        let mut lines: Vec<String> =
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
        lines.sort();
        lines
    }

    fn line(name: &str, uid: &str, value: u64) -> String {
        let version = VersionId([1; 16]);
        format!("{name}{{namespace=\"vision\",dataset=\"data\",uid=\"{uid}\",version=\"{version}\"}} {value}")
    }

    #[tokio::test]
    async fn a_successor_adds_to_what_was_known_last_and_a_stop_loses_nothing() {
        let metrics = MountMetrics::register(&Registry::new()).unwrap();
        let (x, plan) = (|value| line("csi_driver_x", "u", value), MountPlan::example("u"));
        let up = |value| line(UP, "u", value);
        let (address, counter, task) = process(5).await;
        metrics.serves(&plan, address);
        assert_eq!(shown(&metrics).await, [up(1), x(5)]);
        counter.inc_by(1);
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(shown(&metrics).await, [up(0), x(5)], "it is gone, and that is not known yet");
        metrics.died(&plan);
        assert_eq!(shown(&metrics).await, [up(0), x(5)]);
        let (address, counter, _task) = process(2).await;
        metrics.serves(&plan, address);
        assert_eq!(shown(&metrics).await, [up(1), x(7)]);
        counter.inc_by(10);
        metrics.before_stop(&plan.key).await;
        metrics.stopped(&plan.key);
        assert_eq!(shown(&metrics).await, [x(17)]);
        let (address, _, _task) = process(1).await;
        metrics.serves(&plan, address);
        assert_eq!(shown(&metrics).await, [up(1), x(18)]);
    }

    #[tokio::test]
    async fn what_lingers_is_bounded() {
        let metrics = MountMetrics::register(&Registry::new()).unwrap();
        let (address, _, _task) = process(1).await;
        for number in 0..MAX_LINGERING + 3 {
            let plan = MountPlan::example(&format!("u-{number:03}"));
            metrics.serves(&plan, address);
            metrics.before_stop(&plan.key).await;
            metrics.stopped(&plan.key);
        }
        let shown = shown(&metrics).await;
        assert_eq!(shown.len(), MAX_LINGERING);
        assert_eq!(shown[0], line("csi_driver_x", "u-003", 1), "the oldest went first");
    }
}
