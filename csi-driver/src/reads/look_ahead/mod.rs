//! How is fetched what nobody has asked for yet?
//!
//! What follows in one large file is [`super::ReadAhead`]'s to say, for each reader. Here it is said for the whole mount:
//! [`plan`] decides, [`run()`] fetches.

pub mod plan;
mod run;

pub use run::{AheadCounters, LookAhead, run};
