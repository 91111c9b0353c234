//! What was the mount process told to do? Arguments and environment, parsed once.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use millrace_api::dataset::sizes::ByteSize;
use millrace_api::ids::{ParseId, VersionId};
use millrace_api::keys::Key;
use millrace_api::mount::{MAX_SUBDOMAIN_BYTES, MountMode};
use millrace_api::placement::Membership;
use millrace_daemon::files::{ReadKey, read_key};
use millrace_daemon::logging::LogArgs;

use crate::dataset_fs::Ownership;
use crate::reads::ScrubPace;

/// Default deadline of one read: longer than an outage of 30 s with room to recover; guess.
const READ_DEADLINE: Duration = Duration::from_secs(120);

/// Shortest time between two scrubs: a small node store need not be read all the time; guess.
const SCRUB_EVERY: Duration = Duration::from_secs(6 * 3600);

/// Arguments of `mount`.
#[derive(Debug, Args)]
pub struct MountArgs {
    /// Name of the dataset, as `df` and the log show it.
    #[arg(long, env = "MILLRACE_DATASET")]
    pub dataset: String,
    /// The version to show: 32 hexadecimal digits.
    #[arg(long, env = "MILLRACE_VERSION")]
    pub version: String,
    /// An empty folder to mount on. A dead mount of an earlier process is cleaned up first.
    #[arg(long, value_name = "DIR")]
    pub mount_point: PathBuf,
    /// File with the workers; read again when it changes.
    #[arg(
        long,
        env = "MILLRACE_MEMBERSHIP_FILE",
        value_name = "FILE",
        required_unless_present = "workers_service"
    )]
    pub membership_file: Option<PathBuf>,
    /// Service of the workers' data ports: all its addresses are asked who serves the dataset, at the start where no file
    /// tells, and whenever no worker can be reached.
    #[arg(long, env = "MILLRACE_WORKERS_SERVICE", value_name = "HOST:PORT")]
    pub workers_service: Option<String>,
    /// Name of this node: tells the workers that the dataset is mounted here, and for which pods.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// File with the pods that use the mount, JSON [{"namespace", "name", "uid"}]; read again when it changes.
    #[arg(long, value_name = "FILE", requires = "node_name")]
    pub pods_file: Option<PathBuf>,
    /// File with the data key, 64 hexadecimal digits.
    #[arg(long, env = "MILLRACE_DATA_KEY_FILE", value_name = "FILE")]
    pub data_key_file: PathBuf,
    /// Folder for indexes; kept across restarts.
    #[arg(long, env = "MILLRACE_INDEX_DIR", value_name = "DIR")]
    pub index_dir: PathBuf,
    /// Folder on this node to keep what was read; kept across restarts, shared by the mounts of a dataset.
    #[arg(long, env = "MILLRACE_NODE_STORE", value_name = "DIR")]
    pub node_store: Option<PathBuf>,
    /// Most bytes to keep in the node store; 0 switches it off.
    #[arg(long, env = "MILLRACE_NODE_STORE_QUOTA", value_name = "SIZE", default_value = "10Gi")]
    pub node_store_quota: ByteSize,
    /// File with the most bytes to keep in the node store, a plain number; it counts in place of --node-store-quota from when
    /// it is there, and again whenever it changes.
    #[arg(long, value_name = "FILE", requires = "node_store")]
    pub node_store_quota_file: Option<PathBuf>,
    /// Kubelet's folder of pods, in which the tiers of workers on this node are found: they are read where they lie, without a
    /// copy in the node store.
    #[arg(long, env = "MILLRACE_KUBELET_PODS_DIR", value_name = "DIR", requires = "node_store")]
    pub kubelet_pods_dir: Option<PathBuf>,
    /// Owner of all files.
    #[arg(long, default_value_t = 0)]
    pub uid: u32,
    /// Group of all files.
    #[arg(long, default_value_t = 0)]
    pub gid: u32,
    /// Permissions of files, octal.
    #[arg(long, default_value = "0444", value_parser = parse_mode)]
    pub file_mode: u16,
    /// Permissions of folders, octal.
    #[arg(long, default_value = "0555", value_parser = parse_mode)]
    pub dir_mode: u16,
    /// Bytes a second of the node store that are compared with their checksums in the background, where the kernel reads files
    /// itself; 0 switches it off.
    #[arg(long, env = "MILLRACE_SCRUB_RATE", value_name = "SIZE", default_value = "8Mi")]
    pub scrub_rate: ByteSize,
    /// From the start of one such pass over the node store to that of the next, at least, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = SCRUB_EVERY.as_secs(), hide = true)]
    pub scrub_every_seconds: u64,
    /// How the kernel is served: Auto, Files or Packed, as in a Dataset's `spec.mount.mode`.
    #[arg(long, env = "MILLRACE_MOUNT_MODE", value_name = "MODE", default_value = "Auto")]
    pub mode: MountMode,
    /// SELinux context of all files, where the kernel has SELinux.
    #[arg(long, value_name = "CONTEXT")]
    pub selinux_context: Option<String>,
    /// Stop at the end of standard input: when the process that started this one is gone, however that ended.
    #[arg(long, hide = true)]
    pub end_with_stdin: bool,
    /// How long one read may wait for S3 before it fails with EIO, and the start for the index, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = READ_DEADLINE.as_secs(), value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub read_deadline_seconds: u64,
    /// Threads that serve the kernel's requests.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub fuse_threads: u16,
    /// Where metrics, health and readiness are served. Port 0 takes a free one.
    #[arg(long, env = "MILLRACE_ADMIN_ADDRESS", default_value = "127.0.0.1:0")]
    pub admin_address: SocketAddr,
    /// Write {"admin", "pid"} to this file as JSON once the mount is there.
    #[arg(long, value_name = "FILE")]
    pub addresses_file: Option<PathBuf>,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Why an argument was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The version is not an id.
    #[error("--version")]
    Version {
        /// What is wrong.
        source: ParseId,
    },
    /// A file cannot be read.
    #[error("{argument}: read {path:?}")]
    ReadFile {
        /// The argument that names it.
        argument: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The key file is missing, or holds no key.
    #[error("--data-key-file")]
    Key {
        /// What is wrong.
        source: ReadKey,
    },
    /// The node's name cannot be one.
    #[error("--node-name {name:?}: give 1 to {MAX_SUBDOMAIN_BYTES} bytes, as in a Node's name")]
    NodeName {
        /// The refused name.
        name: String,
    },
    /// The membership file holds no membership.
    #[error(
        "--membership-file {path:?}: expected {{\"epoch\", \"workers\": [{{\"name\", \"address\", \"weight\"}}]}}"
    )]
    ParseMembership {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

/// Where and how much a node keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStore {
    /// The folder.
    pub dir: PathBuf,
    /// Most bytes to keep; 0 only where a file may say otherwise later.
    pub quota_bytes: u64,
    /// The file that says so while the process runs.
    pub quota_file: Option<PathBuf>,
}

