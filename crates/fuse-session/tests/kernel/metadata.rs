//! Listing, attributes, room, and the refusal of every change.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use millrace_fuse_session::{Errno, Opcode, Readdirplus, Wanted};

use crate::memory::{HELLO, MANY};
use crate::mounted::{Mounted, may_mount};

fn names(directory: &Path) -> BTreeSet<OsString> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn root_is_listed_and_its_files_have_their_attributes() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    let expected = ["dropped", "deferred", "held", "hello", "large", "many", "panic"];
    assert_eq!(names(mounted.root()), expected.map(OsString::from).into());
    let hello = fs::metadata(mounted.path("hello")).unwrap();
    assert_eq!((hello.ino(), hello.len(), hello.mode()), (2, HELLO.len() as u64, 0o100_444));
    assert_eq!((hello.mtime(), hello.blksize(), hello.nlink()), (1_700_000_000, 4096, 1));
    assert_eq!(fs::metadata(mounted.path("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn absent_name_is_asked_for_once() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    (0..5).for_each(|_| assert!(!mounted.path("absent").exists()));
    assert_eq!(mounted.running().metrics().requests_of(Opcode::Lookup), 1);
}

#[test]
fn directory_of_twenty_thousand_is_listed_whole_in_every_way() {
    if !may_mount() {
        return;
    }
    for readdirplus in [Readdirplus::Off, Readdirplus::Auto, Readdirplus::Always] {
        let mounted = Mounted::new(&Wanted { readdirplus, ..Wanted::default() });
        assert_eq!(names(&mounted.path("many")).len() as u64, MANY, "{readdirplus:?}");
        let metrics = mounted.running().metrics();
        let plus = metrics.requests_of(Opcode::Readdirplus);
        assert_eq!(plus > 0, readdirplus != Readdirplus::Off, "{readdirplus:?}: {plus}");
    }
}

#[test]
fn listing_with_attributes_saves_the_look_ups() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    let sizes =
        fs::read_dir(mounted.path("many")).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert_eq!(sizes.sum::<u64>(), (1000..1000 + MANY).sum::<u64>());
    let metrics = mounted.running().metrics();
    assert_eq!(metrics.requests_of(Opcode::Lookup), 1, "{metrics:?}");
    assert!(metrics.requests_of(Opcode::Getattr) < 10, "{metrics:?}");
}

#[test]
fn statfs_tells_size_and_files() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    let statfs = rustix::fs::statfs(mounted.root()).unwrap();
    assert_eq!((statfs.f_blocks, statfs.f_bsize, statfs.f_files, statfs.f_bfree), (12_345, 4096, 77, 0));
}

#[test]
fn extended_attributes_are_listed_and_read() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    let path = mounted.path("hello");
    let mut value = [0u8; 64];
    let length = rustix::fs::getxattr(&path, "user.millrace.etag", &mut value).unwrap();
    assert_eq!(&value[..length], b"etag-2");
    let asked = rustix::fs::getxattr_query(&path, "user.millrace.etag").unwrap();
    assert_eq!(asked, length);
    let short = rustix::fs::getxattr(&path, "user.millrace.etag", &mut [0u8; 3]);
    assert_eq!(short.unwrap_err(), Errno::RANGE);
    let none = rustix::fs::getxattr(&path, "user.other", &mut value);
    assert_eq!(none.unwrap_err(), Errno::NODATA);
    let mut list = [0u8; 256];
    let length = rustix::fs::listxattr(&path, &mut list).unwrap();
    assert_eq!(&list[..length], b"user.millrace.etag\0user.millrace.key\0");
}

#[test]
fn every_change_is_refused_as_read_only() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    let (hello, new) = (mounted.path("hello"), mounted.path("new"));
    let read_only = |what: &str, result: io::Result<()>| {
        let error = result.expect_err(what);
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem, "{what}: {error}");
    };
    let write = OpenOptions::new().write(true).open(&hello);
    read_only("write", write.and_then(|file| file.write_all_at(b"x", 0)));
    read_only("truncate", OpenOptions::new().write(true).truncate(true).open(&hello).map(drop));
    read_only("create", File::create(&new).map(drop));
    read_only("mkdir", fs::create_dir(&new));
    read_only("unlink", fs::remove_file(&hello));
    read_only("rmdir", fs::remove_dir(mounted.path("many")));
    read_only("rename", fs::rename(&hello, &new));
    read_only("link", fs::hard_link(&hello, &new));
    read_only("symlink", symlink("hello", &new));
    read_only("chmod", fs::set_permissions(&hello, fs::Permissions::from_mode(0o600)));
    read_only(
        "setxattr",
        errno(rustix::fs::setxattr(&hello, "user.x", b"y", rustix::fs::XattrFlags::empty())),
    );
    read_only("removexattr", errno(rustix::fs::removexattr(&hello, "user.millrace.etag")));
    let fallocate = OpenOptions::new()
        .write(true)
        .open(&hello)
        .map(|file| errno(rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 4096)));
    read_only("fallocate", fallocate.and_then(|result| result));
    let fifo = rustix::fs::mknodat(rustix::fs::CWD, &new, rustix::fs::FileType::Fifo, 0o600.into(), 0);
    read_only("mknod", errno(fifo));
    assert_eq!(fs::read(&hello).unwrap(), HELLO);
}

fn errno(result: Result<(), Errno>) -> io::Result<()> {
    result.map_err(io::Error::from)
}

#[test]
fn sync_and_close_of_a_read_file_succeed() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    File::open(mounted.path("hello")).unwrap().sync_all().unwrap();
    File::open(mounted.root()).unwrap().sync_all().unwrap();
}
