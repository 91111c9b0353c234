//! What was this worker told to do? Arguments and environment, parsed once.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use millrace_api::dataset::sizes::ByteSize;
use millrace_api::keys::Key;
use millrace_api::placement::MAX_WORKER_NAME_BYTES;
use millrace_api::wire::{MAX_POD_UID_BYTES, is_pod_uid};
use millrace_daemon::files::{ReadKey, read_key};
use millrace_daemon::logging::LogArgs;
use millrace_store::{Eviction, Medium, TierConfig};

/// Pulls a dataset out of S3 once and serves its blocks to nodes.
#[derive(Debug, Parser)]
#[command(name = "cache-worker", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve one dataset until told to stop (SIGTERM; at most 5 s).
    ///
    /// A worker needs a name that is unique among the dataset's workers, two key files, a state folder and at least one
    /// tier. Which sources to list, who the other workers are and which versions to serve it learns on its control port
    /// and keeps in the state folder, so that a restarted worker serves at once.
    #[command(
        after_long_help = "Example:\n  cache-worker serve --name imagenet-0 --dataset-uid 6e9f --state-dir /state \
        \\\n    --data-key-file /keys/data --control-key-file /keys/control \\\n    --tier medium=Memory,dir=/dev/shm/mr,quota=4Gi \
        --tier medium=Disk,dir=/cache,quota=200Gi\n\nCredentials: a source that names credentials reads them from the folder of \
        that name under --credentials-dir\n(files AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and ca.crt, read \
        again when they change).\nA source that names none uses the SDK's chain: environment, profile, web identity, container."
    )]
    Serve(Box<ServeArgs>),
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Unique and stable name of this worker: blocks are placed by it. A DNS label.
    #[arg(long, env = "MILLRACE_WORKER_NAME")]
    pub name: String,
    /// UID of the Dataset; a worker refuses a state folder of another.
    #[arg(long, env = "MILLRACE_DATASET_UID")]
    pub dataset_uid: String,
    /// UID of the pod that this worker is, if it is one: by it mount processes of the same node find the tiers and read them
    /// where they lie.
    #[arg(long, env = "MILLRACE_POD_UID", value_name = "UID", default_value = "")]
    pub pod_uid: String,
    /// Where nodes and other workers connect. Port 0 takes a free one.
    #[arg(long, env = "MILLRACE_DATA_ADDRESS", default_value = "0.0.0.0:7420")]
    pub data_address: SocketAddr,
    /// Where the operator or `millrace` connects. Port 0 takes a free one.
    #[arg(long, env = "MILLRACE_CONTROL_ADDRESS", default_value = "0.0.0.0:7421")]
    pub control_address: SocketAddr,
    /// Where metrics, health and readiness are served. Port 0 takes a free one.
    #[arg(long, env = "MILLRACE_ADMIN_ADDRESS", default_value = "0.0.0.0:7422")]
    pub admin_address: SocketAddr,
    /// Write the addresses in use to this file as JSON, {"data", "control", "admin", "pid"}, once all are served.
    #[arg(long, value_name = "FILE")]
    pub addresses_file: Option<PathBuf>,
    /// File with the data key, 64 hexadecimal digits.
    #[arg(long, env = "MILLRACE_DATA_KEY_FILE", value_name = "FILE")]
    pub data_key_file: PathBuf,
    /// File with the control key, 64 hexadecimal digits.
    #[arg(long, env = "MILLRACE_CONTROL_KEY_FILE", value_name = "FILE")]
    pub control_key_file: PathBuf,
    /// Folder for indexes, warm-up ledgers and what the control port said; small, kept across restarts.
    #[arg(long, env = "MILLRACE_STATE_DIR", value_name = "DIR")]
    pub state_dir: PathBuf,
    /// A cache folder: medium=Disk|Memory,dir=DIR,quota=SIZE. Repeat it, fastest first.
    #[arg(long = "tier", required = true, value_name = "TIER")]
    pub tiers: Vec<Tier>,
    /// What makes room in a full cache. Never: a full cache admits no more, best for shuffled epochs.
    #[arg(long, env = "MILLRACE_EVICTION", value_enum, default_value = "never", ignore_case = true)]
    pub eviction: EvictionArg,
    /// Free space to leave on the disk of a tier.
    #[arg(long, value_name = "SIZE", default_value = "256Mi")]
    pub free_space_floor: ByteSize,
    /// Folder with one folder for each named set of credentials.
    #[arg(long, env = "MILLRACE_CREDENTIALS_DIR", value_name = "DIR")]
    pub credentials_dir: Option<PathBuf>,
    /// Profile of the AWS configuration files, for sources that name no credentials.
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Bound on this process's memory; default: the cgroup's limit, or what the machine has.
    #[arg(long, env = "MILLRACE_MEMORY_LIMIT", value_name = "SIZE")]
    pub memory_limit: Option<ByteSize>,
    /// Sources as JSON, {"sources": [{"path", "bucket", "prefix", "region", "endpoint", ...}]}, where no control port tells.
    #[arg(long, value_name = "FILE")]
    pub sources_file: Option<PathBuf>,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

