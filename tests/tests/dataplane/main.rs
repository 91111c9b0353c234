//! Does the whole data plane hold: real workers, real mounts, a real S3 server, real faults?

#![expect(clippy::unwrap_used, reason = "a test may fail in any line")]

mod disks;
mod keys;
mod local_worker;
mod model;
mod moving;
mod once;
mod origin;
mod outage;
mod packed;
mod passthrough;
mod processes;
mod programs;
mod reading;
mod refused;
mod stacked;
mod user;
