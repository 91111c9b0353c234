//! Does a worker answer reads right, and ask S3 for each byte once? Through its real ports, over real sockets.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod cluster;
mod faults;
mod kubernetes;
mod pod;
mod process;
mod reads;
mod steering;
mod version_1;
mod warm_up;
