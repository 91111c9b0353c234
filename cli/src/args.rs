//! What can be asked of the program?

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use millrace_daemon::logging::LogArgs;
use millrace_s3_server::backend::spec::SyntheticSpec;

use crate::bench;
use crate::kubernetes::args as kubernetes;
use crate::local::folder::DatasetName;

/// Feeds training jobs from object storage: cached once, read through a folder.
///
/// A Dataset says which parts of which buckets are wanted. In a cluster, `kubectl apply` it and annotate pods with
/// `millrace.dev/dataset: NAME=/data`; status, why and warm look after it there, also as `kubectl millrace` (link this program
/// as kubectl-millrace into the PATH). `millrace local up` serves the same file on this machine alone.
#[derive(Debug, Parser)]
#[command(
    name = "millrace",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = EXAMPLE,
    after_long_help = format!("{EXAMPLE}\n\n{}", crate::exit::CODES),
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Logging.
    #[command(flatten)]
    pub log: LogArgs,
}

const EXAMPLE: &str = "Try it without a bucket of your own:\n  \
    millrace s3 serve /usr/share/doc --bucket docs --listen 127.0.0.1:9000   # an S3 server over a folder\n  \
    mkdir -p /mnt/docs && millrace local up -f dataset.yaml --mount /mnt/docs # in another terminal\n  \
    millrace local status\n\nWhere dataset.yaml is:\n  \
    apiVersion: millrace.dev/v1alpha1\n  kind: Dataset\n  metadata: {name: docs}\n  spec:\n    sources:\n    \
    - path: /\n      s3: {bucket: docs, endpoint: \"http://127.0.0.1:9000\", credentials: {anonymous: {}}}";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show Datasets of a cluster: how much is cached, who serves, who has it mounted, what is wrong.
    #[command(after_help = kubernetes::STATUS_HELP)]
    Status(kubernetes::StatusArgs),
    /// Tell why a pod of a cluster waits for its data, or a Dataset does not serve, and how to cure it.
    #[command(after_help = kubernetes::WHY_HELP)]
    Why(kubernetes::WhyArgs),
    /// Load files or folders of a Dataset of a cluster ahead, and wait until they are cached.
    #[command(after_help = kubernetes::WARM_HELP)]
    Warm(kubernetes::WarmArgs),
    /// Run a Dataset on this machine, without a cluster: workers and a mount.
    Local(LocalArgs),
    /// Serve S3 from a folder or from computed bodies, for trials and tests.
    S3 {
        /// What to do.
        #[command(subcommand)]
        command: S3Command,
    },
    #[command(
        about = bench::help::ABOUT,
        long_about = bench::help::LONG_ABOUT,
        after_help = bench::help::AFTER,
        after_long_help = bench::help::AFTER_LONG
    )]
    Bench(Box<bench::args::BenchArgs>),
    /// Check a Dataset's file as the API server and the workers would.
    #[command(
        after_help = "Example:\n  millrace validate -f dataset.yaml\n\nAll problems are listed at once, each with field, \
        value and cure. Exit code 1 where there are any."
    )]
    Validate(ValidateArgs),
    /// Print the CustomResourceDefinition of Dataset.
    #[command(after_help = "Example:\n  millrace crd | kubectl apply -f -")]
    Crd {
        /// Print it as a page for people, in Markdown.
        #[arg(long)]
        docs: bool,
    },
    /// Print a shell's completions.
    #[command(after_help = "Example:\n  millrace completions bash > /etc/bash_completion.d/millrace\n\n\
        As a plug-in of kubectl: link this program as kubectl-millrace and, for completions, as kubectl_complete-millrace into the PATH.")]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// Arguments of `local`.
#[derive(Debug, Args)]
pub struct LocalArgs {
    /// Folder where Datasets keep identity, keys, cache and logs [default: $XDG_STATE_HOME/millrace or ~/.local/state/millrace].
    #[arg(long, global = true, env = "MILLRACE_LOCAL_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: LocalCommand,
}

