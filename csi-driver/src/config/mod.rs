//! What was the program told to do? Arguments and environment, parsed once.

pub mod mount;

use clap::{Parser, Subcommand};

use self::mount::MountArgs;

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
}
