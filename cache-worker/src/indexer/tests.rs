//! Indexes made from a real S3 server, through real sockets, against a model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millrace_api::index::{IndexView, LeftOutReason, Node};
use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::backend::spec::SyntheticSpec;
use millrace_s3_server::faults::plan::FaultPlan;
use millrace_s3_server::faults::rule::{Fault, Rule};
use millrace_s3_server::server::S3Server;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::*;
use crate::origin::config::{CredentialsConfig, OriginConfig};
use crate::origin::counters::Counters;
use crate::origin::error::OriginErrorKind;
use crate::origin::tests::canned;
use crate::origin::window::{Window, WindowConfig};

fn source(server: &S3Server, bucket: &str, path: &str, prefix: &str) -> SourceToIndex {
    let config = OriginConfig::at(server.endpoint(), bucket, CredentialsConfig::Anonymous);
    let window = Window::new(WindowConfig { initial: 32, ..WindowConfig::default() });
    let origin = Origin::new(config, window, Arc::new(Counters::default())).unwrap();
    let entry = SourceEntry {
        path: path.to_owned(),
        endpoint: server.endpoint(),
        bucket: bucket.to_owned(),
        prefix: prefix.to_owned(),
        region: String::new(),
    };
    SourceToIndex { entry, origin, include: Vec::new(), exclude: Vec::new() }
}

#[derive(Debug)]
struct Made {
    bytes: Vec<u8>,
    version: VersionId,
    progress: Progress,
}

impl Made {
    fn view(&self) -> IndexView<'_> {
        IndexView::open(&self.bytes).unwrap()
    }

    /// Path, size and ETag of each file.
    fn files(&self) -> Vec<(String, u64, String)> {
        let view = self.view();
        let mut files = Vec::new();
        let mut nodes = vec![Node::Dir(view.root())];
        while let Some(node) = nodes.pop() {
            match node {
                Node::Dir(dir) => nodes.extend(view.children(dir, 0)),
                Node::File(file) => {
                    let path = String::from_utf8(view.path(node).unwrap()).unwrap();
                    files.push((path, view.file(file).unwrap().size, view.etag(file).unwrap().into_owned()));
                }
            }
        }
        files.sort();
        files
    }

    fn left_out(&self) -> Vec<(String, LeftOutReason)> {
        let listed = self.view().left_out();
        listed.map(|(_, key, reason)| (String::from_utf8_lossy(key).into_owned(), reason)).collect()
    }
}

async fn make(sources: Vec<SourceToIndex>) -> Result<Made, MakeIndex> {
    let folder = tempfile::tempdir().unwrap();
    let progress = watch::Sender::new(Progress::default());
    let config = ListingConfig { first_deadline: Duration::from_secs(5), ..ListingConfig::default() };
    let new = make_index(sources, BlockSize::default(), folder.path(), config, &progress).await;
    let made = new.map(|new| {
        let bytes = std::fs::read(new.file.path()).unwrap();
        Made { bytes, version: new.version, progress: new.progress }
    });
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
    if let Ok(made) = &made {
        made.view().verify().unwrap();
        assert_eq!(made.view().version_id(), made.version);
    }
    made
}

/// Lists a synthetic bucket and says how many pages were asked for at once.
async fn list_synthetic(spec: &str, plan: FaultPlan) -> (Made, u64) {
    let spec: SyntheticSpec = spec.parse().unwrap();
    let server = S3Server::builder().bucket("data", spec).faults(plan).start().await.unwrap();
    let made = make(vec![source(&server, "data", "", "")]).await.unwrap();
    (made, server.counters().max_in_flight)
}

#[tokio::test]
async fn flat_and_deep_buckets_are_listed_whole_and_in_parallel() {
    for spec in [
        "objects=40000,prefix=train/",
        "objects=40000,per-dir=30,depth=3",
        "objects=40000,per-dir=1000,prefix=a/b/",
    ] {
        let slow = FaultPlan::default().with_list_page(Duration::from_millis(60));
        let (made, at_once) = list_synthetic(spec, slow).await;
        assert_eq!((made.files().len(), made.progress.listed), (40_000, 40_000), "{spec}");
        assert!(at_once >= 8, "{spec}: {at_once} pages at once");
    }
}

