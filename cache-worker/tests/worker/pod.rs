//! The program as a pod runs it: read-only root, identity by environment, its name by the pod's.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use millrace_control::proto;
use millrace_control::proto::make_index_progress::Step;
use millrace_s3_server::auth::Access;
use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::server::S3Server;
use millrace_s3_server::sts::StsConfig;
use tokio::time::Instant;

use crate::cluster::{BUCKET, MIB, body, control_key, data_key, source};
use crate::process::{Process, addresses};

const ROLE: &str = "arn:aws:iam::123456789012:role/reader";

/// The arguments that an operator gives; the name comes by the environment.
fn command(program: &str, before: &[&str], dir: &Path) -> Command {
    let keys = dir.join("keys");
    std::fs::create_dir_all(&keys).unwrap();
    std::fs::write(keys.join("data.key"), data_key().to_hex()).unwrap();
    std::fs::write(keys.join("control.key"), control_key().to_hex()).unwrap();
    let mut command = Command::new(program);
    command.args(before);
    command
        .args(["serve", "--dataset-uid=uid"])
        .arg(format!("--state-dir={}", dir.join("state").display()))
        .arg(format!("--data-key-file={}", keys.join("data.key").display()))
        .arg(format!("--control-key-file={}", keys.join("control.key").display()))
        .arg(format!("--credentials-dir={}", dir.join("credentials").display()))
        .arg(format!("--tier=medium=Disk,dir={}/blocks,quota=1Gi", dir.join("tiers").display()))
        .args(["--eviction=never", "--log-format=json", "--free-space-floor=0"])
        .arg(format!("--addresses-file={}", dir.join("state/addresses").display()))
        .env("MILLRACE_WORKER_NAME", "imagenet-0")
        .env("MILLRACE_DATA_ADDRESS", "127.0.0.1:0")
        .env("MILLRACE_CONTROL_ADDRESS", "127.0.0.1:0")
        .env("MILLRACE_ADMIN_ADDRESS", "127.0.0.1:0")
        .env_remove("HOME")
        .env_remove("TMPDIR")
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

async fn made(control: &mut millrace_control::client::Client, source: proto::Source) -> proto::IndexMade {
    let request = proto::MakeIndexRequest { sources: vec![source], block_size_bytes: MIB };
    let mut steps = control.make_index(request).await.unwrap().into_inner();
    while let Some(step) = steps.message().await.unwrap() {
        match step.step.unwrap() {
            Step::Listing(_) => {}
            Step::Made(made) => return made,
            Step::Failed(failed) => panic!("{failed:?}"),
        }
    }
    panic!("the stream ended without a result");
}

/// Warms all, which reads every object, and waits until it is cached.
async fn warm(control: &mut millrace_control::client::Client, version: &str) {
    let (action, version) = (proto::warm_request::Action::Start.into(), version.to_owned());
    control.warm(proto::WarmRequest { action, version, paths: Vec::new() }).await.unwrap();
    let mut status = control.status(proto::StatusRequest {}).await.unwrap().into_inner();
    let all = async {
        while let Some(now) = status.message().await.unwrap() {
            let version = &now.versions[0];
            if version.owned == version.cached && version.cached.unwrap().objects == 1 {
                return;
            }
        }
        panic!("the stream ended");
    };
    tokio::time::timeout(Duration::from_secs(20), all).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_needs_no_writable_folder_but_those_it_is_given() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("\nskipped: a_worker_needs_no_writable_folder_but_those_it_is_given: needs root");
        return;
    }
    let objects = InMemory::new().with("a", body("a", 3 * MIB));
    let s3 = S3Server::builder().bucket(BUCKET, &objects).start().await.unwrap();
    let dir = Arc::new(tempfile::tempdir().unwrap());
    for folder in ["state", "tiers"] {
        std::fs::create_dir(dir.path().join(folder)).unwrap();
    }
    // In a mount namespace of its own every mount is read-only but the two folders.
    let script = "for dir in $0/state $0/tiers; do mount --bind $dir $dir || exit 90; done
        mount -o remount,ro,bind / || exit 91
        for dir in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o ro none $dir 2>/dev/null; done
        [ -d $0/state ] || { mkdir -p $0; exit 92; }
        touch /var/not-writable 2>/dev/null && exit 93
        exec \"$@\"";
    let dir_text = dir.path().to_str().unwrap().to_owned();
    let hides_itself = dir_text.starts_with("/tmp/") || dir_text.starts_with("/var/tmp/");
    let script = if hides_itself { script.replace("/tmp /var/tmp ", "") } else { script.to_owned() };
    let before = [
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &script,
        &dir_text,
        env!("CARGO_BIN_EXE_cache-worker"),
    ];
    let mut child = command("unshare", &before, dir.path()).spawn().unwrap();
    let errors = child.stderr.take().unwrap();
    let process = Process::of(child);
    let found = addresses(&dir.path().join("state")).await;
    let mut control =
        millrace_control::client::client(found["control"].as_str().unwrap(), control_key()).unwrap();
    let info = control.get_info(proto::GetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.worker, "imagenet-0", "as the pod is called");
    let made = made(&mut control, source(&s3)).await;
    warm(&mut control, &made.version).await;
    let started = Instant::now();
    let output = process.terminate();
    assert!(output.status.success() && started.elapsed() < Duration::from_secs(5), "{output:?}");
    let log = std::io::read_to_string(errors).unwrap();
    assert!(!log.contains("WARN") && !log.contains("Read-only"), "{log}");
    s3.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_identity_in_the_environment_buys_credentials_at_the_endpoint_that_it_names() {
    let objects = InMemory::new().with("a", body("a", 2 * MIB));
    let sts = StsConfig { tokens: vec!["t0ken".into()], role_arn: Some(ROLE.into()), ..StsConfig::default() };
    let access = Access::Signed { credentials: Vec::new(), anonymous: false };
    let s3 = S3Server::builder().bucket(BUCKET, &objects).access(access).sts(sts).start().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("state")).unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "t0ken").unwrap();
    let mut command = command(env!("CARGO_BIN_EXE_cache-worker"), &[], dir.path());
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"] {
        command.env_remove(name);
    }
    command
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_ROLE_ARN", ROLE)
        .env("AWS_WEB_IDENTITY_TOKEN_FILE", &token)
        .env("AWS_ENDPOINT_URL_STS", s3.endpoint());
    let process = Process::of(command.spawn().unwrap());
    let found = addresses(&dir.path().join("state")).await;
    let mut control =
        millrace_control::client::client(found["control"].as_str().unwrap(), control_key()).unwrap();
    // No credentials named, and not anonymous: the SDK's chain.
    let made = made(&mut control, proto::Source { anonymous: false, ..source(&s3) }).await;
    warm(&mut control, &made.version).await;
    assert!(process.terminate().status.success());
    s3.shutdown().await;
}
