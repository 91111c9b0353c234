//! How does a worker answer reads, asking the origin for each byte once?
//!
//! A read takes what the [store](millrace_store::Store) has by sendfile. What it lacks is *claimed* in the
//! [block map](block_map) by exactly one flight, whoever else wants it joins, and the [fetcher] brings it: cut into
//! chunks, checksummed, handed to all who wait, written to the store. What belongs to what was read follows in the
//! [background].

pub mod ahead;
pub mod background;
pub mod block_map;
pub mod cutter;
pub mod disk_wait;
mod ensure;
pub mod error;
pub mod failures;
pub mod fetcher;
pub mod patience;
pub mod plan;
mod reader;
pub mod room;
mod run_writer;
pub mod timing;

pub use reader::Reads;
pub use run_writer::Kept;
