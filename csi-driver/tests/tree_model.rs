//! Does the tree over an index behave like the map of paths that it was made from?

#![expect(clippy::unwrap_used, reason = "a test may fail in any line")]

use std::collections::{BTreeMap, BTreeSet};

use millrace_api::block::BlockSize;
use millrace_api::index::{FileEntry, IndexView, SourceEntry, build_in_memory, compare_paths};
use millrace_csi_driver::dataset_fs::{Ownership, Tree};
use millrace_fuse_session::{Attr, Errno, Kind};
use proptest::prelude::*;

const OWNERSHIP: Ownership = Ownership { uid: 7, gid: 8, file_mode: 0o440, dir_mode: 0o550 };

/// The reference: each file's size and time by path, and what follows from them.
#[derive(Debug)]
struct Model(BTreeMap<String, (u64, i64)>);

impl Model {
    /// The directories, the root as "".
    fn dirs(&self) -> BTreeSet<String> {
        let parents = |path: &String| {
            let parts: Vec<&str> = path.split('/').collect();
            (0..parts.len()).map(|n| parts[..n].join("/")).collect::<Vec<_>>()
        };
        self.0.keys().flat_map(parents).chain([String::new()]).collect()
    }

    /// Names in a directory; whether each is a file.
    fn children(&self, dir: &str) -> BTreeMap<String, bool> {
        let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let below = self.0.keys().filter_map(|path| path.strip_prefix(&prefix));
        below
            .map(|rest| match rest.split_once('/') {
                Some((name, _)) => (name.to_owned(), false),
                None => (rest.to_owned(), true),
            })
            .collect()
    }
}

fn index_of(model: &Model) -> Vec<u8> {
    let source = SourceEntry {
        path: String::new(),
        endpoint: "http://127.0.0.1:9000".to_owned(),
        bucket: "train".to_owned(),
        prefix: "p/".to_owned(),
        region: String::new(),
    };
    let mut paths: Vec<&String> = model.0.keys().collect();
    paths.sort_by(|a, b| compare_paths(a.as_bytes(), b.as_bytes()));
    let entries: Vec<FileEntry<'_>> = paths
        .into_iter()
        .map(|path| {
            let (size, modified_ms) = model.0[path];
            FileEntry { path: path.as_bytes(), source: 0, size, modified_ms, etag: "e", archived: false }
        })
        .collect();
    build_in_memory(BlockSize::default(), &[source], &entries).unwrap()
}

/// Walks from the root by name.
fn walk(tree: &Tree<'_>, path: &str) -> Option<Attr> {
    let root = tree.attr(1).unwrap();
    path.split('/')
        .filter(|part| !part.is_empty())
        .try_fold(root, |at, name| tree.lookup(at.ino, name.as_bytes()).unwrap())
}

fn paths() -> impl Strategy<Value = Model> {
    let path = prop::collection::vec("[a-c.A\u{e9}-]{1,3}", 1..5);
    prop::collection::btree_map(path, (0u64..5 << 20, 0i64..2_000_000_000_000), 0..60).prop_map(|files| {
        let mut model = BTreeMap::new();
        for (parts, what) in files {
            if parts.iter().any(|part| part == "." || part == "..") {
                continue;
            }
            model.insert(parts.join("/"), what);
        }
        // An object that is also a directory is left out by the path rule, before an index is assembled.
        let all: Vec<String> = model.keys().cloned().collect();
        model.retain(|path, _| !all.iter().any(|other| other.starts_with(&format!("{path}/"))));
        Model(model)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_path_is_found_and_nothing_else(model in paths()) {
        let bytes = index_of(&model);
        let tree = Tree::new(IndexView::open(&bytes).unwrap(), OWNERSHIP);
        for (path, (size, modified_ms)) in &model.0 {
            let attr = walk(&tree, path).unwrap();
            prop_assert_eq!((attr.kind, attr.size, attr.nlink), (Kind::File, *size, 1));
            prop_assert_eq!((attr.uid, attr.gid, attr.permissions), (7, 8, 0o440));
            let since = attr.mtime.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
            prop_assert_eq!(since as i64, *modified_ms);
            prop_assert_eq!(tree.attr(attr.ino).unwrap(), attr);
            prop_assert_eq!(tree.dir(attr.ino), Err(Errno::NOTDIR));
            prop_assert_eq!(tree.lookup(1, format!("{path}x").as_bytes()).unwrap().is_some(), model.children("").contains_key(&format!("{path}x")));
        }
        for dir in model.dirs() {
            let attr = walk(&tree, &dir).unwrap();
            let subdirs = model.children(&dir).values().filter(|is_file| !**is_file).count() as u32;
            prop_assert_eq!((attr.kind, attr.nlink, attr.permissions), (Kind::Directory, 2 + subdirs, 0o550));
            prop_assert_eq!(tree.file(attr.ino), Err(Errno::ISDIR));
        }
    }

    #[test]
    fn listings_are_the_names_in_order_from_any_offset(model in paths()) {
        let bytes = index_of(&model);
        let tree = Tree::new(IndexView::open(&bytes).unwrap(), OWNERSHIP);
        let mut inos = BTreeSet::new();
        for dir in model.dirs() {
            let ino = walk(&tree, &dir).unwrap().ino;
            prop_assert!(inos.insert(ino));
            let all: Vec<_> = tree.list(ino, 0).unwrap().collect();
            let names: Vec<_> = all.iter().map(|l| String::from_utf8(l.name.to_vec()).unwrap()).collect();
            let dots = [".".to_owned(), "..".to_owned()];
            let wanted: Vec<_> = dots.into_iter().chain(model.children(&dir).into_keys()).collect();
            prop_assert_eq!(names, wanted);
            for listed in &all[2..] {
                let found = tree.lookup(ino, listed.name).unwrap().unwrap();
                prop_assert_eq!((found.ino, found.kind), (listed.ino, listed.kind));
            }
            for (i, listed) in all.iter().enumerate() {
                let rest: Vec<_> = tree.list(ino, listed.next_offset).unwrap().collect();
                prop_assert_eq!(&rest[..], &all[i + 1..]);
            }
            prop_assert_eq!(tree.list(ino, u64::MAX).unwrap().count(), 0);
        }
    }

    #[test]
    fn statfs_counts_all_files_directories_and_bytes(model in paths()) {
        let bytes = index_of(&model);
        let statfs = Tree::new(IndexView::open(&bytes).unwrap(), OWNERSHIP).statfs();
        let total: u64 = model.0.values().map(|(size, _)| size).sum();
        prop_assert_eq!(statfs.files, (model.0.len() + model.dirs().len()) as u64);
        prop_assert_eq!(statfs.blocks, total.div_ceil(4096));
        prop_assert_eq!((statfs.blocks_free, statfs.files_free), (0, 0));
    }
}

#[test]
fn numbers_and_names_of_no_file_are_refused() {
    let bytes = index_of(&Model(BTreeMap::from([("a".to_owned(), (1, 0))])));
    let tree = Tree::new(IndexView::open(&bytes).unwrap(), OWNERSHIP);
    assert_eq!(tree.attr(0), Err(Errno::STALE));
    assert_eq!(tree.attr(3), Err(Errno::STALE));
    assert_eq!(tree.lookup(2, b"x"), Err(Errno::NOTDIR));
    assert_eq!(tree.lookup(1, &[b'x'; 256]), Err(Errno::NAMETOOLONG));
    assert_eq!(tree.lookup(1, b"..").unwrap().unwrap().ino, 1);
}
