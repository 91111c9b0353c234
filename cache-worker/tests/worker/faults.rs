//! What readers see when objects or S3 go wrong.

use std::sync::Arc;
use std::time::Duration;

use millrace_api::wire::ErrorCode;
use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::faults::rule::{Fault, Rule};
use millrace_s3_server::outage::OutageMode;
use millrace_s3_server::target::Operation;
use millrace_transport::Priority;
use tokio::time::Instant;

use crate::cluster::{Cluster, MIB, Running, body, config, membership, read_want, until, want};

fn pack() -> InMemory {
    (0..9)
        .fold(InMemory::new(), |objects, i| objects.with(format!("p/{i}"), body(&format!("p/{i}"), 100_000)))
}

fn failed(cluster: &Cluster) -> usize {
    cluster.workers[0].worker.fetcher.failures.lock().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_object_spoils_only_itself_and_fails_at_once_ever_after() {
    let cluster = Cluster::of(pack()).await;
    cluster.objects.put("p/4", body("other", 100_000));
    let error = cluster.read("p/4").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ObjectChanged);
    assert!(error.to_string().contains("p/4"), "{error}");
    for i in (0..9).filter(|i| *i != 4) {
        let key = format!("p/{i}");
        assert_eq!(cluster.read(&key).await.unwrap(), body(&key, 100_000));
    }
    let before = cluster.s3.counters().requests_of(Operation::GetObject);
    let started = Instant::now();
    for _ in 0..20 {
        assert_eq!(cluster.read("p/4").await.unwrap_err().code(), ErrorCode::ObjectChanged);
    }
    assert!(started.elapsed() < Duration::from_millis(500));
    assert_eq!(cluster.s3.counters().requests_of(Operation::GetObject), before, "nothing is asked again");
    assert_eq!(failed(&cluster), 1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_chunks_of_the_indexed_version_still_read_after_the_object_changed() {
    let cluster = Cluster::of(InMemory::new().with("a", body("a", 4 * MIB))).await;
    cluster.read_chunks("a", 0..16).await.unwrap();
    let store = cluster.workers[0].worker.fetcher.store.clone();
    until("the block is kept", || store.stats().written_chunks == 16).await;
    cluster.objects.put("a", body("other", 4 * MIB));
    let cached = cluster.read_chunks("a", 0..16).await.unwrap();
    assert!(cached == body("a", 4 * MIB)[..MIB as usize]);
    assert_eq!(cluster.read_chunks("a", 20..21).await.unwrap_err().code(), ErrorCode::ObjectChanged);
    assert!(cluster.read_chunks("a", 0..16).await.is_ok());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_denied_and_archived_objects_are_told_apart() {
    let cluster = Cluster::of(pack()).await;
    cluster.objects.remove("p/1");
    let denied = Fault::Error { status: 403, code: "AccessDenied".into(), message: String::new() };
    let archived = Fault::Error { status: 403, code: "InvalidObjectState".into(), message: String::new() };
    let plan =
        FaultPlan::default().rule(Rule::from(denied).keys("p/2")).rule(Rule::from(archived).keys("p/3"));
    cluster.s3.set_faults(plan).unwrap();
    for (key, code) in
        [("p/1", ErrorCode::ObjectGone), ("p/2", ErrorCode::OriginDenied), ("p/3", ErrorCode::Archived)]
    {
        assert_eq!(cluster.read(key).await.unwrap_err().code(), code, "{key}");
    }
    assert_eq!(cluster.read("p/5").await.unwrap(), body("p/5", 100_000));
    assert_eq!(failed(&cluster), 3);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_wait_through_an_outage_and_cached_data_reads_on() {
    let cluster = Cluster::of(InMemory::new().with("a", body("a", 4 * MIB))).await;
    cluster.read_chunks("a", 0..16).await.unwrap();
    let store = cluster.workers[0].worker.fetcher.store.clone();
    until("the block is kept", || store.stats().written_chunks == 16).await;
    cluster.s3.begin_outage(OutageMode::Refuse, Duration::from_secs(2));
    let started = Instant::now();
    let cached = cluster.read_chunks("a", 0..16).await.unwrap();
    assert!(started.elapsed() < Duration::from_millis(500) && cached.len() as u64 == MIB);
    assert_eq!(cluster.read("a").await.unwrap(), body("a", 4 * MIB));
    assert!(started.elapsed() >= Duration::from_millis(1500), "it did wait");
    assert_eq!(failed(&cluster), 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_beyond_the_deadline_is_an_error_and_the_next_read_recovers() {
    let cluster = Cluster::of(InMemory::new().with("a", body("a", MIB))).await;
    cluster.s3.begin_outage(OutageMode::Refuse, Duration::from_secs(60));
    let started = Instant::now();
    let error = cluster.read_within("a", Duration::from_secs(2)).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(4), "{error}");
    cluster.s3.end_outage();
    assert_eq!(cluster.read("a").await.unwrap(), body("a", MIB));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_answers_wrongly_for_a_while_costs_time_and_nothing_else() {
    let cluster = Cluster::of(pack()).await;
    let teapot = Fault::Error { status: 418, code: "Teapot".into(), message: String::new() };
    // More in a row than one request to the origin is tried.
    let plan =
        FaultPlan::default().rule(Rule::from(teapot).operation(Operation::GetObject).keys("p/3").count(10));
    cluster.s3.set_faults(plan).unwrap();
    for i in 0..9 {
        let key = format!("p/{i}");
        assert_eq!(cluster.read(&key).await.unwrap(), body(&key, 100_000), "{key}");
    }
    assert_eq!(cluster.s3.counters().faults, [10]);
    assert_eq!(failed(&cluster), 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_always_answers_wrongly_is_given_up_within_seconds() {
    let cluster = Cluster::of(pack().with("large", body("large", 4 * MIB))).await;
    let teapot = Fault::Error { status: 418, code: "Teapot".into(), message: String::new() };
    let plan = FaultPlan::default()
        .rule(Rule::from(Fault::WrongRange).operation(Operation::GetObject).keys("large"))
        .rule(Rule::from(teapot).operation(Operation::GetObject).keys("p/3"));
    cluster.s3.set_faults(plan).unwrap();
    for key in ["large", "p/3"] {
        let started = Instant::now();
        let error = cluster.read_chunks(key, 0..1).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::OriginUnavailable);
        assert!(error.to_string().contains(key), "{error}");
        let took = started.elapsed();
        assert!(took > Duration::from_secs(3) && took < Duration::from_secs(15), "{key}: {took:?}");
        let again = Instant::now();
        cluster.read_chunks(key, 0..1).await.unwrap_err();
        assert!(again.elapsed() < Duration::from_secs(1), "remembered");
    }
    assert_eq!(cluster.read("p/5").await.unwrap(), body("p/5", 100_000));
    assert_eq!(failed(&cluster), 2);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_bodies_and_503s_cost_time_and_nothing_else() {
    let objects = pack().with("large", body("large", 6 * MIB));
    let cluster = Cluster::of(objects).await;
    let plan = FaultPlan { seed: 7, ..FaultPlan::default() }
        .rule(Rule::from(Fault::SlowDown).operation(Operation::GetObject).probability(0.3))
        .rule(Rule::from(Fault::Truncate { after: "30KiB".parse().unwrap() }).probability(0.2))
        .rule(Rule::from(Fault::Reset { after: "90KiB".parse().unwrap() }).probability(0.2));
    cluster.s3.set_faults(plan).unwrap();
    assert!(cluster.read("large").await.unwrap() == body("large", 6 * MIB));
    for i in 0..9 {
        let key = format!("p/{i}");
        assert!(cluster.read(&key).await.unwrap() == body(&key, 100_000));
    }
    assert_eq!(failed(&cluster), 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_damaged_in_the_store_is_fetched_again() {
    let cluster = Cluster::of(InMemory::new().with("a", body("a", 2 * MIB))).await;
    cluster.read("a").await.unwrap();
    let store = cluster.workers[0].worker.fetcher.store.clone();
    until("all is kept", || store.stats().written_chunks == 32).await;
    flip_a_byte(&cluster.workers[0].dir.path().join("tier"), &body("a", 2 * MIB)[..64]);
    assert!(cluster.read("a").await.unwrap() == body("a", 2 * MIB));
    assert!(store.stats().corrupt_chunks >= 1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_damaged_under_a_killed_worker_is_fetched_again_from_a_peer() {
    let cluster = Cluster::with(InMemory::new().with("a", body("a", MIB)), 2, 1 << 30).await;
    let Cluster { s3, mut workers, version, .. } = cluster;
    let dir = workers.remove(0).stop().await;
    let path = dir.path().join(format!("state/indexes/{version}.idx"));
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    // What a killed process leaves.
    std::fs::write(dir.path().join("state/indexes/serving.999999999"), "").unwrap();
    let again = Running::start(&config("w-0", dir.path(), 1 << 30), Arc::clone(&dir)).await;
    until("the index is there again", || again.worker.versions.get(&version).is_some()).await;
    let served = again.worker.versions.get(&version).unwrap();
    assert!(served.index().verify().is_ok());
    drop(served);
    again.stop().await;
    for running in workers {
        running.stop().await;
    }
    s3.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_rotted_while_the_worker_was_down_is_fetched_again() {
    let cluster = Cluster::with(InMemory::new().with("a", body("a", MIB)), 2, 1 << 30).await;
    let Cluster { s3, mut workers, version, .. } = cluster;
    let dir = workers.remove(0).stop().await;
    let path = dir.path().join(format!("state/indexes/{version}.idx"));
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let again = Running::start(&config("w-0", dir.path(), 1 << 30), Arc::clone(&dir)).await;
    until("the index is there again", || again.worker.versions.get(&version).is_some()).await;
    assert!(again.worker.versions.get(&version).unwrap().index().verify().is_ok());
    again.stop().await;
    for running in workers {
        running.stop().await;
    }
    s3.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_is_fetched_from_a_peer_that_came_back_at_another_address() {
    let cluster = Cluster::with(InMemory::new().with("a", body("a", MIB)), 2, 1 << 30).await;
    let Cluster { s3, workers, version, .. } = cluster;
    let mut dirs = Vec::new();
    for worker in workers {
        dirs.push(worker.stop().await);
    }
    std::fs::remove_file(dirs[0].path().join(format!("state/indexes/{version}.idx"))).unwrap();
    let mut again = Vec::new();
    for (number, dir) in dirs.into_iter().enumerate() {
        let name = format!("w-{number}");
        again.push(Running::start(&config(&name, dir.path(), 1 << 30), Arc::clone(&dir)).await);
    }
    // The fetch has begun with the addresses of the time before.
    again[0].worker.set_membership(membership(2, &again));
    until("the index is there", || again[0].worker.versions.get(&version).is_some()).await;
    for running in again {
        running.stop().await;
    }
    s3.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_ahead_has_its_turn_though_readers_fill_the_window() {
    let objects = InMemory::new().with("ahead", body("ahead", MIB)).with("busy", body("busy", 64 * MIB));
    let cluster = Cluster::of(objects).await;
    let plan = FaultPlan { seed: 7, ..FaultPlan::default() }
        .with_first_byte(Duration::from_millis(100))
        .rule(Rule::from(Fault::SlowDown).operation(Operation::GetObject).probability(0.3));
    cluster.s3.set_faults(plan).unwrap();
    let (version, deadline) = (cluster.served(), Instant::now() + Duration::from_secs(60));
    // Each misses alone, and all of them together want several times what the window lets through.
    let mut readers = tokio::task::JoinSet::new();
    for number in 0..32 {
        let (client, id, version) = (cluster.client.clone(), cluster.version, Arc::clone(&version));
        readers.spawn(async move {
            for chunk in (number..1024).step_by(32) {
                let want = want(&version, "busy", chunk..chunk + 1);
                read_want(&client, id, want, deadline).await.unwrap();
            }
        });
    }
    let window = Arc::clone(cluster.workers[0].worker.sources.window());
    until("readers wait", || window.now().foreground_waiting > 8).await;
    let mut stream = cluster.client.read(
        cluster.version,
        want(&version, "ahead", 0..16),
        Instant::now() + Duration::from_secs(5),
        Priority::Prefetch,
    );
    while let Some(chunk) = stream.next().await {
        chunk.unwrap();
    }
    assert!(window.now().foreground_waiting > 0, "the readers were done too soon to show anything");
    drop(stream);
    readers.shutdown().await;
    cluster.stop().await;
}

/// Changes the byte after `start` in the file of the tier that begins with it.
fn flip_a_byte(dir: &std::path::Path, start: &[u8]) {
    use std::os::unix::fs::FileExt;
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let mut found = vec![0; start.len()];
            if file.read_exact_at(&mut found, 0).is_ok() && found == start {
                file.write_all_at(&[!found[7]], 7).unwrap();
                return;
            }
        }
    }
    panic!("no store file begins with the object's bytes");
}
