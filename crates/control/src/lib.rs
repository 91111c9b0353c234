//! The control port: generated messages, client and key check.

pub mod client;
pub mod membership;
pub mod mount;
mod proof;
pub mod proto;
pub mod server;

pub use tonic;
