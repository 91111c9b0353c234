//! What a worker meets in a cluster: settings and mounts of nodes, Secrets that come late, origins that fail.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millrace_api::dataset::credentials as names;
use millrace_api::ids::VersionId;
use millrace_api::mount::{Announce, MountMode, MountSettings, Pod};
use millrace_control::proto;
use millrace_control::proto::make_index_progress::Step;
use millrace_s3_server::auth::{Access, Credentials};
use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::outage::OutageMode;
use millrace_s3_server::server::S3Server;
use millrace_transport::client::GetMountSettings;
use tokio::time::Instant;

use crate::cluster::{BUCKET, Cluster, MIB, Running, body, client, config, membership, source, until};
use crate::steering::get;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

async fn status(worker: &Running) -> proto::WorkerStatus {
    let mut stream = worker.control().status(proto::StatusRequest {}).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap()
}

/// Follows the status until something shows in it.
async fn shows(worker: &Running, what: &str, is_so: impl Fn(&proto::WorkerStatus) -> bool) {
    let mut stream = worker.control().status(proto::StatusRequest {}).await.unwrap().into_inner();
    let follow = async {
        while let Some(now) = stream.message().await.unwrap() {
            if is_so(&now) {
                return;
            }
        }
        panic!("the stream ended");
    };
    tokio::time::timeout(Duration::from_secs(20), follow).await.expect(what);
}