/// Commands of `local`.
#[derive(Debug, Subcommand)]
pub enum LocalCommand {
    /// Start workers and mount of a Dataset, and keep them up until Ctrl-C.
    ///
    /// The file holds a Dataset and the Secrets that it names, as for `kubectl apply`. The bucket is listed, the workers load
    /// ahead what spec.warmUp says, and the files can be read as soon as the line "ready: mounted at ..." is printed. Processes
    /// that die are started again. What is cached outlives a stop.
    #[command(after_help = "Examples:\n  millrace local up -f dataset.yaml\n  \
        millrace local up -f dataset.yaml --mount /mnt/imagenet --workers 3\n  \
        millrace local up -f dataset.yaml --ready-file /run/ready.json &   # for scripts\n\n\
        Without --mount the files are in the Dataset's state folder, below mount/. Root mounts by itself; other users need fusermount3.")]
    Up(UpArgs),
    /// Show version, cache, workers, mount and conditions, whether it runs or not.
    #[command(after_help = "Examples:\n  millrace local status\n  \
        millrace local status imagenet -o json | jq '.status.conditions[] | select(.type == \"Ready\").status'")]
    Status(StatusArgs),
    /// Load files or folders ahead, and wait until they are cached.
    ///
    /// Goes before the warm-up of the Dataset, which goes on afterwards. Exit code 1 where objects failed, or the caches are full.
    #[command(
        after_help = "Examples:\n  millrace local warm /train\n  millrace local warm /mnt/imagenet/train/n01440764"
    )]
    Warm(WarmArgs),
    /// Tell all about one file: its object, where its blocks are cached, who owns them, what failed last and how to cure it.
    ///
    /// For a path that is not shown, the keys that were left out and why; without a path, all such keys. A key is left out where it
    /// cannot be a file beside the others: `a` beside `a/b`; empty, `.` and `..` segments; a segment over 255 bytes; NUL, or bytes
    /// that are no UTF-8; a trailing `/` with content.
    #[command(
        after_help = "Examples:\n  millrace local why /train/a.jpg\n  millrace local why /mnt/imagenet/train/a.jpg\n  \
        millrace local why        # which keys are not shown"
    )]
    Why(WhyArgs),
    /// Stop a Dataset and unmount it, also after a crash. What is cached stays.
    Down(NameArgs),
    /// Forget a Dataset that is down: identity, keys, cache, logs. The bucket is not touched.
    Rm(NameArgs),
}

/// Arguments of `local up`.
#[derive(Debug, Clone, Args)]
pub struct UpArgs {
    /// The file; `-` reads stdin.
    #[arg(short = 'f', long, value_name = "FILE")]
    pub file: PathBuf,
    /// An empty folder to mount on [default: mount/ in the Dataset's state folder].
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// How many workers [default: spec.workers.replicas].
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// Write {"mount", "version", "pid"} to this file as JSON once the files can be read.
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
}

/// A Dataset by name.
#[derive(Debug, Args)]
pub struct NameArgs {
    /// NAME or NAMESPACE/NAME; may be left away where only one is up, or only one is there.
    #[arg(value_name = "NAME")]
    pub name: Option<DatasetName>,
}

/// Arguments of `local status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// NAME or NAMESPACE/NAME; all Datasets without.
    #[arg(value_name = "NAME")]
    pub name: Option<DatasetName>,
    /// For people, or JSON in the shape of the Dataset's status.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

/// Arguments of `local warm`.
#[derive(Debug, Args)]
pub struct WarmArgs {
    /// Files or folders, as in the dataset or below its mount point; `/` is all.
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// NAME or NAMESPACE/NAME of the Dataset; may be left away where only one is up, or paths are below its mount point.
    #[arg(long, value_name = "NAME")]
    pub dataset: Option<DatasetName>,
}

/// Arguments of `local why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// A file, as in the dataset or below its mount point.
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// NAME or NAMESPACE/NAME of the Dataset; may be left away where only one is up, or the path is below its mount point.
    #[arg(long, value_name = "NAME")]
    pub dataset: Option<DatasetName>,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// For programs: one JSON value.
    Json,
}

/// Arguments of `validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// The file; `-` reads stdin.
    #[arg(short = 'f', long, value_name = "FILE")]
    pub file: PathBuf,
}

/// Commands of `s3`.
#[derive(Debug, Subcommand)]
pub enum S3Command {
    /// Serve until Ctrl-C.
    ///
    /// The folder is read only; each file is an object whose key is its path. A synthetic bucket computes keys and bodies, so
    /// that any size costs neither memory nor disk.
    #[command(after_long_help = "Examples:\n  \
        millrace s3 serve ~/photos --bucket photos\n  \
        millrace s3 serve --synthetic bucket=train,objects=100000,size=10KiB..2MiB,per-dir=1000\n  \
        millrace s3 serve DIR --access-key me --secret-key secret --tls --ca-file ca.pem --faults faults.yaml\n\n\
        Several synthetic buckets are joined by `;`. Fields: bucket, objects, size (one, or LOW..HIGH), prefix, suffix, per-dir,\n\
        depth, seed.\n\n\
        A fault plan is YAML: firstByte: 30ms, jitter: 5ms, listPage: 30ms, perStream: 80MB, total: 400MB, seed: 1, rules: a list of\n\
        {fault: {kind: slowDown}, operations: [GetObject], probability: 0.3, keys: \"img/**\", count: 2, skip: 0}; kinds: slowDown,\n\
        error, truncate, reset, drop, hang, stall, delay, changedEtag, overwritten, deleted, ifMatchIgnored, rangeIgnored,\n\
        wrongRange, corruptBody, listingOutOfOrder, listingWithoutEtags. While it runs, PUT /faults and PUT /outage at the admin address change it, and\n\
        GET /counters counts requests and bytes.")]
    Serve(Box<S3ServeArgs>),
    /// Read every file below a folder and compare it with a synthetic bucket, byte for byte.
    ///
    /// Exit code 1 with the first difference: a file that cannot be read, wrong bytes, a wrong size, a wrong number of files.
    #[command(
        after_help = "Example:\n  millrace s3 check /mnt/train --synthetic objects=100000,size=10KiB..2MiB,per-dir=1000"
    )]
    Check(S3CheckArgs),
}

