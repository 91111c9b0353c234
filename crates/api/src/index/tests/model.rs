//! Does an index answer what a plain map of its files would?

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::{FileIndex, IndexView, Node, PackIndex, SourceEntry, build_in_memory, compare_paths};
use super::{FileEntry, block, build, file, sample, source};
use crate::block::{CHUNK_BYTES, Span};
use crate::ids::ContentId;
use crate::placement::PlacementKey;

#[derive(Debug, Clone)]
struct Object {
    size: u64,
    modified_ms: i64,
    etag: String,
    archived: bool,
}

fn objects() -> impl Strategy<Value = BTreeMap<String, Object>> {
    let size = prop_oneof![Just(0), 1u64..70_000, 900_000u64..1_200_000, Just((5 << 40) - 1)];
    let etag = prop_oneof!["[0-9a-f]{32}", "[0-9a-f]{32}-[1-9][0-9]{0,4}", "[ -~]{0,12}"];
    let object = (size, -5i64..1 << 42, etag, any::<bool>())
        .prop_map(|(size, modified_ms, etag, archived)| Object { size, modified_ms, etag, archived });
    prop::collection::btree_map("[ab!.é]{1,2}x(/[ab0é]{1,2}x){0,3}", object, 0..80)
}

/// The objects that are shown: those at whose path there is no directory.
fn shown(objects: &BTreeMap<String, Object>) -> Vec<(&String, &Object)> {
    let is_dir = |path: &str| objects.keys().any(|other| other.starts_with(&format!("{path}/")));
    let mut shown: Vec<_> = objects.iter().filter(|(path, _)| !is_dir(path)).collect();
    shown.sort_by(|a, b| compare_paths(a.0.as_bytes(), b.0.as_bytes()));
    shown
}

fn entries<'a>(base: &'a [String], objects: &'a BTreeMap<String, Object>) -> Vec<FileEntry<'a>> {
    let entry = |(path, object): (&'a String, &'a Object)| FileEntry {
        path: path.as_bytes(),
        source: 0,
        size: object.size,
        modified_ms: object.modified_ms,
        etag: &object.etag,
        archived: object.archived,
    };
    base.iter().zip(objects.values()).map(entry).collect()
}

fn check(objects: &BTreeMap<String, Object>, source: &SourceEntry) -> Result<(), TestCaseError> {
    let paths: Vec<String> = objects.keys().map(|path| source.path_of(path)).collect();
    let entries = entries(&paths, objects);
    let bytes = build_in_memory(block(), std::slice::from_ref(source), &entries).unwrap();
    let view = IndexView::open(&bytes).unwrap();
    prop_assert_eq!(view.verify(), Ok(()));
    let shown = shown(objects);
    let totals = view.totals();
    prop_assert_eq!(totals.files as usize, shown.len());
    prop_assert_eq!(totals.left_out as usize, objects.len() - shown.len());
    prop_assert_eq!(totals.bytes, shown.iter().map(|(_, object)| object.size).sum::<u64>());

    for (number, (path, object)) in shown.iter().enumerate() {
        let index = FileIndex(number as u32);
        let full = source.path_of(path);
        prop_assert_eq!(view.path(Node::File(index)), Some(full.clone().into_bytes()));
        prop_assert_eq!(view.resolve(full.as_bytes()), Some(Node::File(index)));
        let key = format!("{}{path}", source.prefix).into_bytes();
        prop_assert_eq!(view.etag(index).map(|etag| etag.into_owned()), Some(object.etag.clone()));
        let content = ContentId::of_object(source.origin(), &key, object.etag.as_bytes(), object.size);
        prop_assert_eq!(view.object_id(index), Some(content));
        prop_assert_eq!(view.key(index), Some(key));
        let found = view.file(index).unwrap();
        prop_assert_eq!((found.size, found.modified_ms), (object.size, object.modified_ms));
        prop_assert_eq!((found.archived, found.source), (object.archived, 0));
        prop_assert_eq!(found.pack.is_some(), (1..1 << 20).contains(&object.size));
        if found.pack.is_none() {
            prop_assert_eq!(view.span(index), Some(Span::of_large(content, object.size, block())));
            prop_assert_eq!(view.placement_key(index, 3), Some(PlacementKey::of_block(full.as_bytes(), 3)));
        }
    }
    check_dirs(&view, &shown, source)?;
    check_packs(&view)
}

