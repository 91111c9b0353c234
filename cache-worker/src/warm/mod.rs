//! How is a dataset loaded before it is read?

pub mod ledger;
mod loading;
mod run;
pub mod store;
mod walk;

pub use run::{WarmUpNow, WarmUps};
pub use walk::UnknownPaths;
