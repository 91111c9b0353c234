//! The data port: frames, hello, client with owner choice and deadlines, server loop.

pub mod client;
pub mod server;

/// Whether a reader waits for the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Somebody waits: goes first.
    Foreground,
    /// Read ahead or warm-up.
    Prefetch,
}
