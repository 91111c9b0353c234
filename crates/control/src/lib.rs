//! The control port: generated messages, client and key check.

pub mod client;
pub mod dataset;
pub mod degraded;
#[doc(hidden)]
pub mod fixtures;
pub mod membership;
pub mod mount;
mod proof;
pub mod proto;
pub mod server;
pub mod warm_up;

pub use tonic;
