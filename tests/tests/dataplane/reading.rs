//! Are all bytes right, however they are read?

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use millrace_s3_server::synthetic;
use millrace_tests::cluster::{Cluster, MIB, Setup};
use millrace_tests::content::{Files, check_part, forget_pages};
use millrace_tests::mapped::map;
use millrace_tests::mounted::{MountSetup, Mounted};
use millrace_tests::skip::{can_mount, is_root};
use rustix::process::{getegid, geteuid};

const KIB: u64 = 1 << 10;

/// All sizes at which something begins or ends, deep folders and awkward names.
fn tree() -> Files {
    let sizes = [0, 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB - 1, MIB, MIB + 1, 20 * MIB + 17];
    let files = sizes.iter().fold(Files::new(), |files, size| files.with(format!("sizes/{size}"), *size));
    let deep = (0..40).map(|level| format!("level-{level}")).collect::<Vec<_>>().join("/");
    let long = "n".repeat(255);
    files
        .with(format!("{deep}/bottom"), 70_000)
        .with(format!("names/{long}"), 10)
        .with("names/with space", 11)
        .with("names/with \"quotes\" and \\", 12)
        .with("names/line\nbreak", 13)
        .with("names/\u{1}\u{7f}", 14)
        .with("names/grün 日本 🦀", 15)
        .with("names/-rf", 16)
        .with("names/*?[a]", 17)
        .with("names/%2F+&=", 18)
        .with("names/Case", 19)
        .with("names/case", 20)
        .with("names/...", 21)
        .with_many("small", 60, 3_000)
}

#[test]
fn a_tree_reads_byte_for_byte_cold_warm_and_after_a_remount() {
    if !can_mount("a_tree_reads_byte_for_byte_cold_warm_and_after_a_remount") {
        return;
    }
    let files = tree();
    let cluster = Cluster::start(files.objects(), &Setup::workers(2));
    assert_eq!((cluster.made.objects, cluster.made.bytes), (files.0.len() as u64, files.bytes()));
    let setup = MountSetup::keeping(cluster.new_dir("store"));
    let mounted = Mounted::start(&cluster, &setup);
    files.check(&mounted.point);
    // Chunks that a reader wants before the fetch under way comes to them are asked for twice.
    let s3_bytes = cluster.s3_bytes();
    assert!(s3_bytes >= files.bytes() && s3_bytes < files.bytes() + MIB, "{s3_bytes} of {}", files.bytes());
    files.check(&mounted.point);
    mounted.wait_until_stored(files.bytes());
    // Killed, so that the next one finds a dead mount on its folder.
    let mounted = mounted.restart(&cluster, &setup);
    files.check(&mounted.point);
    assert_eq!(mounted.fetched_bytes(), 0, "all of it is in the node store");
    assert_eq!(cluster.s3_bytes(), s3_bytes);
    cluster.assert_quiet();
}

#[test]
fn parts_are_right_by_mmap_direct_io_and_at_random_offsets() {
    if !can_mount("parts_are_right_by_mmap_direct_io_and_at_random_offsets") {
        return;
    }
    let files = Files::new().with("large", 6 * MIB + 77).with("small", 90_001);
    let cluster = Cluster::of(files.objects());
    let mounted = Mounted::start(&cluster, &MountSetup::default());
    for (key, size) in &files.0 {
        let map = map(&mounted.path(key));
        assert_eq!(map.len() as u64, *size);
        assert!(synthetic::matches(key, 0, &map), "{key} by mmap");
    }
    let direct = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT;
    let file: File =
        rustix::fs::open(mounted.path("large"), direct, rustix::fs::Mode::empty()).unwrap().into();
    let mut buffer = vec![0; 300_000];
    for offset in [0, 4096, MIB - 4096, 3 * MIB + 512, 6 * MIB - 100_000] {
        let count = file.read_at(&mut buffer, offset).unwrap();
        assert_eq!(count as u64, (6 * MIB + 77 - offset).min(300_000));
        assert!(synthetic::matches("large", offset, &buffer[..count]), "direct at {offset}");
    }
    assert_eq!(file.read_at(&mut buffer, 6 * MIB + 77).unwrap(), 0);
    forget_pages(&mounted.path("large"));
    let mut state = 42u64;
    for _ in 0..300 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = (state >> 33) % (6 * MIB);
        let len = 1 + (state >> 13) as usize % 70_000;
        let len = len.min((6 * MIB + 77 - offset) as usize);
        check_part(&mounted.point, "large", offset, len).unwrap();
    }
    cluster.assert_quiet();
}

