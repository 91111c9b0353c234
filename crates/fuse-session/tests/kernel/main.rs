//! Does a real kernel get from a session what it asks for? Needs root and /dev/fuse; says so where they are missing.

#![expect(clippy::unwrap_used, reason = "a test may fail in any line")]

mod content;
mod lifecycle;
mod memory;
mod metadata;
mod mounted;
mod passthrough;
mod writable;