/// The value of `--eviction`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EvictionArg {
    /// A full cache admits no more.
    Never,
    /// The blocks not read for the longest time go.
    Lru,
}

/// The value of one `--tier`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tier(pub TierConfig);

/// Why an argument was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A tier is not `medium=..,dir=..,quota=..`.
    #[error("--tier {text:?}: {problem}; write medium=Disk,dir=/cache,quota=200Gi")]
    Tier {
        /// The argument.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The name cannot be a worker's.
    #[error("--name {name:?}: use 1 to 63 of a-z, 0-9 and \"-\", as in a pod's name")]
    Name {
        /// The argument.
        name: String,
    },
    /// The UID cannot be a pod's.
    #[error(
        "--pod-uid {uid:?}: use at most {MAX_POD_UID_BYTES} of a-z, A-Z, 0-9 and \"-\", as in a pod's metadata.uid"
    )]
    PodUid {
        /// The argument.
        uid: String,
    },
    /// A key file is missing, or holds no key.
    #[error("read {argument}")]
    Key {
        /// The argument that names it.
        argument: &'static str,
        /// What is wrong.
        source: ReadKey,
    },
}

/// What the worker was told, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// This worker's name in the membership.
    pub name: String,
    /// UID of the Dataset.
    pub dataset_uid: String,
    /// UID of the pod that this worker is; empty where it is none.
    pub pod_uid: String,
    /// Data port as asked for.
    pub data_address: SocketAddr,
    /// Control port as asked for.
    pub control_address: SocketAddr,
    /// Admin port as asked for.
    pub admin_address: SocketAddr,
    /// Where to write the addresses in use.
    pub addresses_file: Option<PathBuf>,
    /// Key of the data port.
    pub data_key: Key,
    /// Key of the control port.
    pub control_key: Key,
    /// Indexes, ledgers, sources.
    pub state_dir: PathBuf,
    /// Cache folders, fastest first.
    pub tiers: Vec<TierConfig>,
    /// What makes room.
    pub eviction: Eviction,
    /// Free space to leave on a tier's disk, bytes.
    pub free_space_floor_bytes: u64,
    /// Folder of credential folders.
    pub credentials_dir: Option<PathBuf>,
    /// Profile for sources without credentials.
    pub profile: Option<String>,
    /// Memory limit by flag, bytes.
    pub memory_limit_bytes: Option<u64>,
    /// Sources to begin with.
    pub sources_file: Option<PathBuf>,
}

impl Config {
    /// Checks the arguments and reads the keys.
    ///
    /// # Errors
    /// [`ConfigError`] names the argument or file, and the cure.
    pub fn from_args(args: &ServeArgs) -> Result<Self, ConfigError> {
        let is_label = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
        if args.name.is_empty() || args.name.len() > MAX_WORKER_NAME_BYTES || !args.name.bytes().all(is_label)
        {
            return Err(ConfigError::Name { name: args.name.clone() });
        }
        if !args.pod_uid.is_empty() && !is_pod_uid(&args.pod_uid) {
            return Err(ConfigError::PodUid { uid: args.pod_uid.clone() });
        }
        Ok(Self {
            name: args.name.clone(),
            dataset_uid: args.dataset_uid.clone(),
            pod_uid: args.pod_uid.clone(),
            data_address: args.data_address,
            control_address: args.control_address,
            admin_address: args.admin_address,
            addresses_file: args.addresses_file.clone(),
            data_key: key("--data-key-file", &args.data_key_file)?,
            control_key: key("--control-key-file", &args.control_key_file)?,
            state_dir: args.state_dir.clone(),
            tiers: args.tiers.iter().map(|tier| tier.0.clone()).collect(),
            eviction: match args.eviction {
                EvictionArg::Never => Eviction::Never,
                EvictionArg::Lru => Eviction::Lru,
            },
            free_space_floor_bytes: args.free_space_floor.bytes(),
            credentials_dir: args.credentials_dir.clone(),
            profile: args.profile.clone(),
            memory_limit_bytes: args.memory_limit.as_ref().map(ByteSize::bytes),
            sources_file: args.sources_file.clone(),
        })
    }

