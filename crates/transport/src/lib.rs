//! The data port: frames, hello, client with owner choice and deadlines, server loop.

pub mod client;
mod counter;
pub mod server;

pub use counter::{ClientCounters, Counter, ServerCounters};

/// Whether a reader waits for the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Somebody waits: goes first.
    Foreground,
    /// Read ahead or warm-up.
    Prefetch,
}
