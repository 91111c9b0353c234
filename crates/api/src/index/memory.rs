//! What is the index of a handful of files?

use std::io::Cursor;

use super::assemble::Assembler;
use super::entry::{AssembleIndex, FileEntry, SourceEntry, Streams};
use super::format::Slot;
use super::path_rule::compare_paths;
use crate::block::BlockSize;

/// Builds an index in memory, of files in any order.
///
/// # Errors
/// As [`Assembler::new`] and [`Assembler::file`]; sources must be sorted by path and may not overlap.
pub fn build_in_memory(
    block: BlockSize,
    sources: &[SourceEntry],
    files: &[FileEntry<'_>],
) -> Result<Vec<u8>, AssembleIndex> {
    let mut assembler = Assembler::new(block, sources.to_vec(), Streams::<Vec<u8>>::default())?;
    let mut sorted: Vec<&FileEntry<'_>> = files.iter().collect();
    sorted.sort_by(|a, b| compare_paths(a.path, b.path));
    for file in sorted {
        assembler.file(file)?;
    }
    finish_in_memory(assembler)
}

/// Writes the index of an assembler whose streams are in memory.
pub(super) fn finish_in_memory(assembler: Assembler<Vec<u8>>) -> Result<Vec<u8>, AssembleIndex> {
    let (streams, assembled) = assembler.finish()?;
    let Streams { files, children, packs, members, hashes, text } = &streams;
    let readers = Streams { files: &files[..], children, packs, members, hashes, text };
    let mut slots = vec![Slot::EMPTY; assembled.slot_count()];
    let mut out = Cursor::new(Vec::new());
    assembled.write(readers, &mut slots, &mut out)?;
    Ok(out.into_inner())
}
