//! Is what is counted what is there?

use std::time::Duration;

use super::*;
use crate::clock::Monotonic;
use crate::error::Error;
use crate::run::Plan;
use crate::tree::{Listed, MAX_FILES, Tree};

const MIB: usize = 1 << 20;

fn tree() -> (tempfile::TempDir, Tree) {
    let dir = tempfile::tempdir().unwrap();
    for (name, size) in [("a", 3 * MIB), ("b", MIB + 17), ("c", 100)] {
        std::fs::write(dir.path().join(name), vec![1; size]).unwrap();
    }
    let tree = Tree::list(dir.path(), MAX_FILES).unwrap();
    (dir, tree)
}

fn plan(threads: usize, runtime: Duration) -> Plan<'static> {
    Plan { clock: &Monotonic, threads, runtime, seed: 1 }
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_sequential_pass_reads_every_byte_once() {
    let (_dir, tree) = tree();
    let files = tree.at_least(1).unwrap();
    let bytes = tree.bytes();
    for threads in [1, 3, 8] {
        let outcome = sequential(plan(threads, LONG), &files, MIB as u64, Access::Cached).unwrap();
        assert_eq!((outcome.bytes, outcome.files, outcome.is_complete), (bytes, 3, true));
        // 3 blocks of a, 2 of b, 1 of c.
        assert_eq!(outcome.operations, 6);
        assert!(outcome.latency.unwrap().timed > 0);
        let outcome = mapped(plan(threads, LONG), &files, 4096).unwrap();
        assert_eq!((outcome.bytes, outcome.files, outcome.is_complete), (bytes, 3, true));
        assert_eq!(outcome.operations, 768 + 257 + 1);
    }
}

#[test]
fn no_time_means_that_nothing_is_read() {
    let (_dir, tree) = tree();
    let files = tree.at_least(1).unwrap();
    let outcome = sequential(plan(1, Duration::ZERO), &files, 4096, Access::Cached).unwrap();
    assert_eq!((outcome.bytes, outcome.files, outcome.is_complete), (0, 0, false));
}

#[test]
fn random_reads_are_whole_blocks_and_need_a_file_that_has_one() {
    let (_dir, tree) = tree();
    let files = tree.at_least(4096).unwrap();
    let outcome = random(plan(2, Duration::from_millis(20)), &files, 4096, Access::Cached).unwrap();
    assert!(outcome.operations > 0);
    assert_eq!(outcome.bytes, outcome.operations * 4096);
}

#[test]
fn direct_reads_are_whole_pages() {
    let (_dir, tree) = tree();
    let files = tree.at_least(1).unwrap();
    match sequential(plan(1, LONG), &files, MIB as u64, Access::Direct) {
        Ok(outcome) => assert_eq!(outcome.bytes, tree.bytes()),
        // The folder for temporary files may be on a file system without.
        Err(error) => assert!(matches!(error, Error::NoDirect { .. }), "{error}"),
    }
    let error = sequential(plan(1, LONG), &files, 1000, Access::Direct).unwrap_err().to_string();
    assert!(error.contains("1000") && error.contains("4096"), "{error}");
}

#[test]
fn a_file_system_without_direct_reads_is_named() {
    // proc has none, on any kernel.
    let file = Listed { path: "/proc/self/status".into(), size: 1 };
    let error = sequential(plan(1, LONG), &[&file], 4096, Access::Direct).unwrap_err();
    assert!(matches!(error, Error::NoDirect { .. }), "{error}");
}

#[test]
fn a_file_that_is_gone_or_cut_is_named() {
    let (dir, tree) = tree();
    let files = tree.at_least(1).unwrap();
    std::fs::write(dir.path().join("a"), [0; 10]).unwrap();
    let read: [&dyn Fn() -> Result<_, Error>; 3] = [
        &|| sequential(plan(1, LONG), &files, 4096, Access::Cached),
        &|| mapped(plan(1, LONG), &files, 4096),
        &|| random(plan(1, LONG), &files[..1], 4096, Access::Cached),
    ];
    for read in read {
        let error = read().unwrap_err();
        assert!(matches!(&error, Error::Shrunk { path, .. } if path.ends_with("a")), "{error}");
    }
    std::fs::remove_file(dir.path().join("a")).unwrap();
    for read in read {
        let error = read().unwrap_err();
        assert!(matches!(&error, Error::Open { path, .. } if path.ends_with("a")), "{error}");
    }
}