#[tokio::test]
async fn the_same_objects_are_the_same_version_in_whatever_order_they_come() {
    let spec = "objects=5000,per-dir=70";
    let (made, _) = list_synthetic(spec, FaultPlan::default()).await;
    for _ in 0..2 {
        let (again, _) = list_synthetic(spec, FaultPlan::default()).await;
        // The port differs, and with it the endpoint in the index.
        assert_eq!(made.files(), again.files());
    }
    let shuffled = FaultPlan::default().rule(Fault::ListingOutOfOrder);
    let (again, _) = list_synthetic(spec, shuffled).await;
    assert_eq!(made.files(), again.files());
    assert_eq!(again.progress.listed, 5000, "counted once, though listed twice");
    let one_page = FaultPlan::default().rule(Rule::from(Fault::ListingOutOfOrder).skip(3).count(1));
    let (again, _) = list_synthetic(spec, one_page).await;
    assert_eq!(made.files(), again.files());
}

#[tokio::test]
async fn faults_of_the_server_do_not_lose_keys() {
    let plan = FaultPlan { seed: 3, ..FaultPlan::default() }
        .rule(Rule::from(Fault::SlowDown).probability(0.3))
        .rule(Rule::from(Fault::Drop).probability(0.1));
    let (made, _) = list_synthetic("objects=9000", plan).await;
    assert_eq!(made.files().len(), 9000);
    let (made, _) =
        list_synthetic("objects=1500", FaultPlan::default().rule(Fault::ListingWithoutEtags)).await;
    assert!(made.files().iter().all(|(_, _, etag)| etag.is_empty()));
}

#[tokio::test]
async fn awkward_keys_are_shown_or_left_out_by_the_rule() {
    let objects = InMemory::new();
    for key in [
        "a",
        "a/b",
        "A",
        "c//d",
        "/e",
        "./f",
        "g/../h",
        "i/",
        "bytes/",
        "empty",
        "ctl\u{1}\n",
        "n\0n",
        "sp ace+%2B",
    ] {
        objects.put(key, if key == "i/" || key == "empty" { "" } else { "x" });
    }
    objects.put(b"\xff\xfe", "x");
    objects.put("l".repeat(256), "x");
    objects.put("m".repeat(255), "x");
    objects.put(vec!["n".repeat(100); 10].join("/"), "x");
    objects.put_sized("huge", 5 << 40);
    let server = S3Server::builder().bucket("data", &objects).start().await.unwrap();
    let made = make(vec![source(&server, "data", "", "")]).await.unwrap();
    let shown: BTreeSet<_> = made.files().into_iter().map(|(path, size, _)| (path, size)).collect();
    for (path, size) in
        [("a/b", 1), ("A", 1), ("empty", 0), ("ctl\u{1}\n", 1), ("sp ace+%2B", 1), ("huge", 5 << 40)]
    {
        assert!(shown.contains(&(path.to_owned(), size)), "{path}");
    }
    assert!(made.view().resolve(b"i").is_some_and(|node| matches!(node, Node::Dir(_))), "an empty directory");
    assert!(!shown.contains(&("a".to_owned(), 1)));
    let left_out: BTreeMap<_, _> = made.left_out().into_iter().collect();
    for (key, reason) in [
        ("a", LeftOutReason::HiddenByDirectory),
        ("c//d", LeftOutReason::EmptySegment),
        ("/e", LeftOutReason::EmptySegment),
        ("./f", LeftOutReason::DotSegment),
        ("g/../h", LeftOutReason::DotSegment),
        ("bytes/", LeftOutReason::SlashWithBytes),
        ("n\0n", LeftOutReason::Nul),
        ("\u{fffd}\u{fffd}", LeftOutReason::NotUtf8),
    ] {
        assert_eq!(left_out.get(key), Some(&reason), "{key:?}");
    }
    assert_eq!(left_out.get(&"l".repeat(256)), Some(&LeftOutReason::LongSegment));
    assert_eq!(shown.len() + left_out.len() + 1, objects.keys().len());
    assert_eq!(made.view().totals().left_out, left_out.len() as u64);
}

