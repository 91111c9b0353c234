//! Millrace as real processes on this machine: an S3 server, workers, mount processes.

pub mod cgroup;
pub mod child;
pub mod echo;
pub mod host_memory;
pub mod metrics_page;
pub mod millrace;
pub mod mounted;
pub mod namespace;
pub mod origin;
pub mod usage;
