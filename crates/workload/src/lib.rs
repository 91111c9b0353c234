//! What do training jobs and users do to a folder, and how long does it take?
//!
//! Everything here runs on any folder, needs no right to write there (but [`generate`], which makes data sets), and knows
//! nothing of Millrace: a mount of ours, a local disk and a mount of anybody else are asked the same questions.

pub mod blocks;
pub mod caches;
pub mod clock;
pub mod error;
pub mod generate;
pub mod latency;
pub mod metadata;
pub mod overhead;
pub mod plot;
pub mod run;
pub mod small_files;
pub mod train;
pub mod tree;

mod aligned;
mod map;
mod pace;