#[tokio::test]
async fn several_sources_lie_side_by_side_and_their_globs_apply() {
    let train = InMemory::new()
        .with("img/1.jpg", "1")
        .with("img/2.png", "22")
        .with("img/tmp/3.jpg", "3")
        .with("other", "x");
    let labels = InMemory::new().with("labels.csv", "a,b").with("raw/labels.bin", "b");
    let server = S3Server::builder().bucket("train", &train).bucket("labels", &labels).start().await.unwrap();
    let mut first = source(&server, "train", "z/train", "img/");
    first.include = vec!["**/*.jpg".to_owned()];
    first.exclude = vec!["tmp/**".to_owned()];
    let second = source(&server, "labels", "labels", "");
    let third = source(&server, "labels", "empty", "no-such-prefix/");
    let made = make(vec![first.clone(), second, third]).await.unwrap();
    let paths: Vec<_> = made.files().into_iter().map(|(path, _, _)| path).collect();
    assert_eq!(paths, ["labels/labels.csv", "labels/raw/labels.bin", "z/train/1.jpg"]);
    assert!(made.view().resolve(b"empty").is_some(), "a source without objects is an empty folder");
    let view = made.view();
    let Some(Node::File(file)) = view.resolve(b"z/train/1.jpg") else { panic!("a file") };
    assert_eq!(view.key(file).unwrap(), b"img/1.jpg");
    assert_eq!(made.progress, Progress { listed: 5, shown: 3, bytes: 5, sources: 3 });
    first.include = vec!["[".to_owned()];
    let err = make(vec![first]).await.unwrap_err();
    assert!(matches!(err, MakeIndex::Glob(_)), "{err}");
}

#[tokio::test]
async fn a_prefix_without_objects_is_an_empty_index() {
    let server = S3Server::builder().bucket("data", InMemory::new()).start().await.unwrap();
    let made = make(vec![source(&server, "data", "", "x/")]).await.unwrap();
    let totals = made.view().totals();
    assert_eq!((totals.files, totals.bytes, totals.left_out), (0, 0, 0));
}

#[tokio::test]
async fn archived_objects_are_marked() {
    let objects = InMemory::new().with("a", "1").with("b", "2");
    objects.set_storage_class("b", "GLACIER");
    let server = S3Server::builder().bucket("data", &objects).start().await.unwrap();
    let made = make(vec![source(&server, "data", "", "")]).await.unwrap();
    let view = made.view();
    for (path, archived) in [("a", false), ("b", true)] {
        let Some(Node::File(file)) = view.resolve(path.as_bytes()) else { panic!("{path}") };
        assert_eq!(view.file(file).unwrap().archived, archived, "{path}");
    }
}

