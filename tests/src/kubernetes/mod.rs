//! How does a test use a real Kubernetes: `scripts/cluster`, with Millrace installed by its chart?
//!
//! A test takes its [`cluster::Cluster`] (shared with others, or alone where it disturbs them), a [`namespace::Namespace`] of
//! its own, and puts objects there. All calls block. What went wrong is printed by [`diagnosis`] when a test fails.

pub mod audit;
pub mod bucket;
pub mod cluster;
pub mod diagnosis;
pub mod namespace;
pub mod objects;
pub mod own_operator;
pub mod plugin;
pub mod readers;
mod turn;
