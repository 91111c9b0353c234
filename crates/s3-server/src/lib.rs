//! An S3 server for demonstrations and tests, over a folder or synthesised bodies, with a fault plan.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use millrace_s3_server::backend::memory::InMemory;
//! use millrace_s3_server::faults::plan::FaultPlan;
//! use millrace_s3_server::faults::rule::{Fault, Rule};
//! use millrace_s3_server::server::S3Server;
//!
//! let objects = InMemory::new().with("a/b", "body");
//! let server = S3Server::builder()
//!     .bucket("data", &objects)
//!     .faults(FaultPlan::default().rule(Rule::from(Fault::SlowDown).probability(0.3)))
//!     .start()
//!     .await?;
//! println!("{} {:?}", server.endpoint(), server.counters());
//! server.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! A request goes through `listener` (accept), `service` (what is it, which faults befall it), s3s (signature and
//! protocol), `protocol` (S3's operations) and a `backend`; its answer comes back through `answer` (count, pace, cut).

mod admin;
mod answer;
pub mod auth;
pub mod backend;
mod body;
mod conditions;
pub mod config;
mod connection;
pub mod counters;
pub mod faults;
mod listener;
mod listing;
pub mod outage;
mod protocol;
pub mod region;
pub mod server;
mod service;
pub mod sts;
pub mod synthetic;
pub mod target;
pub mod tls;
pub mod units;
