//! What do tests of the whole data plane stand on: real processes, real mounts, a real S3 server?
//!
//! A test that cannot run here says so with [`skip::skipped`]. All guards end what they started when they are dropped,
//! also in a panic; child processes end with the thread that started them.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a harness of tests may fail in any line")]

pub mod cluster;
pub mod content;
pub mod kubernetes;
pub mod look;
pub mod mapped;
pub mod mounted;
pub mod program;
pub mod skip;
pub mod worker;
