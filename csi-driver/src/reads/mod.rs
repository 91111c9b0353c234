//! How do the bytes of a file get from the node store or the workers to a reader?

mod assemble;
mod chunk_table;
mod errno;
mod fetch;
mod finish;
pub mod look_ahead;
mod read_ahead;
mod reader;
mod verifier;

pub use errno::errno_of;
pub use read_ahead::ReadAhead;
pub use reader::{Located, Reader, ReaderConfig};
pub use verifier::{ScrubPace, Verifier};
