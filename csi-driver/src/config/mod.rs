//! What was the program told to do? Arguments and environment, parsed once.

pub mod mount;
pub mod serve;

use clap::{Parser, Subcommand};

use self::mount::MountArgs;
use self::serve::ServeArgs;

/// Shows datasets as read-only file systems.
#[derive(Debug, Parser)]
#[command(name = "csi-driver", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Mount one version of a dataset and serve it until told to stop (SIGTERM) or unmounted.
    ///
    /// Root mounts by itself; other users need `fusermount3`. The index and, with a node store, everything read before
    /// are kept in folders that outlive the process and may be shared by several mounts.
    #[command(
        after_long_help = "Example:\n  csi-driver mount --dataset imagenet --version 6f1c... --mount-point /mnt/imagenet \
        \\\n    --membership-file /state/membership.json --data-key-file /state/data.key --index-dir /state/indexes \
        \\\n    --node-store /cache --node-store-quota 50Gi\n\nThe membership file is JSON: {\"epoch\": 1, \"workers\": \
        [{\"name\": \"imagenet-0\", \"address\": \"10.0.0.7:7420\", \"weight\": 1}]}\nLater memberships are learned from the workers, and from the file when it changes."
    )]
    Mount(Box<MountArgs>),
    /// Serve a node: publish datasets in pods as kubelet asks for it (CSI), until told to stop (SIGTERM).
    ///
    /// Needs root with CAP_SYS_ADMIN, /dev/fuse, and kubelet's folder with mounts propagating to the host. Each dataset
    /// version in use has one mount process, a child of this one, shared by its pods.
    #[command(
        after_long_help = "Example:\n  csi-driver serve --node-name node-7 --cache-dir /var/lib/millrace/cache --node-cache-limit 500Gi"
    )]
    Serve(Box<ServeArgs>),
}
