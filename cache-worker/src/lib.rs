//! The cache worker: pulls a dataset out of S3 once and serves its blocks.

pub mod cached;
pub mod config;
pub mod control;
pub mod indexer;
pub mod indexes;
pub mod members;
pub mod metrics;
pub mod observed;
pub mod origin;
pub mod reads;
pub mod recheck;
pub mod serve;
pub mod sources;
pub mod state;
pub mod versions;
pub mod warm;
pub mod worker;
