//! Are the bytes of an index what they always were?

use super::super::{IndexView, Node};
use super::sample;

/// The index of [`sample`], sixteen bytes a line; lines of nothing but zeros left out.
const SAMPLE: &str = include_str!("sample.hex");

fn dump(bytes: &[u8]) -> String {
    let line = |(number, line): (usize, &[u8])| {
        let digits: String = line.iter().map(|byte| format!(" {byte:02x}")).collect();
        line.iter().any(|&byte| byte != 0).then(|| format!("{:06x}{digits}\n", number * 16))
    };
    bytes.chunks(16).enumerate().filter_map(line).collect()
}

#[test]
fn bytes_of_a_small_index_are_pinned() {
    let dumped = dump(&sample());
    assert!(dumped == SAMPLE, "the format changed; it now gives\n{dumped}");
}

#[test]
fn the_version_and_inode_numbers_of_a_small_index_are_pinned() {
    let bytes = sample();
    let view = IndexView::open(&bytes).unwrap();
    assert_eq!(view.version_id().to_string(), "6cf1e46f0d5254166daa217eb97c3766");
    let paths: Vec<String> = (1..=11)
        .map_while(|ino| view.path(view.numbering().node_of(ino)?))
        .map(|path| String::from_utf8(path).unwrap())
        .collect();
    let expected = [
        "",
        "imagenet",
        "imagenet/a",
        "imagenet/b",
        "imagenet/c",
        "val",
        "imagenet/README",
        "imagenet/a/large",
        "imagenet/a/one",
        "imagenet/a/zero",
        "imagenet/b/two",
    ];
    assert_eq!(paths, expected);
    assert_eq!(view.numbering().node_of(12), None);
    assert!(matches!(view.resolve(b"/val/"), Some(Node::Dir(dir)) if dir.0 == 5));
}
