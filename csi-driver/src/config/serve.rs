//! What was the driver of a node told to do?

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use millrace_api::dataset::sizes::ByteSize;
use millrace_api::names::CSI_DRIVER;
use millrace_daemon::logging::LogArgs;

/// Time that a publish waits inside the call: kubelet gives it 120 s, and its own repetitions soon take longer.
const PUBLISH_WAIT: Duration = Duration::from_secs(90);

/// Time that a mount process is kept after its last pod: from one epoch's pod to the next one's. Guess.
const IDLE: Duration = Duration::from_secs(30);

/// Time between two questions to the workers of a mounted Dataset: one small question of each node. Guess.
const REFRESH: Duration = Duration::from_secs(60);

/// Time between two questions to the API server: a node's disk can wait, and a thousand nodes ask.
const WATCH_DATASETS: Duration = Duration::from_secs(600);

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Name of this node, as Kubernetes knows it.
    #[arg(long, env = "NODE_NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub node_name: String,
    /// Kubelet's folder, at the same path as on the host.
    #[arg(long, env = "MILLRACE_KUBELET_DIR", value_name = "DIR", default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// Socket on which kubelet calls the driver (default: `<kubelet-dir>/plugins/csi.millrace.dev/csi.sock`).
    #[arg(long, value_name = "FILE")]
    pub csi_socket: Option<PathBuf>,
    /// Folder in which kubelet looks for plugins (default: `<kubelet-dir>/plugins_registry`).
    #[arg(long, value_name = "DIR")]
    pub registration_dir: Option<PathBuf>,
    /// Folder for mounts and the driver's own state (default: `<kubelet-dir>/plugins/csi.millrace.dev/state`).
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Folder on this node for what was read and for indexes; kept beyond pods, on a real disk.
    #[arg(long, env = "MILLRACE_CACHE_DIR", value_name = "DIR", default_value = "/var/lib/millrace/cache")]
    pub cache_dir: PathBuf,
    /// Most bytes that all Datasets together may keep on this node, whatever each may by itself; 0: no limit.
    #[arg(long, env = "MILLRACE_NODE_CACHE_LIMIT", value_name = "SIZE", default_value = "0")]
    pub node_cache_limit: ByteSize,
    /// Remove the caches of Datasets that are gone. Needs a service account that may list Datasets in the cluster.
    #[arg(long, env = "MILLRACE_WATCH_DATASETS", default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub watch_datasets: bool,
    /// How long a publish waits for workers and the first version before kubelet has to come again, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = PUBLISH_WAIT.as_secs(), value_parser = clap::value_parser!(u64).range(1..=110))]
    pub publish_wait_seconds: u64,
    /// How long a mount process is kept after its last pod, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = IDLE.as_secs(), value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub idle_seconds: u64,
    /// How often the workers of mounted Datasets are asked how much this node may keep by now, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = REFRESH.as_secs(), hide = true, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub refresh_seconds: u64,
    /// How often the API server is asked which Datasets live, seconds.
    #[arg(long, value_name = "SECONDS", env = "MILLRACE_WATCH_DATASETS_SECONDS", default_value_t = WATCH_DATASETS.as_secs(), value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch_datasets_seconds: u64,
    /// The device by which FUSE file systems are mounted.
    #[arg(long, value_name = "FILE", default_value = "/dev/fuse", hide = true)]
    pub fuse_device: PathBuf,
    /// Where metrics, health and readiness are served. Port 0 takes a free one.
    #[arg(long, env = "MILLRACE_ADMIN_ADDRESS", default_value = "0.0.0.0:7442")]
    pub admin_address: SocketAddr,
    /// Write {"admin", "pid"} to this file as JSON once kubelet can call.
    #[arg(long, value_name = "FILE")]
    pub addresses_file: Option<PathBuf>,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// What the driver was told, with defaults filled in.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Name of this node.
    pub node: String,
    /// Kubelet's folder.
    pub kubelet_dir: PathBuf,
    /// Socket for CSI.
    pub csi_socket: PathBuf,
    /// Folder for the registration socket.
    pub registration_dir: PathBuf,
    /// Folder for the driver's state.
    pub state_dir: PathBuf,
    /// Folder for what was read.
    pub cache_dir: PathBuf,
    /// Most bytes of all caches; 0: no limit.
    pub cache_limit_bytes: u64,
    /// How often to ask the API server which Datasets live; `None`: never.
    pub watch_datasets: Option<Duration>,
    /// How often to ask the workers of mounted Datasets for their settings.
    pub refresh: Duration,
    /// How long a publish waits.
    pub publish_wait: Duration,
    /// How long an unused mount process is kept.
    pub idle: Duration,
    /// The device of FUSE.
    pub fuse_device: PathBuf,
    /// Admin port as asked for.
    pub admin_address: SocketAddr,
    /// Where to write the addresses in use.
    pub addresses_file: Option<PathBuf>,
    /// How the driver and its mount processes log.
    pub log: LogArgs,
}

