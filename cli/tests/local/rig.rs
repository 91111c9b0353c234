//! What do the tests of `millrace local` stand on?

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::server::{Builder, S3Server};
use serde_json::Value;

/// For whatever a test waits for; far longer than it takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// An S3 server, a state folder and a mount point. Dropping it stops and unmounts all.
pub struct Rig {
    pub objects: InMemory,
    pub server: S3Server,
    pub dir: tempfile::TempDir,
    _runtime: tokio::runtime::Runtime,
    up: Option<Child>,
}

/// Whether tests can run here; says why where they cannot.
pub fn can_run() -> bool {
    let missing = ["cache-worker", "csi-driver"].into_iter().find(|name| !program(name).is_file());
    let why = match missing {
        Some(name) => format!("{name} is not built (cargo build --release --bins)"),
        None if !Path::new("/dev/fuse").exists() => "there is no /dev/fuse".to_owned(),
        None if !rustix::process::geteuid().is_root() && !Path::new("/usr/bin/fusermount3").exists() => {
            "not root, and there is no fusermount3".to_owned()
        }
        None => return true,
    };
    // Not by eprintln, which the test harness would keep to itself.
    let _ = writeln!(std::io::stderr(), "skipped: millrace local: {why}");
    false
}

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_millrace")).with_file_name(name)
}

/// Bytes that differ at every place.
pub fn body(seed: u64, length: usize) -> Vec<u8> {
    let word =
        |n: u64| (seed * 1_000_003 + n).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23).to_le_bytes();
    (0..).flat_map(word).take(length).collect()
}

impl Rig {
    /// A server with a large and some small objects.
    pub fn new() -> Self {
        Self::with(|builder| builder)
    }

    /// The same with a server that is set up otherwise.
    pub fn with(change: impl FnOnce(Builder) -> Builder) -> Self {
        let objects = InMemory::new().with("large.bin", body(0, 5_000_000));
        for n in 0..20 {
            objects.put(format!("small/{n}.txt"), body(n + 1, 100 + 50 * n as usize));
        }
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let builder = change(S3Server::builder().bucket("data", &objects));
        let server = runtime.block_on(builder.start()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("mnt")).unwrap();
        let rig = Self { objects, server, dir, _runtime: runtime, up: None };
        rig.write("dataset.yaml", &rig.dataset(""));
        rig
    }

    /// A Dataset `x` over the bucket, with more lines in its spec.
    pub fn dataset(&self, more: &str) -> String {
        let endpoint = self.server.endpoint();
        format!(
            "apiVersion: millrace.dev/v1alpha1
kind: Dataset
metadata: {{name: x}}
spec:
  sources:
  - path: /
    s3: {{bucket: data, endpoint: \"{endpoint}\", credentials: {{anonymous: {{}}}}}}
  workers: {{replicas: 2, cache: {{tiers: [{{medium: Disk, quota: 64Mi}}]}}}}
  mount: {{nodeCache: {{quota: 64Mi}}}}
{more}"
        )
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    pub fn mount(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub fn folder(&self) -> PathBuf {
        self.dir.path().join("state/default/x")
    }

    /// The command `millrace local ARGS`, in the rig's folder.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        command.current_dir(self.dir.path()).args(["local", "--state-dir", "state"]).args(args);
        command
    }

    pub fn local(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a command that must succeed, and gives its output.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.local(args);
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts `up` and waits until the dataset can be read.
    pub fn up(&mut self) {
        let ready = self.dir.path().join("ready.json");
        let _ = std::fs::remove_file(&ready);
        let pid = self.begin_up();
        until("up", || {
            let child = self.up.as_mut().unwrap();
            assert!(child.try_wait().unwrap().is_none(), "up has ended: {}", self.up_said());
            ready.exists()
        });
        let told: Value = serde_json::from_slice(&std::fs::read(&ready).unwrap()).unwrap();
        assert_eq!(told["pid"], pid);
    }

    /// Starts `up` and does not wait.
    pub fn begin_up(&mut self) -> u32 {
        let log = std::fs::File::create(self.dir.path().join("up.log")).unwrap();
        let mut command =
            self.command(&["up", "-f", "dataset.yaml", "--mount", "mnt", "--ready-file", "ready.json"]);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        let pid = child.id();
        self.up = Some(child);
        pid
    }

    /// What the running `up` has printed.
    pub fn up_said(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("up.log")).unwrap()
    }

    /// Waits for the end of `up`; its exit code, none where a signal has ended it.
    pub fn wait_up(&mut self) -> Option<i32> {
        let mut child = self.up.take().unwrap();
        until("end of up", || child.try_wait().unwrap().is_some());
        child.wait().unwrap().code()
    }

    /// Sends a signal to `up`.
    pub fn signal_up(&self, signal: &str) {
        kill(signal, self.up.as_ref().unwrap().id().into());
    }

    pub fn status(&self) -> Value {
        serde_json::from_str(&self.ok(&["status", "x", "-o", "json"])).unwrap()
    }

    /// Status and reason of a condition.
    pub fn condition(&self, kind: &str) -> (String, String) {
        let status = self.status();
        let conditions = status["status"]["conditions"].as_array().unwrap().clone();
        let found = conditions.iter().find(|condition| condition["type"] == kind).unwrap();
        (found["status"].as_str().unwrap().to_owned(), found["reason"].as_str().unwrap().to_owned())
    }

    /// Compares all objects with the files of the mount.
    pub fn compare(&self) {
        assert!(std::fs::read(self.mount().join("large.bin")).unwrap() == body(0, 5_000_000));
        for n in 0..20 {
            let file = std::fs::read(self.mount().join(format!("small/{n}.txt"))).unwrap();
            assert!(file == body(n + 1, 100 + 50 * n as usize), "small/{n}.txt");
        }
    }

    /// No process of this Dataset runs and nothing is mounted.
    pub fn assert_nothing_left(&self) {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = self.mount().display().to_string();
        assert!(!mounts.contains(&mount), "{mount} is still mounted");
        let key = self.folder().join("data.key").display().to_string();
        let left = Command::new("pgrep").args(["-f", &key]).output().unwrap();
        assert!(left.stdout.is_empty(), "still there: {}", String::from_utf8_lossy(&left.stdout));
        assert!(!self.folder().join("run.json").exists() && !self.folder().join("credentials").exists());
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.local(&["down", "x"]);
        if let Some(mut up) = self.up.take() {
            // It ends with its `down`; this is for one that does not know its name yet.
            let _ = up.kill();
            let _ = up.wait();
        }
        self.local(&["rm", "x"]);
    }
}

/// What a command has printed to stderr.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn kill(signal: &str, pid: u64) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// Waits until `is_so`.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
