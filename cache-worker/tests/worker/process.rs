//! The program itself.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use millrace_control::proto;
use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::server::S3Server;
use tokio::time::Instant;

use crate::cluster::{
    BUCKET, Cluster, MIB, Running, body, client, config, control_key, data_key, membership, read,
};

fn command(dir: &Path) -> Command {
    let key = |name: &str, key: &millrace_api::keys::Key| {
        let path = dir.join(name);
        std::fs::write(&path, key.to_hex()).unwrap();
        path
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_cache-worker"));
    command
        .args([
            "serve",
            "--name",
            "w-0",
            "--dataset-uid",
            "uid",
            "--memory-limit",
            "512Mi",
            "--free-space-floor",
            "0",
        ])
        .env("MILLRACE_DATA_ADDRESS", "127.0.0.1:0")
        .args(["--control-address", "127.0.0.1:0", "--admin-address", "127.0.0.1:0"])
        .arg("--data-key-file")
        .arg(key("data", &data_key()))
        .arg("--control-key-file")
        .arg(key("control", &control_key()))
        .arg("--state-dir")
        .arg(dir.join("state"))
        .arg("--addresses-file")
        .arg(dir.join("addresses"))
        .arg("--tier")
        .arg(format!("medium=Disk,dir={},quota=1Gi", dir.join("tier").display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Ends the process also when the test fails.
pub struct Process(Option<Child>);

impl Process {
    pub fn of(child: Child) -> Self {
        Self(Some(child))
    }

    pub fn terminate(mut self) -> Output {
        let child = self.0.take().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        child.wait_with_output().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What the program has written to the file `addresses` in a folder.
pub async fn addresses(dir: &Path) -> serde_json::Value {
    let deadline = Instant::now() + Duration::from_secs(15);
    loop {
        if let Ok(bytes) = std::fs::read(dir.join("addresses")) {
            return serde_json::from_slice(&bytes).unwrap();
        }
        assert!(Instant::now() < deadline, "the worker does not serve");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_in_the_midst_of_work_ends_the_program_soon_and_nothing_is_lost() {
    let objects = InMemory::new().with("a", body("a", 32 * MIB));
    let s3 = S3Server::builder().bucket(BUCKET, &objects).start().await.unwrap();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let process = Process::of(command(dir.path()).spawn().unwrap());
    let found = addresses(dir.path()).await;
    let mut control =
        millrace_control::client::client(found["control"].as_str().unwrap(), control_key()).unwrap();
    let source = crate::cluster::source(&s3);
    let request = proto::MakeIndexRequest { sources: vec![source], block_size_bytes: MIB };
    let mut steps = control.make_index(request).await.unwrap().into_inner();
    let mut version = String::new();
    while let Some(step) = steps.message().await.unwrap() {
        if let Some(proto::make_index_progress::Step::Made(made)) = step.step {
            version = made.version;
        }
    }
    s3.set_faults(FaultPlan::default().with_rates(None, Some(8_000_000))).unwrap();
    let action = proto::warm_request::Action::Start.into();
    control.warm(proto::WarmRequest { action, version: version.clone(), paths: Vec::new() }).await.unwrap();
    // A status stream is open, and some of the data is there, when the signal comes.
    let mut status = control.status(proto::StatusRequest {}).await.unwrap().into_inner();
    while let Some(now) = status.message().await.unwrap() {
        if now.store.unwrap().bytes > 4 * MIB {
            break;
        }
    }
    let started = Instant::now();
    let output = process.terminate();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {log}", output.status);
    assert!(started.elapsed() < Duration::from_secs(5), "took {:?}", started.elapsed());
    let received = s3.counters().body_bytes;
    s3.clear_faults();
    s3.reset_counters();
    let again = Running::start(&config("w-0", dir.path(), 1 << 30), Arc::clone(&dir)).await;
    let version = version.parse().unwrap();
    let warm_ups = Arc::clone(&again.worker.warm_ups);
    crate::cluster::until("the warm-up goes on and ends", || {
        warm_ups.now(&version, 0).state == millrace_cache_worker::warm::ledger::State::Done
    })
    .await;
    let asked = s3.counters().body_bytes;
    assert!(asked + received < 36 * MIB, "{received} bytes before the stop and {asked} after it");
    let served = again.worker.versions.get(&version).unwrap();
    let client = client(membership(1, std::slice::from_ref(&again)));
    let deadline = Instant::now() + Duration::from_secs(10);
    assert!(read(&client, &served, "a", deadline).await.unwrap() == body("a", 32 * MIB));
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_and_a_foreign_state_folder_end_the_program_with_the_cure() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let output = command(dir.path()).env("MILLRACE_DATA_ADDRESS", &address).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && log.contains(&address) && log.contains("choose another"), "{log}");
    std::fs::write(dir.path().join("state/worker.json"), r#"{"dataset_uid": "another"}"#).unwrap();
    let output = command(dir.path()).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && log.contains("another") && log.contains("--state-dir"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_tier_serves_as_a_disk_does() {
    let objects = InMemory::new().with("a", body("a", 2 * MIB));
    let cluster = Cluster::of(objects).await;
    let dir = Arc::new(tempfile::tempdir_in("/dev/shm").unwrap());
    let mut config = config("w-0", dir.path(), 64 * MIB);
    config.tiers[0].medium = millrace_store::Medium::Memory;
    let memory = Running::start(&config, dir).await;
    memory.worker.set_membership(membership(3, std::slice::from_ref(&memory)));
    let version = crate::cluster::make_index(&memory, &cluster.s3, MIB).await.unwrap();
    let served = memory.worker.versions.get(&version).unwrap();
    let client = client(membership(3, std::slice::from_ref(&memory)));
    for round in 0..2 {
        let deadline = Instant::now() + Duration::from_secs(10);
        assert!(read(&client, &served, "a", deadline).await.unwrap() == body("a", 2 * MIB));
        let store = memory.worker.fetcher.store.clone();
        crate::cluster::until("all is kept", || store.stats().written_chunks == 32).await;
        assert_eq!(cluster.s3.counters().body_bytes, 2 * MIB, "round {round}");
    }
    memory.stop().await;
    cluster.stop().await;
}
