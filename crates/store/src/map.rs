//! How is a file seen as memory?
//!
//! The crate's only unsafe code.

#![expect(
    unsafe_code,
    reason = "mapping a file is unsafe by nature; what makes it sound is said at each block"
)]

use std::fmt;
use std::fs::File;
use std::io;

use memmap2::Mmap;
use millrace_api::index::{IndexView, OpenIndex};

/// A mapped index file with the view of it.
///
/// The mapping is read-only and shared, and index files are never changed once they have their name: they are written
/// under another one, made read-only, and renamed. A file that is cut short by somebody else ends the process with
/// SIGBUS, as does a read error; its successor verifies the index before it serves.
pub(crate) struct MappedIndex {
    /// Borrows from `map`. Never handed out with this lifetime.
    view: IndexView<'static>,
    map: Mmap,
}

impl fmt::Debug for MappedIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the bytes, which the view would print.
        f.debug_struct("MappedIndex").field("version", &self.view.version_id()).finish_non_exhaustive()
    }
}

impl MappedIndex {
    /// Maps a file; the inner error where its bytes are not those of an index.
    pub fn new(file: &File) -> io::Result<Result<Self, OpenIndex>> {
        // SAFETY: nobody writes to the file (see the type), so its bytes do not change while they are borrowed.
        let map = unsafe { Mmap::map(file)? };
        let (start, len) = (map.as_ptr(), map.len());
        // SAFETY: the mapping does not move when `map` does, and lives as long as the value that holds both; `view`
        // shortens the lifetime to that of its borrow, so no copy outlives the mapping.
        let bytes: &'static [u8] = unsafe { std::slice::from_raw_parts(start, len) };
        Ok(IndexView::open(bytes).map(|view| Self { view, map }))
    }

    /// The view of the index.
    pub fn view(&self) -> IndexView<'_> {
        self.view
    }

    /// Length of the file, bytes.
    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }
}
