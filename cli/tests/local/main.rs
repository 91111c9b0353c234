//! Does a Dataset run on one machine: with real processes, mounts and an S3 server, through faults and crashes?

#![expect(clippy::unwrap_used, reason = "a test may fail in any line")]

mod crashes;
mod foreign;
mod rig;
mod running;
mod trouble;
