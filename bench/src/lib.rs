//! Comparisons of Millrace with what its users have now: plain S3 downloads, local disks, other mounts.
//!
//! Millrace runs as in real use, as processes of its own: an S3 server, workers, mount processes.

pub mod cases;
pub mod comparison;
pub mod demo;
pub mod lab;
pub mod line;
pub mod plain;
pub mod reading;
pub mod report;
pub mod rig;
pub mod rivals;
pub mod stats;