/// Arguments of `s3 check`.
#[derive(Debug, Args)]
pub struct S3CheckArgs {
    /// Folder that shows the bucket.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The bucket, as for `s3 serve`.
    #[arg(long, value_name = "SPEC", value_parser = parse_synthetic)]
    pub synthetic: SyntheticSpecs,
}

/// Arguments of `s3 serve`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("served").required(true).multiple(true).args(["dir", "synthetic"])))]
pub struct S3ServeArgs {
    /// Folder to serve as a bucket.
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Buckets with computed keys and bodies; see the examples in --help.
    #[arg(long, value_name = "SPEC", value_parser = parse_synthetic)]
    pub synthetic: Option<SyntheticSpecs>,
    /// Name of the folder's bucket [default: the folder's own name], or of the only synthetic one.
    #[arg(long, value_name = "NAME")]
    pub bucket: Option<String>,
    /// Address of the S3 side. Port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Address of the admin side: counters, faults, outages. Anyone who reaches it may use it. Port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub admin: SocketAddr,
    /// File with a fault plan; see --help.
    #[arg(long, value_name = "FILE")]
    pub faults: Option<PathBuf>,
    /// Serve only requests signed with this key (and --secret-key). Without, everyone is served.
    #[arg(long, value_name = "ID", requires = "secret_key", env = "MILLRACE_S3_ACCESS_KEY")]
    pub access_key: Option<String>,
    /// The secret of --access-key.
    #[arg(
        long,
        value_name = "SECRET",
        requires = "access_key",
        env = "MILLRACE_S3_SECRET_KEY",
        hide_env_values = true
    )]
    pub secret_key: Option<String>,
    /// The session token that requests must carry beside --access-key.
    #[arg(
        long,
        value_name = "TOKEN",
        requires = "access_key",
        env = "MILLRACE_S3_SESSION_TOKEN",
        hide_env_values = true
    )]
    pub session_token: Option<String>,
    /// Serve requests without any signature too.
    #[arg(long, requires = "access_key")]
    pub anonymous: bool,
    /// Region of the buckets: requests signed for another are redirected.
    #[arg(long, value_name = "NAME")]
    pub region: Option<String>,
    /// Answer over TLS, with a certificate of an authority made at start.
    #[arg(long)]
    pub tls: bool,
    /// Where to write the authority's certificate [default: a file in the folder for temporary files].
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub ca_file: Option<PathBuf>,
    /// Exchange web identity tokens for temporary credentials at the same address (AssumeRoleWithWebIdentity).
    #[arg(long)]
    pub sts: bool,
    /// The only token that is exchanged; without, any is.
    #[arg(
        long,
        value_name = "TOKEN",
        requires = "sts",
        env = "MILLRACE_S3_STS_TOKEN",
        hide_env_values = true
    )]
    pub sts_token: Option<String>,
    /// How addresses are printed: one line each, or one JSON line.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

/// The value of `--synthetic`.
#[derive(Debug, Clone)]
pub struct SyntheticSpecs(pub Vec<SyntheticSpec>);

fn parse_synthetic(text: &str) -> Result<SyntheticSpecs, String> {
    SyntheticSpec::parse_all(text).map(SyntheticSpecs).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_server_needs_something_to_serve() {
        let parse = |args: &[&str]| Cli::try_parse_from(["millrace", "s3", "serve"].iter().chain(args));
        let error = parse(&[]).unwrap_err().to_string();
        assert!(error.contains("DIR") && error.contains("--synthetic"), "{error}");
        assert!(parse(&["dir"]).is_ok());
        assert!(parse(&["--synthetic", "objects=3,size=1KiB"]).is_ok());
        let error = parse(&["--synthetic", "object=3"]).unwrap_err().to_string();
        assert!(error.contains("object") && error.contains("objects"), "{error}");
    }
}
