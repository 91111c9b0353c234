//! The mount process that shows a dataset as a read-only file system.

pub mod config;
pub mod dataset_fs;
pub mod members;
pub mod metrics;
pub mod mount;
pub mod reads;
pub mod serve;