/// What the mount process was told, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the dataset.
    pub dataset: String,
    /// The version to show.
    pub version: VersionId,
    /// Where to mount.
    pub mount_point: PathBuf,
    /// File with the workers.
    pub membership_file: Option<PathBuf>,
    /// The workers to start with; none where there is no file.
    pub membership: Membership,
    /// Where to ask for them, `host:port`.
    pub workers_service: Option<String>,
    /// Name of this node, where the workers are to know of the mount.
    pub node_name: Option<String>,
    /// File with the pods that use the mount.
    pub pods_file: Option<PathBuf>,
    /// Key of the data port.
    pub data_key: Key,
    /// Folder for indexes.
    pub index_dir: PathBuf,
    /// Folder for what was read; `None` where it is switched off.
    pub node_store: Option<NodeStore>,
    /// Kubelet's folder of pods.
    pub kubelet_pods_dir: Option<PathBuf>,
    /// Owner and permissions of everything.
    pub ownership: Ownership,
    /// How fast and how often the node store is scrubbed.
    pub scrub: ScrubPace,
    /// How the kernel is served.
    pub mode: MountMode,
    /// SELinux context of all files.
    pub selinux_context: Option<String>,
    /// Whether to stop at the end of standard input.
    pub ends_with_stdin: bool,
    /// How long one read may wait, and the start for the index: workers may themselves be fetching it.
    pub read_deadline: Duration,
    /// Threads that serve the kernel's requests.
    pub fuse_threads: usize,
    /// Admin port as asked for.
    pub admin_address: SocketAddr,
    /// Where to write the addresses in use.
    pub addresses_file: Option<PathBuf>,
}

