//! How fast are large files read, block by block?

mod opening;
mod random;
mod sequential;

#[cfg(test)]
mod tests;

pub use random::random;
pub use sequential::{mapped, sequential};

/// How files are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Through the page cache.
    Cached,
    /// Round it, by O_DIRECT.
    Direct,
}
