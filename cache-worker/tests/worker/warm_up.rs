//! Loading ahead of the readers.

use std::sync::Arc;
use std::time::Duration;

use millrace_cache_worker::warm::WarmUpNow;
use millrace_cache_worker::warm::ledger::State;
use millrace_control::proto;
use millrace_control::proto::warm_request::Action;
use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::target::Operation;
use tokio::time::Instant;

use crate::cluster::{Cluster, MIB, Running, body, config, until};

fn objects() -> InMemory {
    let small = (0..40).fold(InMemory::new(), |objects, i| {
        objects.with(format!("s/{i:02}"), body(&format!("s/{i:02}"), 50_000))
    });
    small.with("l/a", body("l/a", 5 * MIB)).with("l/b", body("l/b", 3 * MIB)).with("empty", Vec::new())
}

const TOTAL: u64 = 8 * MIB + 40 * 50_000;

async fn warm(running: &Running, cluster: &Cluster, action: Action, paths: &[&str]) -> proto::WarmAnswer {
    let request = proto::WarmRequest {
        action: action.into(),
        version: cluster.version.to_string(),
        paths: paths.iter().map(|path| (*path).to_owned()).collect(),
    };
    running.control().warm(request).await.unwrap().into_inner()
}

fn now(running: &Running, cluster: &Cluster) -> WarmUpNow {
    running.worker.warm_ups.now(&cluster.version, 20)
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_together_load_everything_once() {
    let cluster = Cluster::with(objects(), 3, 1 << 30).await;
    for running in &cluster.workers {
        warm(running, &cluster, Action::Start, &[]).await;
    }
    for running in &cluster.workers {
        until("the warm-up is done", || now(running, &cluster).state == State::Done).await;
        let now = now(running, &cluster);
        assert_eq!((now.pending, now.counts.failed, now.counts.bytes_done), (0, 0, now.bytes_total));
    }
    let loaded: u64 = cluster.workers.iter().map(|running| now(running, &cluster).bytes_total).sum();
    assert_eq!(loaded, TOTAL);
    assert_eq!(cluster.s3.counters().body_bytes, TOTAL);
    let before = cluster.s3.counters().requests_of(Operation::GetObject);
    assert!(cluster.read("l/a").await.unwrap() == body("l/a", 5 * MIB));
    assert!(cluster.read("s/33").await.unwrap() == body("s/33", 50_000));
    assert_eq!(cluster.s3.counters().requests_of(Operation::GetObject), before);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chosen_paths_are_loaded_and_unknown_ones_are_named() {
    let cluster = Cluster::of(objects()).await;
    let running = &cluster.workers[0];
    let answer = warm(running, &cluster, Action::Start, &["/l/b", "nowhere"]).await;
    assert_eq!(answer.unknown_paths, ["nowhere"]);
    assert_eq!(now(running, &cluster).state, State::Idle);
    warm(running, &cluster, Action::Start, &["/l/b", "s"]).await;
    until("the warm-up is done", || now(running, &cluster).state == State::Done).await;
    assert_eq!(now(running, &cluster).listed, 41);
    assert_eq!(cluster.s3.counters().body_bytes, 3 * MIB + 40 * 50_000);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_loaded_is_named_and_the_rest_is_loaded() {
    let cluster = Cluster::of(objects()).await;
    cluster.objects.remove("s/07");
    let running = &cluster.workers[0];
    warm(running, &cluster, Action::Start, &[]).await;
    until("the warm-up is done", || now(running, &cluster).state == State::Done).await;
    let now = now(running, &cluster);
    assert_eq!((now.listed, now.counts.done, now.counts.failed), (42, 41, 1));
    assert_eq!((now.failures[0].path.as_str(), now.failures[0].reason.as_str()), ("s/07", "NoSuchKey"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_goes_on_where_it_was_and_loads_nothing_twice() {
    let cluster = Cluster::of(objects()).await;
    cluster.s3.set_faults(FaultPlan::default().with_rates(None, Some(4_000_000))).unwrap();
    warm(&cluster.workers[0], &cluster, Action::Start, &[]).await;
    let store = cluster.workers[0].worker.fetcher.store.clone();
    until("some of it is loaded", || store.stats().written_chunks > 20).await;
    drop(store);
    let Cluster { s3, workers, version, .. } = cluster;
    let dir = workers.into_iter().next().unwrap().stop().await;
    s3.clear_faults();
    let again = Running::start(&config("w-0", dir.path(), 1 << 30), Arc::clone(&dir)).await;
    until("the warm-up is done", || again.worker.warm_ups.now(&version, 0).state == State::Done).await;
    let now = again.worker.warm_ups.now(&version, 0);
    assert_eq!((now.listed, now.counts.done, now.counts.bytes_done), (42, 42, TOTAL));
    assert!(s3.counters().body_bytes < TOTAL + 3 * MIB, "{} of {TOTAL}", s3.counters().body_bytes);
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_warm_up_loads_nothing_and_goes_on_when_started() {
    let cluster = Cluster::of(objects()).await;
    let running = &cluster.workers[0];
    cluster.s3.set_faults(FaultPlan::default().with_first_byte(Duration::from_millis(100))).unwrap();
    warm(running, &cluster, Action::Start, &[]).await;
    let answer = warm(running, &cluster, Action::Pause, &[]).await;
    assert_eq!(answer.warm_up.unwrap().state(), proto::WarmUpState::Paused);
    cluster.s3.clear_faults();
    warm(running, &cluster, Action::Start, &[]).await;
    until("the warm-up is done", || now(running, &cluster).state == State::Done).await;
    assert_eq!(now(running, &cluster).counts.bytes_done, TOTAL);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_ends_a_warm_up_and_says_so() {
    let cluster = Cluster::with(objects(), 1, 2 * MIB).await;
    let running = &cluster.workers[0];
    warm(running, &cluster, Action::Start, &[]).await;
    until("the warm-up ends", || now(running, &cluster).state == State::Full).await;
    assert!(now(running, &cluster).pending > 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_does_not_wait_behind_a_warm_up() {
    let cluster = Cluster::of(objects().with("big", body("big", 64 * MIB))).await;
    cluster.s3.set_faults(FaultPlan::default().with_rates(Some(5_000_000), None)).unwrap();
    warm(&cluster.workers[0], &cluster, Action::Start, &["big"]).await;
    let store = cluster.workers[0].worker.fetcher.store.clone();
    until("the warm-up is under way", || store.stats().written_chunks > 16).await;
    let started = Instant::now();
    assert!(cluster.read("s/11").await.unwrap() == body("s/11", 50_000));
    assert!(started.elapsed() < Duration::from_millis(300), "took {:?}", started.elapsed());
    cluster.stop().await;
}