#[test]
fn attributes_are_the_objects_and_owners_the_mounts() {
    if !can_mount("attributes_are_the_objects_and_owners_the_mounts") {
        return;
    }
    let files = Files::new().with("dir/file", 70_000).with("dir/sub/other", 5).with("large", 3 * MIB);
    let cluster = Cluster::of(files.objects());
    // An ordinary user could not read the files of another.
    let (uid, gid) = if is_root() { (1234, 55) } else { (geteuid().as_raw(), getegid().as_raw()) };
    let setup = MountSetup::keeping(cluster.new_dir("store"));
    let setup = setup
        .arg("--uid", uid.to_string())
        .arg("--gid", gid.to_string())
        .arg("--file-mode", "0440")
        .arg("--dir-mode", "0550");
    let mounted = Mounted::start(&cluster, &setup);
    let file = mounted.path("dir/file");
    let (about, folder) = (file.metadata().unwrap(), mounted.path("dir").metadata().unwrap());
    assert_eq!((about.uid(), about.gid(), about.mode()), (uid, gid, 0o100_440));
    assert_eq!((folder.uid(), folder.gid(), folder.mode()), (uid, gid, 0o040_550));
    assert_eq!((about.len(), about.blocks(), about.nlink(), folder.nlink()), (70_000, 137, 1, 3));
    assert!(about.modified().unwrap().elapsed().unwrap().as_secs() < 300);
    let attribute = |name: &str| {
        let mut value = [0; 200];
        let len = rustix::fs::getxattr(&file, format!("user.millrace.{name}"), &mut value).unwrap();
        String::from_utf8_lossy(&value[..len]).into_owned()
    };
    let etag = cluster.objects.etag("dir/file").unwrap();
    assert!(attribute("etag").trim_matches('"') == etag, "{} {etag}", attribute("etag"));
    assert_eq!((attribute("key"), attribute("version")), ("dir/file".to_owned(), cluster.version.clone()));
    assert_eq!(attribute("cached"), "0");
    files.check(&mounted.point);
    mounted.wait_until_stored(files.bytes());
    assert_eq!(attribute("cached"), "100");
    let mut names = [0; 400];
    let len = rustix::fs::listxattr(&file, &mut names).unwrap();
    assert_eq!(names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).count(), 4);
    let about = rustix::fs::statvfs(&mounted.point).unwrap();
    assert_eq!(about.f_blocks * about.f_frsize, files.bytes().next_multiple_of(4096));
    // Three files, three folders with the root.
    assert_eq!((about.f_files, about.f_bavail, about.f_ffree), (6, 0, 0));
    cluster.assert_quiet();
}

#[test]
fn whatever_would_write_is_refused_as_read_only() {
    if !can_mount("whatever_would_write_is_refused_as_read_only") {
        return;
    }
    let cluster = Cluster::of(Files::new().with("dir/file", 100).objects());
    let mounted = Mounted::start(&cluster, &MountSetup::default());
    let (file, dir) = (mounted.path("dir/file"), mounted.path("dir"));
    let readable = std::fs::Permissions::from_mode(0o777);
    let time = std::fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
    let results = [
        ("create", File::create(dir.join("new")).map(drop)),
        ("open for writing", File::options().write(true).open(&file).map(drop)),
        ("open for reading and writing", File::options().read(true).write(true).open(&file).map(drop)),
        ("open for appending", File::options().append(true).open(&file).map(drop)),
        ("unlink", std::fs::remove_file(&file)),
        ("rmdir", std::fs::remove_dir(&dir)),
        ("mkdir", std::fs::create_dir(dir.join("new"))),
        ("rename", std::fs::rename(&file, dir.join("other"))),
        ("link", std::fs::hard_link(&file, dir.join("other"))),
        ("symlink", std::os::unix::fs::symlink("file", dir.join("other"))),
        ("chmod", std::fs::set_permissions(&file, readable)),
        ("chown", std::os::unix::fs::chown(&file, Some(1), None)),
        ("utimens", File::open(&file).unwrap().set_times(time)),
        ("truncate", File::options().write(true).truncate(true).open(&file).map(drop)),
        (
            "setxattr",
            rustix::fs::setxattr(&file, "user.a", b"b", rustix::fs::XattrFlags::empty()).map_err(Into::into),
        ),
        ("removexattr", rustix::fs::removexattr(&file, "user.millrace.etag").map_err(Into::into)),
    ];
    for (what, result) in results {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{what}: {error}");
    }
    check_part(&mounted.point, "dir/file", 0, 100).unwrap();
}
