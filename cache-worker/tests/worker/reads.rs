//! Reads of what is there and what is not.

use std::sync::Arc;
use std::time::Duration;

use millrace_api::wire::ErrorCode;
use millrace_cache_worker::metrics::From;
use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::target::Operation;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cluster::{
    Cluster, MIB, Running, body, client, config, membership, read, read_want, until, use_version, want,
};

fn large_and_small() -> (InMemory, Vec<(String, u64)>) {
    let mut files: Vec<(String, u64)> = vec![("large/a".into(), 9 * MIB + 77), ("large/b".into(), MIB)];
    files.extend((0..60).map(|i| (format!("small/{i:02}"), 1 + i * 9973)));
    files.push(("empty".into(), 0));
    let objects =
        files.iter().fold(InMemory::new(), |objects, (key, len)| objects.with(key, body(key, *len)));
    (objects, files)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_byte_is_right_and_asked_for_once_by_many_clients_at_once() {
    let (objects, files) = large_and_small();
    let cluster = Arc::new(Cluster::with(objects, 3, 1 << 30).await);
    let membership = membership(1, &cluster.workers);
    let mut readers = JoinSet::new();
    for reader in 0..6usize {
        let (cluster, mut files) = (Arc::clone(&cluster), files.clone());
        let client = client(membership.clone());
        let shift = reader * 11 % files.len();
        files.rotate_left(shift);
        readers.spawn(async move {
            for (key, len) in files {
                let deadline = Instant::now() + Duration::from_secs(30);
                let bytes = read(&client, &cluster.served(), &key, deadline).await.unwrap();
                assert!(bytes == body(&key, len), "{key} differs");
            }
        });
    }
    while let Some(reader) = readers.join_next().await {
        reader.unwrap();
    }
    let total: u64 = files.iter().map(|(_, len)| len).sum();
    let asked = cluster.s3.counters().body_bytes;
    let found: Vec<_> = cluster.workers.iter().map(|running| &running.worker.fetcher.metrics).collect();
    let again: u64 = found.iter().map(|metrics| metrics.overtaken_chunks.get()).sum();
    let twice: u64 = found.iter().map(|metrics| metrics.duplicate_chunks.get()).sum();
    assert!(
        asked as f64 <= total as f64 * 1.02,
        "{asked} bytes asked for, {total} there; {again} chunks overtaken, {twice} there twice"
    );
    Arc::into_inner(cluster).unwrap().stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_read_comes_from_the_store() {
    let cluster = Cluster::of(InMemory::new().with("a", body("a", 3 * MIB))).await;
    assert_eq!(cluster.read("a").await.unwrap(), body("a", 3 * MIB));
    let store = cluster.workers[0].worker.fetcher.store.clone();
    until("all chunks are written", || store.stats().written_chunks == 48).await;
    let before = cluster.s3.counters().requests_of(Operation::GetObject);
    assert_eq!(cluster.read("a").await.unwrap(), body("a", 3 * MIB));
    assert_eq!(cluster.s3.counters().requests_of(Operation::GetObject), before);
    assert!(cluster.workers[0].worker.fetcher.metrics.chunks_sent(From::Hit) >= 48);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_random_read_is_answered_by_its_own_chunk_and_the_block_follows() {
    let cluster = Cluster::of(InMemory::new().with("a", body("a", 32 * MIB))).await;
    // 4 MB/s: the whole block takes a quarter of a second, its one chunk 16 ms.
    cluster.s3.set_faults(FaultPlan::default().with_rates(Some(4_000_000), None)).unwrap();
    let started = Instant::now();
    let bytes = cluster.read_chunks("a", 160 + 7..160 + 8).await.unwrap();
    let took = started.elapsed();
    assert!(bytes == body("a", 32 * MIB)[167 * 65536..168 * 65536]);
    assert!(took < Duration::from_millis(150), "took {took:?}");
    let file = want(&cluster.served(), "a", 160..161).span.file;
    let store = cluster.workers[0].worker.fetcher.store.clone();
    until("the rest of the block follows", || store.block_chunks_present(&file, 10) == 16).await;
    assert_eq!(store.present(&file, 0..file.slots).count(), 16, "and nothing else");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_wanted_object_does_not_wait_for_its_pack_and_the_pack_follows() {
    let keys: Vec<String> = (0..9).map(|i| format!("p/{i}")).collect();
    let objects = keys.iter().fold(InMemory::new(), |objects, key| objects.with(key, body(key, 100_000)));
    let cluster = Cluster::of(objects).await;
    cluster.s3.set_faults(FaultPlan::default().with_rates(None, Some(2_000_000))).unwrap();
    let started = Instant::now();
    assert_eq!(cluster.read("p/5").await.unwrap(), body("p/5", 100_000));
    assert!(started.elapsed() < Duration::from_millis(250), "took {:?}", started.elapsed());
    let span = want(&cluster.served(), "p/5", 0..1).span;
    let store = cluster.workers[0].worker.fetcher.store.clone();
    until("the pack is complete", || store.complete(&span.file)).await;
    assert!(cluster.s3.counters().body_bytes <= 918_000, "each object once");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_own_a_block_reads_it_through() {
    let cluster = Cluster::with(InMemory::new().with("a", body("a", 4 * MIB)), 2, 1 << 30).await;
    let all = membership(1, &cluster.workers);
    let wanted = want(&cluster.served(), "a", 0..16);
    let owner = all.owner(wanted.placement).unwrap();
    let other = &cluster.workers[1 - owner];
    let mut alone = membership(1, std::slice::from_ref(other));
    alone.epoch = 1;
    let client = client(alone);
    let deadline = Instant::now() + Duration::from_secs(20);
    let bytes = read_want(&client, cluster.version, wanted.clone(), deadline).await.unwrap();
    assert!(bytes == body("a", 4 * MIB)[..MIB as usize]);
    let store = other.worker.fetcher.store.clone();
    until("the chunks are kept as read through", || store.usage().tiers[0].read_through_bytes > 0).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_serves_without_keeping_and_asks_only_for_what_is_wanted() {
    let cluster = Cluster::with(InMemory::new().with("a", body("a", 8 * MIB)), 1, MIB).await;
    assert_eq!(cluster.read("a").await.unwrap(), body("a", 8 * MIB));
    let before = cluster.s3.counters().body_bytes;
    let bytes = cluster.read_chunks("a", 100..101).await.unwrap();
    assert!(bytes == body("a", 8 * MIB)[100 * 65536..101 * 65536]);
    assert!(cluster.s3.counters().body_bytes - before <= 65536);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_large_reads_end_with_little_memory_and_a_full_store() {
    let keys: Vec<String> = (0..12).map(|i| format!("l/{i}")).collect();
    let objects = keys.iter().fold(InMemory::new(), |objects, key| objects.with(key, body(key, 4 * MIB)));
    let cluster = Cluster::with(objects, 1, MIB).await;
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mut config = config("w-0", dir.path(), MIB);
    // An eighth of it is for chunks on their way: 8 MiB for 48 MiB that are read at once.
    config.memory_limit_bytes = Some(64 * MIB);
    let small = Running::start(&config, dir).await;
    let version = crate::cluster::make_index(&small, &cluster.s3, 8 * MIB).await.unwrap();
    let served = small.worker.versions.get(&version).unwrap();
    let client = client(membership(1, std::slice::from_ref(&small)));
    let mut readers = JoinSet::new();
    for key in keys {
        let (client, served) = (client.clone(), Arc::clone(&served));
        readers.spawn(async move {
            let deadline = Instant::now() + Duration::from_secs(20);
            assert!(read(&client, &served, &key, deadline).await.unwrap() == body(&key, 4 * MIB));
        });
    }
    while let Some(reader) = readers.join_next().await {
        reader.unwrap();
    }
    small.stop().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_worker_has_its_blocks_index_and_membership() {
    let cluster = Cluster::of(InMemory::new().with("a", body("a", 2 * MIB)).with("b", body("b", 5000))).await;
    for (key, len) in [("a", 2 * MIB), ("b", 5000)] {
        assert_eq!(cluster.read(key).await.unwrap(), body(key, len));
    }
    let store = cluster.workers[0].worker.fetcher.store.clone();
    until("all is written", || store.stats().written_chunks == 33).await;
    drop(store);
    let Cluster { s3, workers, version, .. } = cluster;
    let dir = workers.into_iter().next().unwrap().stop().await;
    s3.reset_counters();
    let again = Running::start(&config("w-0", dir.path(), 1 << 30), Arc::clone(&dir)).await;
    let served = again.worker.versions.get(&version).expect("the index is taken up");
    assert_eq!(again.worker.members.current().epoch, 1);
    let client = client(membership(1, std::slice::from_ref(&again)));
    for (key, len) in [("a", 2 * MIB), ("b", 5000)] {
        let deadline = Instant::now() + Duration::from_secs(10);
        assert_eq!(read(&client, &served, key, deadline).await.unwrap(), body(key, len));
    }
    assert_eq!(s3.counters().requests_of(Operation::GetObject), 0);
    assert_eq!(again.worker.fetcher.store.stats().written_chunks, 0);
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_contradict_the_index_are_refused() {
    let cluster = Cluster::of(InMemory::new().with("a", body("a", 2 * MIB))).await;
    let good = want(&cluster.served(), "a", 0..1);
    let deadline = || Instant::now() + Duration::from_secs(3);
    let mut wrong = good.clone();
    wrong.span.file.content.0[0] ^= 1;
    let error = read_want(&cluster.client, cluster.version, wrong, deadline()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::BadRequest);
    let mut past = good.clone();
    past.file = 7;
    let error = read_want(&cluster.client, cluster.version, past, deadline()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_an_older_epoch_learns_the_newer_membership() {
    let cluster = Cluster::of(InMemory::new().with("a", body("a", 2 * MIB))).await;
    let newer = membership(9, &cluster.workers);
    cluster.workers[0].worker.set_membership(newer.clone());
    assert_eq!(cluster.read("a").await.unwrap(), body("a", 2 * MIB));
    let mut known = cluster.client.membership();
    tokio::time::timeout(Duration::from_secs(5), known.wait_for(|known| known.epoch == 9))
        .await
        .unwrap()
        .unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_that_are_no_longer_used_are_dropped() {
    let cluster = Cluster::of(InMemory::new().with("a", body("a", 2 * MIB))).await;
    cluster.read("a").await.unwrap();
    cluster.objects.put("b", body("b", MIB));
    let second = crate::cluster::make_index(&cluster.workers[0], &cluster.s3, MIB).await.unwrap();
    assert_ne!(second, cluster.version);
    use_version(&cluster.workers[0], second, Vec::new()).await;
    assert!(cluster.workers[0].worker.versions.get(&cluster.version).is_none());
    let client = client(membership(1, &cluster.workers));
    let served = cluster.workers[0].worker.versions.get(&second).unwrap();
    let before = cluster.s3.counters().body_bytes;
    let deadline = Instant::now() + Duration::from_secs(10);
    assert_eq!(read(&client, &served, "a", deadline).await.unwrap(), body("a", 2 * MIB));
    assert_eq!(cluster.s3.counters().body_bytes, before, "unchanged objects are shared by versions");
    cluster.stop().await;
}
