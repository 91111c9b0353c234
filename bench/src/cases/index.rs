//! How large is the index of ten million files, and how fast is it opened and searched?

use std::io::{BufWriter, Seek, Write};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use millrace_api::block::BlockSize;
use millrace_api::index::format::Slot;
use millrace_api::index::{Assembler, DirIndex, FileEntry, Node, SourceEntry, Streams};
use millrace_store::index_file::{IncomingIndex, IndexFile};
use millrace_workload::caches;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Outcome;
use crate::lab::Lab;
use crate::line::{Bar, Figure, Measured, Pair};

/// Files in the index.
const FILES: u32 = 10_000_000;

/// Files in each folder.
const PER_FOLDER: u32 = 1000;

/// Look-ups in a round.
const LOOK_UPS: u32 = 2_000_000;

/// Builds the index once, then opens it and looks names up in each round.
pub fn run(lab: &Lab) -> Result<Outcome> {
    let dir = lab.disk_dir("index")?;
    let started = Instant::now();
    let (mut incoming, text) = (IncomingIndex::create(dir.path())?, names_bytes());
    assemble(lab, &mut incoming)?;
    let index = incoming.install(None)?;
    let built = started.elapsed();
    let (version, length) = (index.view().version_id(), index.len());
    drop(index);

    let mut size = Measured::new("index-bytes", "B a key", Bar::AtMost(Figure::Ours, 100.0));
    size.pairs = vec![Pair { ours: length.saturating_sub(text) as f64 / f64::from(FILES), baseline: None }];
    size.notes = vec![
        format!("{length} bytes in all, {text} of them names"),
        format!("built and verified in {:.0} s", built.as_secs_f64()),
    ];
    let mut open = Measured::new("index-open", "s", Bar::AtMost(Figure::Ours, 1.0));
    lab.rounds(&mut open, |_| {
        if caches::check_may_drop().is_ok() {
            caches::drop_all()?;
        }
        let started = Instant::now();
        let index = IndexFile::open(dir.path(), version)?;
        ensure!(index.view().lookup(DirIndex(0), b"train").is_some(), "the index has no folder train");
        Ok(Pair { ours: started.elapsed().as_secs_f64(), baseline: None })
    })?;
    open.notes = vec![
        if caches::check_may_drop().is_ok() { "page cache dropped" } else { "page cache warm: not root" }
            .to_owned(),
    ];
    let index = IndexFile::open(dir.path(), version)?;
    let mut search = Measured::new("index-look-ups", "M/s", Bar::AtLeast(Figure::Ours, 1.5));
    look_up(&index, u64::MAX)?;
    lab.rounds(&mut search, |round| {
        Ok(Pair { ours: f64::from(LOOK_UPS) / 1e6 / look_up(&index, round as u64)?, baseline: None })
    })?;
    Ok(Outcome::Measured(vec![size, open, search]))
}

fn folder(number: u32) -> String {
    format!("{number:05}")
}

fn name(number: u32) -> String {
    format!("{number:09}.jpg")
}

/// Bytes of the names of all files and folders.
fn names_bytes() -> u64 {
    let (file, dir) = (name(0).len() as u64, folder(0).len() as u64);
    u64::from(FILES) * file + u64::from(FILES / PER_FOLDER) * dir + "train".len() as u64
}

fn assemble(lab: &Lab, incoming: &mut IncomingIndex) -> Result<()> {
    let sources = vec![SourceEntry {
        bucket: "bench".to_owned(),
        endpoint: "http://s3".to_owned(),
        ..SourceEntry::default()
    }];
    let mut assembler = Assembler::new(BlockSize::default(), sources, Streams::<Vec<u8>>::default())?;
    for number in 0..FILES {
        if number % PER_FOLDER == 0 {
            lab.check()?;
        }
        let path = format!("train/{}/{}", folder(number / PER_FOLDER), name(number));
        // As S3 has them for objects uploaded in one part: 32 hexadecimal digits.
        let etag =
            format!("{:032x}", u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
        assembler.file(&FileEntry {
            path: path.as_bytes(),
            source: 0,
            size: 100_000 + u64::from(number % 1000),
            modified_ms: 1_700_000_000_000,
            etag: &etag,
            archived: false,
        })?;
    }
    let (streams, assembled) = assembler.finish()?;
    let Streams { files, children, packs, members, hashes, text } = &streams;
    let readers = Streams { files: &files[..], children, packs, members, hashes, text };
    let mut slots = vec![Slot::EMPTY; assembled.slot_count()];
    let mut out = BufWriter::new(incoming.file());
    assembled.write(readers, &mut slots, &mut out)?;
    out.flush()?;
    out.rewind().context("rewind the index")
}

/// Looks random files up, each by its folder and name, on one core; returns the seconds.
fn look_up(index: &IndexFile, seed: u64) -> Result<f64> {
    let view = index.view();
    let mut random = StdRng::seed_from_u64(seed);
    let mut wanted = Vec::with_capacity(LOOK_UPS as usize);
    for _ in 0..LOOK_UPS {
        let number = random.random_range(0..FILES);
        wanted.push((number / PER_FOLDER, name(number)));
    }
    let mut folders = Vec::new();
    for number in 0..FILES / PER_FOLDER {
        let Some(Node::Dir(dir)) = view.resolve(format!("train/{}", folder(number)).as_bytes()) else {
            anyhow::bail!("the index has no folder {number}");
        };
        folders.push(dir);
    }
    let started = Instant::now();
    let mut found = 0;
    for (folder, name) in &wanted {
        let dir = folders.get(*folder as usize).copied().unwrap_or(DirIndex(0));
        found += u32::from(matches!(view.lookup(dir, name.as_bytes()), Some(Node::File(_))));
    }
    let took = started.elapsed().as_secs_f64();
    ensure!(found == LOOK_UPS, "{found} of {LOOK_UPS} look-ups found their file");
    Ok(took)
}
