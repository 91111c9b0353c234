//! How does a FUSE file system come to its folder and leave it? The only place with mount syscalls.
//!
//! Everything here may block, each step for its deadline at most: call it from a blocking thread.

pub mod attach;
pub mod bind;
pub mod deadline;
pub mod device;
pub mod error;
pub mod fusermount;
pub mod memory;
pub mod mountinfo;
pub mod options;
pub mod point;
pub mod read_ahead;
pub mod stale;
pub mod syscalls;
