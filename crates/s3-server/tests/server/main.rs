//! Does the server behave as S3 does, seen through the AWS SDK over real sockets?

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]
mod access;
mod client;
mod faults;
mod folder;
mod listing;
mod rates;
mod reads;
mod running;
