//! Which parts of a version does a warm-up load, and in which order?

use std::ops::Range;

use millrace_api::index::{DirIndex, FileIndex, IndexView, Node};
use millrace_api::placement::Membership;

use crate::members::Members;
use crate::reads::plan::MAX_REQUEST_CHUNKS;
use crate::versions::{Object, Version};

/// This worker's share of one file.
#[derive(Debug)]
pub struct Unit {
    /// Its place in the walk.
    pub place: u64,
    /// The file.
    pub object: Object,
    /// Runs of chunks that this worker owns, each at most one request long.
    pub runs: Vec<Range<u32>>,
    /// Their bytes.
    pub bytes: u64,
}

/// Goes through the files of the chosen paths in one fixed order.
#[derive(Debug)]
pub struct Walk {
    /// What is still to be visited, the next one last: files by number for all, else nodes.
    pending: Vec<Pending>,
    place: u64,
}

#[derive(Debug, Clone, Copy)]
enum Pending {
    Files { next: u32, end: u32 },
    File(FileIndex),
    Children { dir: DirIndex, next: u32 },
}

/// The paths that a version does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPaths(pub Vec<String>);

impl Walk {
    /// Begins at `place` of the walk over `paths`; no path, or `/`: everything.
    ///
    /// # Errors
    /// The paths that are not in the version.
    pub fn new(view: IndexView<'_>, paths: &[String], place: u64) -> Result<Self, UnknownPaths> {
        let mut walk = Self { pending: Vec::new(), place: 0 };
        let mut unknown = Vec::new();
        for path in paths.iter().rev() {
            match view.resolve(path.as_bytes()) {
                Some(Node::Dir(dir)) if dir == view.root() => walk.pending.clear(),
                Some(Node::Dir(dir)) => walk.pending.push(Pending::Children { dir, next: 0 }),
                Some(Node::File(file)) => walk.pending.push(Pending::File(file)),
                None => unknown.push(path.clone()),
            }
        }
        if !unknown.is_empty() {
            unknown.reverse();
            return Err(UnknownPaths(unknown));
        }
        let is_all = paths.is_empty() || paths.iter().any(|path| path.trim_matches('/').is_empty());
        if is_all {
            let end = view.totals().files;
            walk.pending = vec![Pending::Files { next: place.min(u64::from(end)) as u32, end }];
            walk.place = place;
        } else {
            while walk.place < place && walk.next_file(view).is_some() {}
        }
        Ok(walk)
    }

    /// The place of the next file.
    pub fn place(&self) -> u64 {
        self.place
    }

    /// The next file of which this worker owns a part; `None` at the end.
    pub fn next_unit(
        &mut self,
        version: &Version,
        members: &Members,
        membership: &Membership,
    ) -> Option<Unit> {
        loop {
            let place = self.place;
            let file = self.next_file(version.view())?;
            if let Some(unit) = unit(place, file, version, members, membership) {
                return Some(unit);
            }
        }
    }

    fn next_file(&mut self, view: IndexView<'_>) -> Option<FileIndex> {
        loop {
            let file = match self.pending.last_mut()? {
                Pending::Files { next, end } if *next < *end => {
                    *next += 1;
                    Some(FileIndex(*next - 1))
                }
                Pending::Files { .. } => {
                    self.pending.pop();
                    None
                }
                Pending::File(file) => {
                    let file = *file;
                    self.pending.pop();
                    Some(file)
                }
                Pending::Children { dir, next } => {
                    let node = view.children(*dir, *next).next();
                    *next += 1;
                    match node {
                        Some(Node::File(file)) => Some(file),
                        // No deeper than the longest path has segments.
                        Some(Node::Dir(dir)) => {
                            self.pending.push(Pending::Children { dir, next: 0 });
                            None
                        }
                        None => {
                            self.pending.pop();
                            None
                        }
                    }
                }
            };
            if let Some(file) = file {
                self.place += 1;
                return Some(file);
            }
        }
    }
}

/// This worker's share of a file; `None` where it has none.
fn unit(
    place: u64,
    file: FileIndex,
    version: &Version,
    members: &Members,
    membership: &Membership,
) -> Option<Unit> {
    // Cheap first: most files of a large dataset are others'.
    let view = version.view();
    if let Some(pack) = view.pack_of(file)
        && !members.owned_in(membership, view.pack(pack)?.placement)
    {
        return None;
    }
    let object = version.look_up(file)?;
    let span = object.span;
    let mut runs: Vec<Range<u32>> = Vec::new();
    let mut bytes = 0;
    let blocks = if object.is_packed() { 1 } else { span.file.blocks() };
    for block in 0..blocks {
        if !object.is_packed() && !members.owned_in(membership, object.placement(block)) {
            continue;
        }
        let chunks = span.chunks_in_block(block);
        if chunks.is_empty() {
            continue;
        }
        bytes += (chunks.clone())
            .filter_map(|chunk| span.place(chunk))
            .map(|place| u64::from(place.len))
            .sum::<u64>();
        match runs.last_mut() {
            Some(last) if last.end == chunks.start && chunks.end - last.start <= MAX_REQUEST_CHUNKS => {
                last.end = chunks.end
            }
            _ => runs.extend(cut(chunks)),
        }
    }
    (!runs.is_empty()).then_some(Unit { place, object, runs, bytes })
}

/// Cuts a block that is longer than a request may be.
fn cut(chunks: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let end = chunks.end;
    chunks.step_by(MAX_REQUEST_CHUNKS as usize).map(move |start| start..end.min(start + MAX_REQUEST_CHUNKS))
}
