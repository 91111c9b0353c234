//! The operator: what must exist in the cluster so that each Dataset can be read?

pub mod build;
pub mod config;
pub mod consumers;
pub mod controller;
pub mod lease;
pub mod master_key;
pub mod metrics;
pub mod serve;
pub mod uninstall;
pub mod webhook;
pub mod workers;