/// Compares every directory with the one that the paths spell.
fn check_dirs(
    view: &IndexView<'_>,
    shown: &[(&String, &Object)],
    source: &SourceEntry,
) -> Result<(), TestCaseError> {
    let mut dirs: BTreeMap<String, BTreeSet<String>> = BTreeMap::from([(String::new(), BTreeSet::new())]);
    let full: Vec<String> = shown.iter().map(|(path, _)| source.path_of(path)).collect();
    for path in full.iter().chain((!source.path.is_empty()).then_some(&source.path)) {
        let mut dir = String::new();
        for name in path.split('/') {
            let here = if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
            dirs.entry(dir).or_default().insert(name.to_owned());
            dir = here;
        }
    }
    dirs.entry(source.path.clone()).or_default();
    prop_assert_eq!(view.totals().dirs as usize, dirs.len());
    for (path, names) in &dirs {
        let Some(Node::Dir(index)) = view.resolve(path.as_bytes()) else {
            return Err(TestCaseError::fail(format!("no directory {path:?}")));
        };
        let dir = view.dir(index).unwrap();
        prop_assert_eq!(dir.child_count as usize, names.len());
        let below = |other: &&String| path.is_empty() || other.starts_with(&format!("{path}/"));
        prop_assert_eq!(dir.file_count as usize, full.iter().filter(below).count());
        prop_assert_eq!(dir.files_below().count(), dir.file_count as usize);
        let first = full.iter().position(|other| below(&other));
        prop_assert!(first.is_none_or(|first| first as u32 == dir.first_file));
        let newest =
            full.iter().zip(shown).filter(|(other, _)| below(other)).map(|(_, (_, o))| o.modified_ms).max();
        prop_assert_eq!(dir.modified_ms, newest.unwrap_or(0));
        let children: Vec<Node> = view.children(index, 0).collect();
        let subdirs = children.iter().filter(|child| matches!(child, Node::Dir(_))).count();
        prop_assert_eq!(dir.subdir_count as usize, subdirs);
        for skip in 0..=names.len() + 1 {
            let page: Vec<&[u8]> =
                view.children(index, skip as u32).map(|child| view.name(child).unwrap()).collect();
            let expected: Vec<&[u8]> = names.iter().skip(skip).map(|name| name.as_bytes()).collect();
            prop_assert_eq!(page, expected);
        }
        for child in children {
            prop_assert_eq!(view.parent(child), Some(index));
            prop_assert_eq!(view.lookup(index, view.name(child).unwrap()), Some(child));
        }
        for absent in ["", "a", "zz", "ax/bx"] {
            prop_assert_eq!(view.lookup(index, absent.as_bytes()), None);
        }
    }
    Ok(())
}

fn check_packs(view: &IndexView<'_>) -> Result<(), TestCaseError> {
    let source = view.source(0).unwrap();
    let mut boundary = source.path.as_bytes().to_vec();
    let mut packed = Vec::new();
    for pack in (0..view.totals().packs).map(PackIndex) {
        let members: Vec<FileIndex> = view.pack_members(pack).collect();
        let described = view.pack(pack).unwrap();
        prop_assert_eq!(described.member_count as usize, members.len());
        let contents = members.iter().map(|&member| view.object_id(member).unwrap());
        prop_assert_eq!(described.file.content, ContentId::of_pack(contents));
        prop_assert_eq!(described.placement, PlacementKey::of_pack(&boundary));
        let (mut end, mut slots) = (0u64, 0);
        for &member in &members {
            let span = view.span(member).unwrap();
            prop_assert_eq!(span.file, described.file);
            prop_assert_eq!((span.offset, span.first_slot), (end.next_multiple_of(4096), slots));
            prop_assert_eq!(span.block_of(0).index, 0);
            prop_assert_eq!(span.chunks_in_block(0), span.chunks());
            prop_assert_eq!(view.placement_key(member, 0), Some(described.placement));
            prop_assert_eq!(view.pack_of(member), Some(pack));
            end = span.offset + span.size;
            slots += span.size.div_ceil(CHUNK_BYTES) as u32;
            boundary = view.path(Node::File(member)).unwrap();
        }
        prop_assert_eq!((described.file.len, described.file.slots), (end, slots));
        prop_assert_eq!(described.file.blocks(), 1);
        prop_assert!(end <= 2 * block().bytes());
        packed.extend(members);
    }
    prop_assert!(packed.is_sorted());
    Ok(())
}

proptest! {
    #[test]
    fn an_index_agrees_with_a_plain_map(objects in objects(), has_path: bool) {
        let source = if has_path { source("deep/set", "data/") } else { source("", "") };
        check(&objects, &source)?;
    }
}

#[test]
fn sources_left_out_keys_and_empty_folders_read_back() {
    let bytes = sample();
    let view = IndexView::open(&bytes).unwrap();
    let sources: Vec<_> = view.sources().map(|source| (source.path, source.prefix, source.bucket)).collect();
    assert_eq!(sources, [("imagenet", "data/", "train"), ("val", "", "train")]);
    assert_eq!(view.source(0).unwrap().origin, source("", "").origin());
    let left_out: Vec<_> = view.left_out().collect();
    assert_eq!(left_out, [(0, &b"data/x//y"[..], super::super::LeftOutReason::EmptySegment)]);
    for empty in ["val", "imagenet/c"] {
        let Some(Node::Dir(dir)) = view.resolve(empty.as_bytes()) else { panic!("{empty} is not there") };
        assert_eq!(view.dir(dir).unwrap().child_count, 0);
    }
    assert_eq!(view.block_size(), block());
}

#[test]
fn an_origin_without_endpoint_is_named_by_its_region() {
    let here = SourceEntry { endpoint: String::new(), ..source("", "") };
    let there = SourceEntry { region: "eu-west-1".into(), ..here.clone() };
    assert_ne!(here.origin(), there.origin());
    let same = SourceEntry { region: "elsewhere".into(), ..source("", "") };
    assert_eq!(same.origin(), source("", "").origin());
}

#[test]
fn an_empty_prefix_gives_an_empty_mount() {
    let bytes = build(&[]);
    let view = IndexView::open(&bytes).unwrap();
    assert_eq!(view.verify(), Ok(()));
    assert_eq!((view.totals().files, view.totals().dirs), (0, 1));
    assert_eq!(view.children(view.root(), 0).count(), 0);
    assert_eq!(view.lookup(view.root(), b"a"), None);
}

#[test]
fn changed_content_changes_the_pack_but_not_its_placement() {
    let before = build(&[file("a", 10), file("b", 10)]);
    let other = FileEntry { etag: "changed", ..file("b", 10) };
    let after = build(&[file("a", 10), other]);
    let pack = |bytes: &[u8]| IndexView::open(bytes).unwrap().pack(PackIndex(0)).unwrap();
    assert_ne!(pack(&before).file.content, pack(&after).file.content);
    assert_eq!(pack(&before).placement, pack(&after).placement);
}
