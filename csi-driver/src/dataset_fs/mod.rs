//! How is a dataset version shown as a file system?

mod adapter;
mod followed;
pub mod mode;
mod tree;

pub use adapter::DatasetFs;
pub use tree::{Listed, Ownership, Tree, XATTRS};
