//! The mount process that shows a dataset as a read-only file system.
