//! The control port: generated messages, client and key check.

pub mod proto;
