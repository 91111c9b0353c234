//! Which keys does a mount show, and what becomes of the others?

use std::collections::BTreeSet;
use std::path::Path;

use millrace_control::proto::why_answer::What;
use millrace_s3_server::backend::memory::InMemory;
use millrace_tests::cluster::Cluster;
use millrace_tests::content::{check_file, check_part};
use millrace_tests::mounted::{MountSetup, Mounted};
use millrace_tests::skip::can_mount;

/// The largest object that S3 has.
const LARGEST: u64 = 5 << 40;

/// Files and, with a slash behind them, empty folders.
fn shown(dir: &Path, below: &str, found: &mut BTreeSet<String>) {
    let entries: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()).collect();
    if entries.is_empty() {
        found.insert(below.to_owned());
    }
    for entry in entries {
        let path = format!("{below}{}", entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            shown(&entry.path(), &format!("{path}/"), found);
        } else {
            found.insert(path);
        }
    }
}

#[test]
fn awkward_keys_are_shown_or_left_out_and_counted() {
    if !can_mount("awkward_keys_are_shown_or_left_out_and_counted") {
        return;
    }
    let long = format!("{}01234567", "0123456/".repeat(127));
    assert_eq!(long.len(), 1024);
    let control = "ctl/\u{1}\t\n\u{7f}";
    let sized = [
        ("a/b", 10),
        ("case/name", 11),
        ("case/NAME", 12),
        ("zero", 0),
        (control, 13),
        (&*long, 14),
        ("largest", LARGEST),
        ("...", 15),
        ("sp ace/+%20&", 16),
        ("archived", 17),
    ];
    let objects = InMemory::new();
    sized.iter().for_each(|(key, size)| drop(objects.put_sized(key, *size)));
    objects.put_sized("folder/", 0);
    objects.set_storage_class("archived", "GLACIER");
    let too_long = format!("l/{}", "n".repeat(256));
    let left_out: [&[u8]; 8] =
        [b"a", b"x//y", b"/lead", b"./dot", b"u/../p", b"s/", b"bad\xff", too_long.as_bytes()];
    left_out.iter().for_each(|key| drop(objects.put_sized(key, 3)));

    let cluster = Cluster::of(objects);
    assert_eq!((cluster.made.objects, cluster.made.left_out), (sized.len() as u64, left_out.len() as u64));
    assert_eq!(cluster.made.left_out_reasons.iter().map(|reason| reason.count).sum::<u64>(), 8);
    let mounted = Mounted::start(&cluster, &MountSetup::default());
    let mut found = BTreeSet::new();
    shown(&mounted.point, "", &mut found);
    let wanted: BTreeSet<String> =
        sized.iter().map(|(key, _)| *key).chain(["folder/"]).map(String::from).collect();
    assert_eq!(found, wanted);
    for (key, size) in sized.iter().filter(|(key, size)| *size < LARGEST && *key != "archived") {
        check_file(&mounted.point, key, *size);
    }
    assert_eq!(mounted.path("largest").metadata().unwrap().len(), LARGEST);
    check_part(&mounted.point, "largest", LARGEST - 5000, 5000).unwrap();
    let error = check_part(&mounted.point, "archived", 0, 17).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));

    for (path, reason) in [("x//y", "empty segment"), ("u/../p", "`..`"), ("s/", "has bytes")] {
        let What::LeftOut(told) = cluster.why(0, path) else { panic!("{path}: {:?}", cluster.why(0, path)) };
        let key = told.keys.iter().find(|key| key.key == path.as_bytes());
        assert!(key.is_some_and(|key| key.reason.contains(reason)), "{path}: {told:?}");
    }
    let What::Object(archived) = cluster.why(0, "archived") else { panic!("archived is an object") };
    assert!(archived.archived && archived.last_error.is_some_and(|error| error.reason == "Archived"));
}

#[test]
fn prefix_with_no_objects_is_an_empty_mount() {
    if !can_mount("prefix_with_no_objects_is_an_empty_mount") {
        return;
    }
    let cluster = Cluster::of(InMemory::new());
    assert_eq!((cluster.made.objects, cluster.made.bytes), (0, 0));
    let mounted = Mounted::start(&cluster, &MountSetup::default());
    assert_eq!(std::fs::read_dir(&mounted.point).unwrap().count(), 0);
    assert_eq!(rustix::fs::statvfs(&mounted.point).unwrap().f_blocks, 0);
    cluster.assert_quiet();
}
