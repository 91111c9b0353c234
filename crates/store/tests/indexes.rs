//! Does an index file come in whole or not at all?

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use millrace_api::block::BlockSize;
use millrace_api::ids::VersionId;
use millrace_api::index::{FileEntry, SourceEntry, build_in_memory};
use millrace_store::index_file::{IncomingIndex, IndexFile, UseIndex};

fn index(files: u64) -> Vec<u8> {
    let source = SourceEntry {
        path: String::new(),
        endpoint: "http://127.0.0.1:9".to_owned(),
        bucket: "train".to_owned(),
        prefix: String::new(),
        region: String::new(),
    };
    let paths: Vec<String> = (0..files).map(|number| format!("a/{number:05}")).collect();
    let entry = |(size, path): (u64, &'_ String)| FileEntry {
        path: Box::leak(path.clone().into_boxed_str()).as_bytes(),
        source: 0,
        size,
        modified_ms: 0,
        etag: "d41d8cd98f00b204e9800998ecf8427e",
        archived: false,
    };
    let entries: Vec<FileEntry<'_>> = (0..).zip(&paths).map(entry).collect();
    build_in_memory(BlockSize::default(), &[source], &entries).unwrap()
}

fn install(dir: &Path, bytes: &[u8], expected: Option<VersionId>) -> Result<IndexFile, UseIndex> {
    let incoming = IncomingIndex::create(dir)?;
    incoming.file().write_all(bytes).unwrap();
    incoming.install(expected)
}

#[test]
fn an_installed_index_is_opened_listed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("made");
    assert_eq!(IndexFile::list(&dir).unwrap(), []);
    let installed = install(&dir, &index(100), None).unwrap();
    let id = installed.view().version_id();
    let other = install(&dir, &index(3), None).unwrap().view().version_id();
    let mut listed = IndexFile::list(&dir).unwrap();
    listed.sort();
    let mut both = [id, other];
    both.sort();
    assert_eq!(listed, both);
    let opened = IndexFile::open(&dir, id).unwrap();
    assert_eq!(opened.view().totals().files, 100);
    assert_eq!(opened.len(), index(100).len() as u64);
    opened.verify().unwrap();
    install(&dir, &index(100), Some(id)).unwrap();
    IndexFile::remove(&dir, id).unwrap();
    IndexFile::remove(&dir, id).unwrap();
    assert!(matches!(IndexFile::open(&dir, id), Err(UseIndex::Absent { .. })));
    opened.verify().unwrap();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "nothing else is left behind");
}

#[test]
fn an_index_of_another_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = install(dir.path(), &index(5), Some(VersionId([7; 16]))).unwrap_err();
    assert!(matches!(error, UseIndex::OtherVersion { .. }) && error.is_damage());
    let id = install(dir.path(), &index(5), None).unwrap().view().version_id();
    let wrong = VersionId([7; 16]);
    std::fs::rename(dir.path().join(format!("{id}.idx")), dir.path().join(format!("{wrong}.idx"))).unwrap();
    assert!(IndexFile::open(dir.path(), wrong).unwrap_err().is_damage());
}

#[test]
fn no_flipped_bit_and_no_cut_is_installed() {
    let dir = tempfile::tempdir().unwrap();
    let good = index(40);
    for at in (0..good.len()).step_by(97) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        let refused = install(dir.path(), &bytes, None);
        assert!(refused.as_ref().is_err_and(UseIndex::is_damage), "bit of byte {at}: {refused:?}");
        assert!(install(dir.path(), &good[..at], None).is_err_and(|error| error.is_damage()), "cut at {at}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "what was refused is removed");
}

#[test]
fn bits_that_flip_later_are_found_by_verifying() {
    let dir = tempfile::tempdir().unwrap();
    let good = index(200);
    let id = install(dir.path(), &good, None).unwrap().view().version_id();
    let path = dir.path().join(format!("{id}.idx"));
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let at = good.len() as u64 - 9;
    file.write_all_at(&[good[at as usize] ^ 1], at).unwrap();
    let error = IndexFile::open(dir.path(), id).unwrap().verify().unwrap_err();
    assert!(matches!(error, UseIndex::Verify { .. }) && error.is_damage(), "{error}");
    file.set_len(10).unwrap();
    assert!(matches!(IndexFile::open(dir.path(), id), Err(UseIndex::Open { .. })));
}