    /// Bytes of tmpfs that the memory tiers may fill: the kernel counts them into the memory limit.
    pub fn memory_tier_bytes(&self) -> u64 {
        let memory = self.tiers.iter().filter(|tier| tier.medium == Medium::Memory);
        memory.map(|tier| tier.quota_bytes).fold(0, u64::saturating_add)
    }
}

impl FromStr for Tier {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let refuse = |problem: String| ConfigError::Tier { text: text.to_owned(), problem };
        let (mut medium, mut dir, mut quota_bytes) = (None, None, None);
        for part in text.split(',') {
            let (field, value) =
                part.split_once('=').ok_or_else(|| refuse(format!("{part:?} is not field=value")))?;
            match field {
                "medium" if value.eq_ignore_ascii_case("disk") => medium = Some(Medium::Disk),
                "medium" if value.eq_ignore_ascii_case("memory") => medium = Some(Medium::Memory),
                "medium" => return Err(refuse(format!("medium {value:?} is neither Disk nor Memory"))),
                "dir" if !value.is_empty() => dir = Some(PathBuf::from(value)),
                "quota" => {
                    let size: ByteSize = value.parse().map_err(|error| refuse(format!("{error}")))?;
                    quota_bytes = Some(size.bytes());
                }
                _ => return Err(refuse(format!("field {field:?} is unknown or empty"))),
            }
        }
        let missing = |field: &str| refuse(format!("{field} is missing"));
        Ok(Self(TierConfig {
            dir: dir.ok_or_else(|| missing("dir"))?,
            medium: medium.ok_or_else(|| missing("medium"))?,
            quota_bytes: quota_bytes.ok_or_else(|| missing("quota"))?,
        }))
    }
}

fn key(argument: &'static str, path: &Path) -> Result<Key, ConfigError> {
    read_key(path).map_err(|source| ConfigError::Key { argument, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_reads_back_and_a_wrong_one_is_refused_with_the_cure() {
        let tier: Tier = "medium=Disk,dir=/cache,quota=1Gi".parse().unwrap();
        assert_eq!(tier.0.quota_bytes, 1 << 30);
        for (wrong, why) in [
            ("medium=Tape,dir=/c,quota=1Gi", "neither Disk nor Memory"),
            ("medium=Disk,dir=/c", "quota is missing"),
            ("medium=Disk,dir=/c,quota=lots", "not a size"),
            ("/cache", "not field=value"),
            ("medium=Disk,dir=/c,quota=1Gi,colour=red", "\"colour\" is unknown"),
        ] {
            let message = wrong.parse::<Tier>().unwrap_err().to_string();
            assert!(message.contains(why) && message.contains("medium=Disk,dir=/cache"), "{message}");
        }
    }

    #[test]
    fn the_arguments_make_a_config_and_a_bad_name_or_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        std::fs::write(&key, Key::new([1; 32]).to_hex()).unwrap();
        let parse_pod = |name: &str, key: &Path, pod: &str| {
            let key = key.to_str().unwrap();
            let args =
                ["cache-worker", "serve", "--name", name, "--dataset-uid", "u", "--data-key-file", key];
            let tier = "medium=Memory,dir=/t,quota=1Gi";
            let more = ["--control-key-file", key, "--state-dir", "/s", "--tier", tier, "--pod-uid", pod];
            let Command::Serve(args) = Cli::try_parse_from(args.iter().chain(&more)).unwrap().command;
            Config::from_args(&args)
        };
        let parse = |name: &str, key: &Path| parse_pod(name, key, "");
        let pod = "1d0c9a3e-2f0b-4c58-9f3e-1b0a4c5d6e7f";
        assert_eq!(parse_pod("w-0", &key, pod).unwrap().pod_uid, pod);
        assert!(matches!(parse_pod("w-0", &key, "../x"), Err(ConfigError::PodUid { .. })));
        assert_eq!(parse("w-0", &key).unwrap().memory_tier_bytes(), 1 << 30);
        assert!(matches!(parse("W 0", &key), Err(ConfigError::Name { .. })));
        let missing = parse("w", &dir.path().join("none")).unwrap_err();
        assert!(matches!(missing, ConfigError::Key { argument: "--data-key-file", .. }));
        std::fs::write(&key, "short").unwrap();
        assert!(matches!(parse("w", &key), Err(ConfigError::Key { .. })));
    }
}
