//! Does the driver of a node do for kubelet what it should, whatever dies or hangs? Real sockets, mounts and workers.

#![expect(clippy::unwrap_used, reason = "a test may fail in any line")]

mod driver;
mod hang;
mod metrics;
mod publish;
mod refused;
mod restart;
mod sanity;
mod settings;
mod sockets;
