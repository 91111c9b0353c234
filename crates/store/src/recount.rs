//! What do the files of a tier add up to?

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use millrace_api::ids::ContentId;

use crate::open_file::{LockedFile, OpenFile};
use crate::pair::{Opened, open_pair, unlink_pair};
use crate::sidecar::{Entry, Layout, PAGE_BYTES, Record};
use crate::stats::add;
use crate::tier::{Tier, blocks_dir, held_by};
use crate::usage::Held;

/// What file systems allocate beside the chunks: extent tree blocks, a 128th at most.
fn slack_bytes(bytes: u64) -> u64 {
    (64 << 10) + bytes / 128
}

/// Counts what all store files of a tier take, removes what is no whole store file, and mends records that a killed
/// process left behind its entries.
pub(crate) fn recount(tier: &Tier) -> Held {
    let mut held = Held::default();
    let mut visit = |content: ContentId| match open_pair(&tier.paths(content), content) {
        Ok(Opened::File(open)) => match count_file(tier, &open) {
            Ok(file) => {
                held.bytes += file.bytes;
                held.read_through_bytes += file.read_through_bytes;
                held.files += 1;
            }
            Err(error) => drop_file(tier, content, &error.to_string()),
        },
        Ok(Opened::Absent | Opened::Removed) => {}
        Ok(Opened::Damaged(what)) => drop_file(tier, content, what),
        Err(error) => drop_file(tier, content, &error.to_string()),
    };
    for path in walk(&tier.config.dir) {
        match name_of(&path) {
            Some((content, "map")) => visit(content),
            Some((content, "data")) if !tier.paths(content)[1].exists() => remove(&path),
            // Left by a process that was killed while it made a file.
            Some((_, "new")) => remove(&path),
            Some(_) | None => {}
        }
    }
    held
}

/// Removes all store files under `dir`, and says how many there were.
pub(crate) fn remove_all(dir: &Path) -> io::Result<u64> {
    let files = walk(dir).filter(|path| name_of(path).is_some_and(|(_, kind)| kind == "map")).count();
    fs::remove_dir_all(blocks_dir(dir))?;
    fs::create_dir_all(blocks_dir(dir))?;
    Ok(files as u64)
}

/// The contents that have a store file under `dir`.
pub(crate) fn contents(dir: &Path) -> impl Iterator<Item = ContentId> {
    walk(dir).filter_map(|path| match name_of(&path) {
        Some((content, "map")) => Some(content),
        Some(_) | None => None,
    })
}

/// The contents that have a store file in one of the 256 folders.
pub(crate) fn contents_of_shard(dir: &Path, shard: u8) -> Vec<ContentId> {
    let folder = fs::read_dir(blocks_dir(dir).join(format!("{shard:02x}")));
    let paths = folder.into_iter().flatten().flatten().map(|entry| entry.path());
    paths
        .filter_map(|path| name_of(&path).filter(|(_, kind)| *kind == "map").map(|(content, _)| content))
        .collect()
}

/// All paths in the folders of store files. A folder that cannot be read has none.
fn walk(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let paths = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    paths(&blocks_dir(dir)).flat_map(move |shard| paths(&shard))
}

/// The content and the kind that a file's name says; `None` for names that are not ours.
fn name_of(path: &Path) -> Option<(ContentId, &str)> {
    let content = path.file_stem().and_then(OsStr::to_str)?.parse().ok()?;
    Some((content, path.extension().and_then(OsStr::to_str)?))
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = ?path, error = %error, "remove left-over of a store file");
    }
}

fn drop_file(tier: &Tier, content: ContentId, what: &str) {
    tracing::warn!(content = %content, dir = ?tier.config.dir, what, "store file dropped");
    add(&tier.counters.damaged_files, 1);
    if let Err(error) = unlink_pair(&tier.paths(content)) {
        tracing::warn!(content = %content, dir = ?tier.config.dir, error = %error, "remove damaged store file");
    }
}

fn count_file(tier: &Tier, open: &OpenFile) -> io::Result<Held> {
    // Whoever holds the lock keeps records and entries in step.
    if let Ok(Some(locked)) = open.try_lock() {
        let mended = mend(&locked)?;
        add(&tier.counters.corrupt_chunks, mended);
    }
    held_by(open)
}

/// Brings the records in step with the entries, and gives back bytes that no entry vouches for. Returns how many
/// damaged entries were cleared.
fn mend(locked: &LockedFile<'_>) -> io::Result<u64> {
    let open = locked.open();
    let Layout { file } = open.layout;
    let mut pages = vec![0_u32; file.blocks() as usize];
    let mut damaged = Vec::new();
    open.entries(0..file.slots, |slot, entry| {
        match entry {
            Entry::Present { pages: chunk, .. } => pages[(slot / file.slots_per_block) as usize] += chunk,
            Entry::Damaged => damaged.push(slot),
            Entry::Absent => {}
        }
        true
    })?;
    if !damaged.is_empty() && open.seal()?.is_handed_over() {
        return Err(io::Error::other("chunks lost in a file that the kernel may read"));
    }
    for slot in &damaged {
        locked.set_raw_entries(*slot, &[0])?;
    }
    for ((block, record), pages) in (0..).zip(open.records()?).zip(&pages) {
        if record.pages != *pages {
            locked.set_record(block, Record { pages: *pages, ..record })?;
        }
    }
    let whole = pages.iter().map(|pages| u64::from(*pages) * PAGE_BYTES).sum::<u64>();
    if open.allocated_bytes()? > whole + slack_bytes(whole) {
        punch_absent(locked)?;
    }
    Ok(damaged.len() as u64)
}

/// Punches the slots of a large object that are absent. Packs keep theirs: where their chunks lie is not known here,
/// and a pack is small.
fn punch_absent(locked: &LockedFile<'_>) -> io::Result<()> {
    let open = locked.open();
    let Layout { file } = open.layout;
    let is_large = millrace_api::block::chunk_count(file.len) == file.slots;
    if !is_large || open.seal()?.is_handed_over() {
        return Ok(());
    }
    let chunk = millrace_api::block::CHUNK_BYTES;
    let mut run = 0..0;
    let mut holes = Vec::new();
    open.entries(0..file.slots, |slot, entry| {
        if matches!(entry, Entry::Present { .. }) {
            holes.push(std::mem::replace(&mut run, slot + 1..slot + 1));
        } else {
            run.end = slot + 1;
        }
        true
    })?;
    holes.push(run);
    for hole in holes.into_iter().filter(|hole| !hole.is_empty()) {
        locked.punch(u64::from(hole.start) * chunk, hole.len() as u64 * chunk)?;
    }
    Ok(())
}
