//! How does one cache worker run as a process that a test can stop, kill and start again?

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use millrace_api::keys::Key;
use millrace_control::client::Client;

use crate::look::metrics;
use crate::program::{Program, command, path_of};

/// For a worker to come up, on a machine that is busy with other tests.
const START: Duration = Duration::from_secs(30);

/// What a worker is told.
#[derive(Debug, Clone)]
pub struct WorkerSetup {
    /// Most bytes of its tier.
    pub quota_bytes: u64,
    /// Where the tier lies; in its own folder where nothing is said.
    pub tier: Option<PathBuf>,
    /// Further arguments.
    pub args: Vec<String>,
}

/// A worker process and its folder.
#[derive(Debug)]
pub struct Worker {
    /// The process.
    pub program: Program,
    /// Its name in the membership.
    pub name: String,
    /// Its folder: `tier`, `state`, `log`, keys.
    pub dir: PathBuf,
    /// Data port; the same after a restart.
    pub data: String,
    /// Control port; the same after a restart.
    pub control: String,
    /// Admin port.
    pub admin: String,
    setup: WorkerSetup,
}

impl Worker {
    /// Starts a worker in `dir`.
    pub fn start(name: &str, dir: &Path, data_key: &Key, control_key: &Key, setup: WorkerSetup) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("data.key"), data_key.to_hex()).unwrap();
        std::fs::write(dir.join("control.key"), control_key.to_hex()).unwrap();
        let any = "127.0.0.1:0";
        let (program, addresses) = launch(serve(name, dir, any, any, &setup), dir);
        let [data, control, admin] = addresses;
        Self { program, name: name.to_owned(), dir: dir.to_owned(), data, control, admin, setup }
    }

    /// Starts it again, at the same ports, after its end.
    pub fn restart(&mut self) {
        let command = serve(&self.name, &self.dir, &self.data, &self.control, &self.setup);
        let (program, [data, control, admin]) = launch(command, &self.dir);
        assert_eq!((&data, &control), (&self.data, &self.control));
        (self.program, self.admin) = (program, admin);
    }

    /// Starts it again with another data port, as a pod that gets another address; nobody is told.
    pub fn restart_at(&mut self, data: &str) {
        let command = serve(&self.name, &self.dir, data, "127.0.0.1:0", &self.setup);
        let (program, addresses) = launch(command, &self.dir);
        self.program = program;
        [self.data, self.control, self.admin] = addresses;
    }

    /// A client of its control port; call it on a runtime.
    pub fn client(&self, key: &Key) -> Client {
        millrace_control::client::client(&self.control, key.clone()).unwrap()
    }

    /// Sum of a metric's samples whose labels contain `label`.
    pub fn metric(&self, name: &str, label: &str) -> f64 {
        metrics(&self.admin).sum(name, label)
    }
}

/// The command of a worker.
pub fn serve(name: &str, dir: &Path, data: &str, control: &str, setup: &WorkerSetup) -> Command {
    let mut command = command(path_of("cache-worker"));
    let tier = setup.tier.clone().unwrap_or_else(|| dir.join("tier"));
    command
        .args(["serve", "--name", name, "--dataset-uid", "uid", "--log", "info"])
        .args(["--data-address", data, "--control-address", control, "--admin-address", "127.0.0.1:0"])
        .args(["--memory-limit", "512Mi", "--free-space-floor", "0"])
        .arg("--addresses-file")
        .arg(dir.join("addresses.json"))
        .arg("--data-key-file")
        .arg(dir.join("data.key"))
        .arg("--control-key-file")
        .arg(dir.join("control.key"))
        .arg("--state-dir")
        .arg(dir.join("state"))
        .arg("--credentials-dir")
        .arg(dir.join("credentials"))
        .arg("--tier")
        .arg(format!("medium=Disk,dir={},quota={}", tier.display(), setup.quota_bytes))
        .args(&setup.args);
    command
}

fn launch(mut command: Command, dir: &Path) -> (Program, [String; 3]) {
    let file = dir.join("addresses.json");
    // The one of an earlier start would be taken for the new one.
    let _ = std::fs::remove_file(&file);
    let mut program = Program::start(&mut command, &dir.join("log"));
    let addresses = program.wait_for("addresses of the worker", START, || {
        let found: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).ok()?).ok()?;
        Some(["data", "control", "admin"].map(|port| found[port].as_str().unwrap_or_default().to_owned()))
    });
    (program, addresses)
}