#[tokio::test]
async fn a_bucket_that_is_not_there_is_said_at_once() {
    let server = S3Server::builder().bucket("data", InMemory::new()).start().await.unwrap();
    let err = make(vec![source(&server, "nowhere", "", "")]).await.map(|made| made.version).unwrap_err();
    match err {
        MakeIndex::List { source, .. } => assert_eq!(source.kind(), OriginErrorKind::NoSuchBucket),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_dropped_build_leaves_nothing_and_a_sweep_removes_what_a_crash_left() {
    let spec: SyntheticSpec = "objects=100000".parse().unwrap();
    let plan = FaultPlan::default().with_list_page(Duration::from_millis(50));
    let server = S3Server::builder().bucket("data", spec).faults(plan).start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let progress = watch::Sender::new(Progress::default());
    let sources = vec![source(&server, "data", "", "")];
    let build = make_index(sources, BlockSize::default(), folder.path(), ListingConfig::default(), &progress);
    assert!(tokio::time::timeout(Duration::from_millis(150), build).await.is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    std::fs::write(folder.path().join(format!("{TEMPORARY}xyz")), "").unwrap();
    std::fs::write(folder.path().join("kept"), "").unwrap();
    sweep(folder.path()).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

fn canned_source(canned: &canned::Canned) -> SourceToIndex {
    let config = OriginConfig::at(&canned.endpoint, "data", CredentialsConfig::Anonymous);
    let origin = Origin::new(config, Window::new(WindowConfig::default()), Arc::default()).unwrap();
    let entry = SourceEntry {
        endpoint: canned.endpoint.clone(),
        bucket: "data".to_owned(),
        ..SourceEntry::default()
    };
    SourceToIndex { entry, origin, include: Vec::new(), exclude: Vec::new() }
}

/// Servers over a file system list a folder's files behind its `-` neighbours or before, as its walk goes.
#[tokio::test]
async fn a_server_that_lists_component_by_component_loses_no_key() {
    let mut keys: Vec<String> = (0..400)
        .flat_map(|n| {
            [format!("d{}/f{n:03}", n / 40), format!("d{}-x{n:03}", n / 40), format!("d{}.{n}", n / 20)]
        })
        .collect();
    keys.sort_by(|a, b| millrace_api::index::compare_paths(a.as_bytes(), b.as_bytes()));
    let all = keys.clone();
    let canned = canned::serve(move |query| {
        let field = |name| {
            query.split(['?', '&']).find_map(|part| part.strip_prefix(name)).map(|v| v.replace("%2F", "/"))
        };
        let after = field("continuation-token=").or_else(|| field("start-after="));
        let is_behind = |key: &&String| match &after {
            Some(after) => millrace_api::index::compare_paths(key.as_bytes(), after.as_bytes()).is_gt(),
            None => true,
        };
        let page: Vec<String> = keys.iter().filter(is_behind).take(50).cloned().collect();
        let next = page.last().filter(|last| keys.last() != Some(last)).cloned();
        canned::page(&page, next.as_deref())
    })
    .await;
    let made = make(vec![canned_source(&canned)]).await.unwrap();
    let found: BTreeSet<String> = made.files().into_iter().map(|(path, _, _)| path).collect();
    assert_eq!(found, all.into_iter().collect());
}

#[tokio::test]
async fn a_listing_that_never_ends_is_an_error() {
    let canned = canned::serve(|_| canned::page(&["a".to_owned()], Some("again"))).await;
    let err = make(vec![canned_source(&canned)]).await.unwrap_err();
    assert!(matches!(err, MakeIndex::Loop { .. }), "{err}");
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_named() {
    let server = S3Server::builder().bucket("data", InMemory::new().with("a", "1")).start().await.unwrap();
    let progress = watch::Sender::new(Progress::default());
    let sources = vec![source(&server, "data", "", "")];
    let nowhere = Path::new("/nowhere/at/all");
    let made = make_index(sources, BlockSize::default(), nowhere, ListingConfig::default(), &progress).await;
    let err = made.unwrap_err();
    assert!(err.to_string().contains("/nowhere/at/all"), "{err}");
}

#[tokio::test]
async fn random_trees_are_listed_whole() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(1));
    let keys = proptest::collection::btree_set("[ab]{0,2}(/[a-c0-2.-]{1,3}){0,3}[xyzä]", 0..3000);
    for _ in 0..12 {
        let keys = keys.new_tree(&mut runner).unwrap().current();
        let objects = InMemory::new();
        keys.iter().for_each(|key| drop(objects.put(key, "x")));
        let server = S3Server::builder().bucket("data", &objects).start().await.unwrap();
        let made = make(vec![source(&server, "data", "", "")]).await.unwrap();
        let mut found: BTreeSet<String> = made.files().into_iter().map(|(path, _, _)| path).collect();
        found.extend(made.left_out().into_iter().map(|(key, _)| key));
        assert_eq!(found, keys);
    }
}
