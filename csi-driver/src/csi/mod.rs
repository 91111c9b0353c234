//! How does kubelet talk to the driver? CSI's Identity and Node services, without staging.

pub mod error;
pub mod identity;
pub mod node;
pub mod proto;