impl ServeConfig {
    /// Fills in what follows from the other arguments.
    pub fn from_args(args: &ServeArgs) -> Self {
        let plugin = args.kubelet_dir.join("plugins").join(CSI_DRIVER);
        let or = |given: &Option<PathBuf>, default: PathBuf| given.clone().unwrap_or(default);
        Self {
            node: args.node_name.clone(),
            kubelet_dir: args.kubelet_dir.clone(),
            csi_socket: or(&args.csi_socket, plugin.join("csi.sock")),
            registration_dir: or(&args.registration_dir, args.kubelet_dir.join("plugins_registry")),
            state_dir: or(&args.state_dir, plugin.join("state")),
            cache_dir: args.cache_dir.clone(),
            cache_limit_bytes: args.node_cache_limit.bytes(),
            watch_datasets: args.watch_datasets.then_some(Duration::from_secs(args.watch_datasets_seconds)),
            refresh: Duration::from_secs(args.refresh_seconds),
            publish_wait: Duration::from_secs(args.publish_wait_seconds),
            idle: Duration::from_secs(args.idle_seconds),
            fuse_device: args.fuse_device.clone(),
            admin_address: args.admin_address,
            addresses_file: args.addresses_file.clone(),
            log: args.log.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::config::{Cli, Command};

    fn parse(arguments: &[&str]) -> ServeConfig {
        let base = ["csi-driver", "serve", "--node-name", "n"];
        let cli = Cli::try_parse_from(base.iter().chain(arguments)).unwrap();
        let Command::Serve(args) = cli.command else { panic!("another command") };
        ServeConfig::from_args(&args)
    }

    #[test]
    fn everything_lies_below_kubelets_folder_unless_told_otherwise() {
        let config = parse(&["--kubelet-dir", "/k"]);
        assert_eq!(config.csi_socket, Path::new("/k/plugins/csi.millrace.dev/csi.sock"));
        assert_eq!(config.registration_dir, Path::new("/k/plugins_registry"));
        assert_eq!(config.state_dir, Path::new("/k/plugins/csi.millrace.dev/state"));
        assert_eq!(parse(&["--state-dir", "/s"]).state_dir, Path::new("/s"));
    }

    #[test]
    fn a_node_without_a_name_is_refused() {
        let error = Cli::try_parse_from(["csi-driver", "serve", "--node-name", ""]).unwrap_err();
        assert!(error.to_string().contains("--node-name"), "{error}");
    }

    #[test]
    fn datasets_are_watched_by_choice() {
        let watch = |arguments: &[&str]| parse(arguments).watch_datasets;
        assert_eq!(watch(&[]), None);
        assert_eq!(watch(&["--watch-datasets"]), Some(WATCH_DATASETS));
        assert_eq!(watch(&["--watch-datasets", "--watch-datasets-seconds=2"]), Some(Duration::from_secs(2)));
        assert_eq!(watch(&["--watch-datasets=false", "--watch-datasets-seconds=2"]), None);
    }
}
