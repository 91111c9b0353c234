//! Does Millrace leave the API server alone while nothing happens?

use std::time::{Duration, Instant};

use millrace_tests::kubernetes::audit::{Audit, Request};
use millrace_tests::kubernetes::bucket::{Bucket, Contents};
use millrace_tests::kubernetes::cluster::{Cluster, SYSTEM};
use millrace_tests::kubernetes::namespace::Namespace;
use millrace_tests::kubernetes::objects::DATASET;

/// How long nothing may be written. `MILLRACE_AT_REST_SECONDS` says otherwise, for who tries something.
const AT_REST: Duration = Duration::from_secs(300);

/// For all to be told that there is to tell: numbers of a status wait for up to 10 s, and events follow.
const TOLD: Duration = Duration::from_secs(120);

/// Without a write for so long, all is told.
const QUIET: Duration = Duration::from_secs(15);

/// How often to look whether something was written.
const LOOK_EVERY: Duration = Duration::from_secs(3);

const DATASETS: u32 = 20;

#[test]
fn nothing_is_written_at_rest() {
    let Some(cluster) = Cluster::shared("nothing_is_written_at_rest") else { return };
    let space = Namespace::new(&cluster);
    let bucket = Bucket::start(&space, Contents::new(3, 100_000));
    let names: Vec<String> = (0..DATASETS).map(|number| format!("data-{number}")).collect();
    for name in &names {
        space.dataset(name, &bucket, "workers: {cache: {tiers: [{medium: Disk, quota: 64Mi}]}}");
    }
    for name in &names {
        space.wait_for_condition(name, "Ready", "True");
        space.wait_for_condition(name, "Warm", "True");
    }
    let seconds = std::env::var("MILLRACE_AT_REST_SECONDS").ok();
    let seconds = seconds.map(|text| text.parse().expect("MILLRACE_AT_REST_SECONDS is a number"));
    let long = seconds.map_or(AT_REST, Duration::from_secs);
    let ours = Ours::of(&space);
    cluster.rest(|| {
        wait_until_quiet(&cluster, &ours);
        let (began, mut beats) = (Instant::now(), 0);
        let mut audit = Audit::from_now(&cluster);
        while began.elapsed() < long {
            std::thread::sleep(LOOK_EVERY);
            let next = Audit::from_now(&cluster);
            let (leases, writes) = ours.written(&audit);
            assert!(writes.is_empty(), "written at rest, after {:?}: {writes:#?}", began.elapsed());
            (beats, audit) = (beats + leases, next);
        }
        assert!(beats > 0, "the audit log shows nothing of {SYSTEM}: is it the right one?");
    });
}

/// Waits until all is told of how the Datasets have become what they are.
fn wait_until_quiet(cluster: &Cluster, ours: &Ours) {
    let began = Instant::now();
    let (mut audit, mut since) = (Audit::from_now(cluster), Instant::now());
    while since.elapsed() < QUIET {
        std::thread::sleep(LOOK_EVERY);
        let (_, writes) = ours.written(&audit);
        if !writes.is_empty() {
            assert!(began.elapsed() < TOLD, "written without an end: {writes:#?}");
            (audit, since) = (Audit::from_now(cluster), Instant::now());
        }
    }
}

/// What tells requests about the Datasets of a namespace from those about others, with which something may happen meanwhile.
struct Ours {
    namespace: String,
    uids: Vec<String>,
}

impl Ours {
    fn of(space: &Namespace<'_>) -> Self {
        let datasets = space.list(DATASET, "");
        let uids = datasets.iter().map(|dataset| dataset["metadata"]["uid"].as_str().unwrap().to_owned());
        Self { namespace: space.name.clone(), uids: uids.collect() }
    }

    /// How often the lease was renewed, and what else Millrace has written about them.
    fn written(&self, audit: &Audit) -> (usize, Vec<Request>) {
        let (leases, mut writes): (Vec<Request>, Vec<Request>) = audit
            .requests()
            .into_iter()
            .filter(Request::is_write)
            .partition(|request| request.resource == "coordination.k8s.io/leases");
        // A volume has no namespace, and the UID of its Dataset in its name.
        writes.retain(|request| {
            request.namespace == self.namespace || self.uids.iter().any(|uid| request.name.contains(uid))
        });
        (leases.len(), writes)
    }
}
