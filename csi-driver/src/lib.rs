//! The CSI driver of a node, and the mount process that shows a dataset as a read-only file system.

pub mod announce;
pub mod authority;
pub mod config;
pub mod csi;
pub mod dataset_fs;
pub mod datasets;
pub mod driver;
pub mod driver_metrics;
pub mod files;
pub mod local_workers;
pub mod members;
pub mod metrics;
pub mod mount;
pub mod mount_metrics;
pub mod node_cache;
pub mod node_mounts;
pub mod parent;
pub mod program;
pub mod publish;
pub mod quota;
pub mod reads;
pub mod recover;
pub mod registration;
pub mod serve;
pub mod socket;
