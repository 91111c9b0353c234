//! What does a dataset version hold, and how is it asked and written?
//!
//! An *index* is the frozen listing of one dataset version: a file that is memory-mapped and read in place. Its bytes are
//! described in [`mod@format`], read through [`IndexView`], written by [`Assembler`] (from a sorted stream, in
//! little memory) or [`build_in_memory`].

mod assemble;
mod content;
mod entry;
mod etag;
pub mod format;
mod left_out;
mod memory;
mod open;
mod path_rule;
mod records;
mod slots;
mod verify;
mod view;
mod walk;
mod write;

pub use assemble::Assembler;
pub use entry::{AssembleIndex, FileEntry, SourceEntry, Streams};
pub use left_out::{LeftOutList, MAX_LEFT_OUT_LISTED};
pub use memory::build_in_memory;
pub use open::OpenIndex;
pub use path_rule::{LeftOutReason, MAX_NAME_BYTES, MAX_PATH_BYTES, Verdict, compare_paths, judge_key};
pub use slots::fill_slots;
pub use verify::VerifyIndex;
pub use view::{Dir, DirIndex, File, FileIndex, IndexView, Node, Pack, PackIndex, Source, Totals};
pub use walk::Children;
pub use write::Assembled;

#[cfg(test)]
mod tests;
