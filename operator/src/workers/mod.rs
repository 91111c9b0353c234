//! How are the workers of all Datasets steered, and what do they say?
//!
//! The operator keeps one connection to the control port of each worker ([`connection`]): over it orders go out on change
//! ([`orders`]) and the worker's state comes in, which triggers a reconcile. Who is in the membership is decided in
//! [`membership`], what the workers are to do in [`steer`]; both are pure.

pub mod connection;
pub mod fleet;
pub mod listing;
pub mod membership;
pub mod orders;
pub mod seen;
pub mod sources;
pub mod steer;
pub mod triggers;
