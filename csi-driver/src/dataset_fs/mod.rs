//! How is a dataset version shown as a file system?

mod adapter;
pub mod begin;
mod followed;
pub mod handles;
pub mod mode;
pub mod open_metrics;
pub mod pass_through;
mod tree;

pub use adapter::DatasetFs;
pub use tree::{Listed, Ownership, Tree, XATTRS};