impl Config {
    /// Checks the arguments and reads the files that they name.
    ///
    /// # Errors
    /// [`ConfigError`] names the argument or file, and the cure.
    pub fn from_args(args: &MountArgs) -> Result<Self, ConfigError> {
        let quota_bytes = args.node_store_quota.bytes();
        let quota_file = args.node_store_quota_file.clone();
        let node_store = args.node_store.clone().filter(|_| quota_bytes > 0 || quota_file.is_some());
        let is_name = |name: &String| (1..=MAX_SUBDOMAIN_BYTES).contains(&name.len());
        if let Some(name) = args.node_name.clone().filter(|name| !is_name(name)) {
            return Err(ConfigError::NodeName { name });
        }
        let membership = args.membership_file.as_deref().map(read_membership).transpose()?;
        Ok(Self {
            dataset: args.dataset.clone(),
            version: args.version.parse().map_err(|source| ConfigError::Version { source })?,
            mount_point: args.mount_point.clone(),
            membership_file: args.membership_file.clone(),
            membership: membership.unwrap_or_default(),
            workers_service: args.workers_service.clone(),
            node_name: args.node_name.clone(),
            pods_file: args.pods_file.clone(),
            data_key: read_key(&args.data_key_file).map_err(|source| ConfigError::Key { source })?,
            index_dir: args.index_dir.clone(),
            node_store: node_store.map(|dir| NodeStore { dir, quota_bytes, quota_file }),
            kubelet_pods_dir: args.kubelet_pods_dir.clone(),
            ownership: Ownership {
                uid: args.uid,
                gid: args.gid,
                file_mode: args.file_mode,
                dir_mode: args.dir_mode,
            },
            scrub: ScrubPace {
                bytes_per_second: args.scrub_rate.bytes(),
                every: Duration::from_secs(args.scrub_every_seconds),
            },
            mode: args.mode,
            selinux_context: args.selinux_context.clone(),
            ends_with_stdin: args.end_with_stdin,
            read_deadline: Duration::from_secs(args.read_deadline_seconds),
            fuse_threads: usize::from(args.fuse_threads),
            admin_address: args.admin_address,
            addresses_file: args.addresses_file.clone(),
        })
    }
}

fn read_file(argument: &'static str, path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::ReadFile {
        argument,
        path: path.to_owned(),
        source,
    })
}

/// Reads a membership file.
///
/// # Errors
/// [`ConfigError::ReadFile`] or [`ConfigError::ParseMembership`].
pub fn read_membership(path: &Path) -> Result<Membership, ConfigError> {
    serde_json::from_str(&read_file("--membership-file", path)?)
        .map_err(|source| ConfigError::ParseMembership { path: path.to_owned(), source })
}

fn parse_mode(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| format!("{text:?} is no permission: give up to three octal digits, such as 0444"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::Cli;

    fn parse(change: &[&str]) -> Result<Cli, clap::Error> {
        parse_with(&["--membership-file", "/f"], change)
    }

    fn parse_with(workers: &[&str], change: &[&str]) -> Result<Cli, clap::Error> {
        let base = ["csi-driver", "mount", "--dataset", "d", "--version", "ab", "--mount-point", "/m"];
        let files = ["--data-key-file", "/k", "--index-dir", "/i"];
        Cli::try_parse_from(base.iter().chain(&files).chain(workers).chain(change))
    }

    #[test]
    fn the_workers_are_told_by_a_file_or_a_service_or_both() {
        let service = ["--workers-service", "imagenet.vision.svc:7420"];
        assert!(parse_with(&service, &[]).is_ok() && parse(&service).is_ok());
        let error = parse_with(&[], &[]).unwrap_err().to_string();
        assert!(error.contains("--membership-file"), "{error}");
        let error = parse(&["--pods-file", "/p"]).unwrap_err().to_string();
        assert!(error.contains("--node-name"), "{error}");
        assert!(parse(&["--pods-file", "/p", "--node-name", "node-7"]).is_ok());
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
        assert!(parse(&[]).is_ok());
    }

    #[test]
    fn a_mode_that_is_not_octal_is_refused_with_the_right_form() {
        let error = parse(&["--file-mode", "rw"]).unwrap_err().to_string();
        assert!(error.contains("rw") && error.contains("0444"), "{error}");
        assert!(parse(&["--dir-mode", "1777"]).is_err());
    }

    #[test]
    fn a_membership_file_of_another_form_is_refused_with_the_right_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[]").unwrap();
        let error = read_membership(file.path()).unwrap_err().to_string();
        assert!(error.contains("\"epoch\""), "{error}");
        std::fs::write(
            file.path(),
            r#"{"epoch": 3, "workers": [{"name": "a", "address": "h:1", "weight": 2}]}"#,
        )
        .unwrap();
        assert_eq!(read_membership(file.path()).unwrap().epoch, 3);
    }
}
