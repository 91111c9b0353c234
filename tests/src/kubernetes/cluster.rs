//! Which cluster do the tests run on, and how is it disturbed?

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};

use super::objects::Objects;
use super::turn::Turn;
use crate::skip::skipped;

/// Namespace of the release.
pub const SYSTEM: &str = "millrace-system";

/// For any one call of the API server.
const CALL: Duration = Duration::from_secs(20);

/// Where a cluster keeps what.
#[derive(Debug, Clone)]
pub struct Paths {
    /// Of an administrator.
    pub kubeconfig: PathBuf,
    /// Logs of the control plane and of nodes, and the audit log.
    pub logs: PathBuf,
    /// Programs: kubectl, helm, csi-sanity.
    pub bin: PathBuf,
}

/// The cluster that `scripts/cluster up` has brought up, with Millrace installed by `scripts/cluster install`.
pub struct Cluster {
    /// Objects, by an administrator.
    pub objects: Objects,
    /// Where it keeps what.
    pub paths: Paths,
    turn: Turn,
}

impl Cluster {
    /// The cluster, used by other tests at the same time; none, and a word about it, where it is not up.
    pub fn shared(test: &str) -> Option<Self> {
        let paths = paths(test)?;
        Some(Self::connect(paths, Turn::shared()))
    }

    /// The cluster without any other test, for one that takes away what others need.
    pub fn alone(test: &str) -> Option<Self> {
        let paths = paths(test)?;
        Some(Self::connect(paths, Turn::alone()))
    }

    fn connect(paths: Paths, turn: Turn) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(client(&paths));
        Self { objects: Objects::new(client, runtime), paths, turn }
    }

    /// Only looks, for as long as that takes: tests that run beside others do so meanwhile, and none has the cluster alone.
    pub fn rest<T>(&self, look: impl FnOnce() -> T) -> T {
        self.turn.rest(look)
    }

    /// Installs Millrace, where it is not.
    pub fn install(&self) {
        script(&["install"]);
    }

    /// Ends all processes of a node at once, as the loss of power would; it starts again with the state that it had.
    pub fn crash_node(&self, node: &str) -> Away {
        Away::begin(&["node", "crash", node], &["node", "start", node])
    }

    /// Stops all processes of a node, without ending them.
    pub fn freeze_node(&self, node: &str) -> Away {
        Away::begin(&["node", "freeze", node], &["node", "thaw", node])
    }

    /// Kills the kubelet of a node; it comes back by itself.
    pub fn restart_kubelet(&self, node: &str) {
        script(&["node", "restart-kubelet", node]);
    }

    /// Runs a command in a node's namespaces; what it has printed.
    pub fn in_node(&self, node: &str, command: &[&str]) -> String {
        script(&[&["node", "exec", node], command].concat())
    }

    /// Ends the API server; it answers when it is back.
    pub fn stop_api_server(&self) -> Away {
        Away::begin(&["api", "stop"], &["api", "start"])
    }

    /// A command of kubectl as an administrator.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(self.paths.bin.join("kubectl"));
        command.env("KUBECONFIG", &self.paths.kubeconfig);
        command
    }
}

/// Something of the cluster that is away. It comes back with this value, also where the test fails: others need it.
#[must_use = "what is away comes back with this value"]
pub struct Away {
    back: Vec<String>,
}

impl Away {
    fn begin(away: &[&str], back: &[&str]) -> Self {
        // Before: where it goes half away, that is put right too.
        let new = Self { back: back.iter().map(|&part| part.to_owned()).collect() };
        script(away);
        new
    }

    /// Has it come back.
    pub fn end(self) {}
}

impl Drop for Away {
    fn drop(&mut self) {
        let back: Vec<&str> = self.back.iter().map(String::as_str).collect();
        match try_script(&back) {
            Ok(_) => {}
            Err(error) if std::thread::panicking() => eprintln!("{error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

fn paths(test: &str) -> Option<Paths> {
    if !crate::skip::is_root() {
        skipped(test, "a cluster needs root");
        return None;
    }
    let text = script(&["env"]);
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        PathBuf::from(line.unwrap_or_else(|| panic!("no {name} in {text}")))
    };
    let paths =
        Paths { kubeconfig: value("KUBECONFIG"), logs: value("CLUSTER_LOGS"), bin: value("CLUSTER_BIN") };
    if !paths.kubeconfig.exists() {
        skipped(test, "no cluster is up (make cluster-up)");
        return None;
    }
    Some(paths)
}

async fn client(paths: &Paths) -> Client {
    let file = Kubeconfig::read_from(&paths.kubeconfig).unwrap();
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    config.connect_timeout = Some(CALL);
    config.read_timeout = Some(CALL);
    Client::try_from(config).unwrap()
}

/// Runs `scripts/cluster`; what it has printed.
fn script(args: &[&str]) -> String {
    try_script(args).unwrap_or_else(|error| panic!("{error}"))
}

/// The same; what went wrong where it fails.
fn try_script(args: &[&str]) -> Result<String, String> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scripts/cluster");
    let output = Command::new(script).args(args).output();
    let output = output.map_err(|error| format!("scripts/cluster {args:?}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("scripts/cluster {args:?}: {}: {}", output.status, text(&output.stderr)))
    }
}