async fn use_versions(
    worker: &Running,
    version: VersionId,
    mount: Option<proto::MountSettings>,
) -> Result<(), tonic::Status> {
    let versions = vec![version.to_string()];
    let request = proto::UseVersionsRequest { versions, sources: Vec::new(), mount };
    worker.control().use_versions(request).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_told_how_to_mount_once_it_is_said_and_after_a_restart() {
    let cluster = Cluster::of(InMemory::new().with("a", body("a", MIB))).await;
    let (worker, version) = (&cluster.workers[0], cluster.version);
    let deadline = Instant::now() + Duration::from_millis(300);
    assert_eq!(cluster.client.mount_settings(deadline).await, Err(GetMountSettings::NotIndexed));
    let settings = MountSettings {
        version,
        node_cache_quota_bytes: 50 << 30,
        uid: 1000,
        gid: 100,
        file_mode: 0o440,
        dir_mode: 0o550,
        mode: MountMode::Packed,
    };
    let said = proto::MountSettings::from(&settings);
    use_versions(worker, version, Some(said.clone())).await.unwrap();
    assert_eq!(cluster.client.mount_settings(soon()).await, Ok(settings));
    use_versions(worker, version, None).await.unwrap();
    assert_eq!(cluster.client.mount_settings(soon()).await, Ok(settings), "nothing else was said");
    let other = proto::MountSettings { version: "ab".repeat(16), ..said.clone() };
    let refused = use_versions(worker, version, Some(other)).await.unwrap_err();
    assert!(refused.message().contains("not among those to use"), "{refused}");
    let wrong = proto::MountSettings { file_mode: 0o7777, ..said };
    assert!(use_versions(worker, version, Some(wrong)).await.unwrap_err().message().contains("file_mode"));

    let Cluster { s3, mut workers, .. } = cluster;
    let dir = workers.remove(0).stop().await;
    let again = Running::start(&config("w-0", dir.path(), 1 << 30), Arc::clone(&dir)).await;
    let client = client(membership(2, std::slice::from_ref(&again)));
    assert_eq!(client.mount_settings(soon()).await, Ok(settings));
    drop(client);
    again.stop().await;
    s3.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_lists_who_mounts_as_long_as_it_is_connected() {
    let cluster = Cluster::with(InMemory::new().with("a", body("a", MIB)), 2, 1 << 30).await;
    let node = client(membership(1, &cluster.workers));
    let pod = Pod { namespace: "vision".into(), name: "train-0".into(), uid: "6e9f".into() };
    node.announce(Announce::new("node-7".into(), cluster.version, vec![pod.clone()]));
    for worker in &cluster.workers {
        shows(worker, "the mount is listed", |now| now.session_count == 1).await;
        let session = status(worker).await.sessions.remove(0);
        assert_eq!((session.node.as_str(), session.version), ("node-7", cluster.version.to_string()));
        assert_eq!((session.pods, session.pod_count), (vec![proto::Pod::from(&pod)], 1));
        assert!(session.since_ms > 1_600_000_000_000);
    }
    drop(node);
    for worker in &cluster.workers {
        shows(worker, "the mount is gone", |now| now.session_count == 0).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_shows_in_the_status_until_the_first_answer() {
    let cluster = Cluster::of(InMemory::new().with("a", body("a", MIB))).await;
    let worker = &cluster.workers[0];
    assert_eq!(status(worker).await.origin_trouble, None);
    cluster.s3.begin_outage(OutageMode::Refuse, Duration::from_secs(60));
    let reading = async { cluster.read("a").await.unwrap() };
    let ending = async {
        shows(worker, "the outage is told", |now| now.origin_trouble.is_some()).await;
        let trouble = status(worker).await.origin_trouble.unwrap();
        assert_eq!(trouble.reason, "Refused");
        assert!(trouble.message.contains(&cluster.s3.endpoint()) && trouble.since_ms > 0, "{trouble:?}");
        cluster.s3.end_outage();
    };
    assert!(tokio::join!(reading, ending).0 == body("a", MIB));
    assert_eq!(status(worker).await.origin_trouble, None);
    cluster.stop().await;
}

fn put_keys(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(names::ACCESS_KEY_ID), "AKIDNODE7").unwrap();
    std::fs::write(folder.join(names::SECRET_ACCESS_KEY), "secret").unwrap();
}

/// An S3 server that wants a signature, and a worker whose credentials are in a folder `imagenet-s3`.
async fn signed() -> (S3Server, Running, proto::Source) {
    let objects = InMemory::new().with("a", body("a", MIB));
    let access = Access::signed(Credentials::new("AKIDNODE7", "secret"));
    let s3 = S3Server::builder().bucket(BUCKET, &objects).access(access).start().await.unwrap();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mut config = config("w-0", dir.path(), 1 << 30);
    config.credentials_dir = Some(dir.path().join("credentials"));
    let worker = Running::start(&config, dir).await;
    let source = proto::Source { anonymous: false, credentials: "imagenet-s3".into(), ..source(&s3) };
    (s3, worker, source)
}

async fn make_index(worker: &Running, source: &proto::Source) -> Result<VersionId, proto::Failure> {
    let request = proto::MakeIndexRequest { sources: vec![source.clone()], block_size_bytes: MIB };
    let mut steps = worker.control().make_index(request).await.unwrap().into_inner();
    while let Some(step) = steps.message().await.unwrap() {
        match step.step.unwrap() {
            Step::Listing(_) => {}
            Step::Made(made) => return Ok(made.version.parse().unwrap()),
            Step::Failed(failed) => return Err(failed),
        }
    }
    panic!("the stream ended without a result");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_its_secret_serves_and_goes_on_when_the_files_come() {
    let (s3, worker, source) = signed().await;
    assert!(
        get(worker.addresses.admin, "/readyz").await.starts_with("HTTP/1.1 200"),
        "it is ready all the same"
    );
    let folder = worker.dir.path().join("credentials/imagenet-s3");
    let failed = make_index(&worker, &source).await.unwrap_err();
    assert_eq!(failed.reason, "Credentials");
    let names_all = |message: &str| {
        message.contains(folder.to_str().unwrap())
            && message.contains("Secret \"imagenet-s3\"")
            && message.contains(names::ACCESS_KEY_ID)
    };
    assert!(names_all(&failed.message), "{}", failed.message);
    let trouble = status(&worker).await.origin_trouble.unwrap();
    assert!(trouble.reason == "Credentials" && names_all(&trouble.message), "{trouble:?}");
    // As kubelet mounts an optional Secret that is not there: an empty folder.
    std::fs::create_dir_all(&folder).unwrap();
    assert!(names_all(&make_index(&worker, &source).await.unwrap_err().message));
    std::fs::write(folder.join(names::ACCESS_KEY_ID), "AKIDNODE7").unwrap();
    let failed = make_index(&worker, &source).await.unwrap_err();
    assert!(failed.message.contains(names::SECRET_ACCESS_KEY), "{}", failed.message);

    put_keys(&folder);
    let version = make_index(&worker, &source).await.unwrap();
    assert_eq!(status(&worker).await.origin_trouble, None);
    let served = worker.worker.versions.get(&version).unwrap();
    let client = client(membership(1, std::slice::from_ref(&worker)));
    assert!(crate::cluster::read(&client, &served, "a", soon()).await.unwrap() == body("a", MIB));
    worker.stop().await;
    s3.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_restarts_with_broken_certificates_serves_and_takes_them_up_once_sound() {
    let (s3, worker, source) = signed().await;
    let credentials = worker.dir.path().join("credentials");
    let folder = credentials.join("imagenet-s3");
    put_keys(&folder);
    let version = make_index(&worker, &source).await.unwrap();
    let dir = worker.stop().await;
    let ca = folder.join(names::CA);
    // Certificates count for https only: the bucket here is reached without, so the worker is what refuses them.
    std::fs::create_dir(&ca).unwrap();
    let mut config = config("w-0", dir.path(), 1 << 30);
    config.credentials_dir = Some(credentials);
    let again = Running::start(&config, Arc::clone(&dir)).await;
    assert!(again.worker.sources.in_use().is_empty(), "the certificates cannot be read");
    let failed = make_index(&again, &source).await.unwrap_err();
    assert!(failed.message.contains("ca.crt"), "{}", failed.message);
    std::fs::remove_dir(&ca).unwrap();
    until("the sources are in use again", || !again.worker.sources.in_use().is_empty()).await;
    let served = again.worker.versions.get(&version).unwrap();
    let client = client(membership(1, std::slice::from_ref(&again)));
    assert!(crate::cluster::read(&client, &served, "a", soon()).await.unwrap() == body("a", MIB));
    again.stop().await;
    s3.shutdown().await;
}
