//! How is each Dataset brought to what its user wants? Observe, validate, plan, build, apply, status; each step is pure or does
//! one kind of I/O, and only [`apply`] and [`cleanup`] write.

pub mod apply;
pub mod backoff;
pub mod cleanup;
pub mod context;
pub mod diff;
pub mod error;
pub mod events;
pub mod fault;
pub mod keys;
pub mod missing_pods;
pub mod mounts;
pub mod nudge;
pub mod objects;
pub mod observe;
pub mod reconcile;
pub mod roll;
pub mod run;
pub mod status;
pub mod trouble;
pub mod validate;
pub mod verdicts;
