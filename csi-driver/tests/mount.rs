//! Do real mounts come, fail by name, and go? Needs root and /dev/fuse; says so where they are missing.

#![expect(clippy::unwrap_used, reason = "a test may fail in any line")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use millrace_csi_driver::mount::attach::{Attached, DeadMount, Method, Mount, attach, clean_dead};
use millrace_csi_driver::mount::error::MountError;
use millrace_csi_driver::mount::mountinfo::{self, DeviceNumber};
use millrace_csi_driver::mount::options::MountOptions;
use millrace_csi_driver::mount::point::{PointState, inspect};
use millrace_csi_driver::mount::stale::{self, AbortError, Health};
use millrace_csi_driver::mount::syscalls::{How, Unmounted};
use millrace_csi_driver::mount::{fusermount, read_ahead, syscalls};
use millrace_fuse_session::{
    Attr, Caller, DirBuffer, End, Errno, FileHandle, Filesystem, Kind, Lookup, NodeId, Opened, ReadReply,
    ReadRequest, Running, Session, Statfs, Wanted,
};
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(10);
/// Names the folder in a test that runs itself again as an ordinary user.
const AS_USER: &str = "MILLRACE_TEST_AS_USER";
/// The user `nobody`.
const NOBODY: u32 = 65_534;

/// A file system with nothing in it.
struct Empty;

impl Filesystem for Empty {
    fn lookup(&self, _: &Caller, _: NodeId, _: &[u8]) -> Result<Lookup, Errno> {
        Err(Errno::NOENT)
    }

    fn getattr(&self, _: &Caller, _: NodeId, _: Option<FileHandle>) -> Result<(Attr, Duration), Errno> {
        let (kind, permissions, blocks, block_size) = (Kind::Directory, 0o555, 0, 4096);
        let (atime, mtime, ctime) = (UNIX_EPOCH, UNIX_EPOCH, UNIX_EPOCH);
        let (ino, size, nlink, uid, gid) = (1, 0, 2, 0, 0);
        let attr =
            Attr { ino, kind, permissions, size, blocks, block_size, nlink, uid, gid, atime, mtime, ctime };
        Ok((attr, DEADLINE))
    }

    fn open(&self, _: &Caller, _: NodeId, _: u32) -> Result<Opened, Errno> {
        Err(Errno::NOENT)
    }

    fn read(&self, _: &Caller, _: ReadRequest, reply: ReadReply) {
        reply.bytes(&[]);
    }

    fn readdir(&self, _: &Caller, _: NodeId, _: FileHandle, _: u64, _: &mut DirBuffer) -> Result<(), Errno> {
        Ok(())
    }

    fn statfs(&self, _: &Caller, _: NodeId) -> Result<Statfs, Errno> {
        Ok(Statfs { block_size: 4096, blocks: 77, ..Statfs::default() })
    }
}

/// Says that a test is skipped, past the capture of its output: the closing summary collects these lines.
fn skipped(why: &str) {
    let thread = std::thread::current();
    // Nobody is left to tell where standard error is closed.
    let _ = writeln!(std::io::stderr(), "\nskipped: {}: {why}", thread.name().unwrap_or("a test"));
}

fn may_mount() -> bool {
    let is_possible = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !is_possible {
        skipped("mounting needs root and /dev/fuse");
    }
    is_possible
}

fn options() -> MountOptions {
    MountOptions { source: "vision/imagenet, v2".into(), is_shared: true, context: None }
}

/// Gives a folder that the kernel's table names as we do.
fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

fn mount_by(point: &Path, method: Method) -> Result<Attached, MountError> {
    attach(point, &options(), method, DeadMount::Refuse, DEADLINE)
}

/// Mounts and serves.
fn served(point: &Path, method: Method) -> (Mount, Running) {
    let Attached { device, mount } = mount_by(point, method).unwrap();
    let session = Session::negotiate(device, &Wanted::default(), DEADLINE).unwrap();
    (mount, session.run(2, Arc::new(Empty)).unwrap())
}

#[test]
fn root_mounts_read_only_by_syscall_and_by_helper() {
    if !may_mount() {
        return;
    }
    for method in [Method::Auto, Method::Syscall, Method::Fusermount] {
        let (_folder, point) = folder();
        let (mount, running) = served(&point, method);
        assert_eq!(fs::read_dir(&point).unwrap().count(), 0);
        assert_eq!(rustix::fs::statfs(&point).unwrap().f_blocks, 77);
        let entry = mountinfo::find(&point).unwrap().unwrap();
        assert_eq!(
            (entry.file_system.as_str(), entry.source.as_str()),
            ("fuse.millrace", "vision/imagenet, v2")
        );
        assert_eq!(mount.device(), Some(entry.device));
        let flags = rustix::fs::statvfs(&point).unwrap().f_flag;
        let wanted = rustix::fs::StatVfsMountFlags::RDONLY
            | rustix::fs::StatVfsMountFlags::NOSUID
            | rustix::fs::StatVfsMountFlags::NODEV;
        assert!(flags.contains(wanted), "{method:?}: {flags:?}");
        let error = fs::write(point.join("x"), "y").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        // Detached when a child of another test is between its fork and its exec, where it has our files open.
        assert_ne!(mount.unmount().unwrap(), Unmounted::WasNotMounted, "{method:?}");
        assert_eq!(running.join(), End::Unmounted);
        assert_eq!(mountinfo::find(&point).unwrap(), None);
    }
}

#[test]
fn read_ahead_is_raised_and_a_wrong_device_is_named() {
    if !may_mount() {
        return;
    }
    let (_folder, point) = folder();
    let (mount, running) = served(&point, Method::Auto);
    let device @ DeviceNumber { major, minor } = mount.device().unwrap();
    read_ahead::set(device, 1024).unwrap();
    let shown = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).unwrap();
    assert_eq!(shown.trim(), "1024");
    drop((mount, running));
    let error = read_ahead::set(DeviceNumber { major: 0, minor: 999_999 }, 1024).unwrap_err();
    assert!(error.to_string().contains("0:999999"), "{error}");
}

#[test]
fn second_mount_on_a_folder_is_refused_as_busy() {
    if !may_mount() {
        return;
    }
    let (_folder, point) = folder();
    let (_mount, _running) = served(&point, Method::Auto);
    let error = attach(&point, &options(), Method::Auto, DeadMount::Clean, DEADLINE).unwrap_err();
    assert!(
        matches!(&error, MountError::Busy { file_system, .. } if file_system == "fuse.millrace"),
        "{error}"
    );
}

#[test]
fn mount_goes_when_its_owner_is_dropped_or_panics() {
    if !may_mount() {
        return;
    }
    let (_folder, point) = folder();
    let of_the_thread = point.clone();
    let panicked = std::thread::spawn(move || {
        let _served = served(&of_the_thread, Method::Auto);
        panic!("as the test wants");
    });
    assert!(panicked.join().is_err());
    assert_eq!(mountinfo::find(&point).unwrap(), None);
}

#[test]
fn mount_in_use_is_detached() {
    if !may_mount() {
        return;
    }
    let (_folder, point) = folder();
    let (mount, running) = served(&point, Method::Auto);
    let open = fs::File::open(&point).unwrap();
    assert_eq!(mount.unmount().unwrap(), Unmounted::Detached);
    assert!(!running.is_ended());
    drop(open);
    assert_eq!(running.join(), End::Unmounted);
    assert_eq!(syscalls::unmount(&point, How::Gently, DEADLINE).unwrap(), Unmounted::WasNotMounted);
    assert_eq!(
        syscalls::unmount(&point.join("none"), How::Gently, DEADLINE).unwrap(),
        Unmounted::WasNotMounted
    );
}

#[test]
fn dead_mount_is_named_and_cleaned_by_choice() {
    if !may_mount() {
        return;
    }
    let (_folder, point) = folder();
    let (mount, running) = served(&point, Method::Auto);
    // The root's attributes are in the kernel's cache now, so that stat alone would call the mount alive.
    fs::metadata(&point).unwrap();
    // What a killed process leaves: a mount without anybody who holds its device.
    drop(running);
    std::mem::forget(mount);
    assert_eq!(stale::health(&point, DEADLINE).unwrap(), Health::Dead);
    assert!(matches!(inspect(&point, DEADLINE).unwrap(), PointState::Dead(_)));
    let error = mount_by(&point, Method::Auto).unwrap_err();
    assert!(matches!(error, MountError::Dead { .. }), "{error}");
    let attached = attach(&point, &options(), Method::Auto, DeadMount::Clean, DEADLINE).unwrap();
    drop(attached);
    assert_eq!(clean_dead(&point, DEADLINE).unwrap(), 0);
}

#[test]
fn silent_mount_hangs_nobody_and_can_be_aborted() {
    if !may_mount() {
        return;
    }
    let (_folder, point) = folder();
    // Its INIT is never answered.
    let Attached { device, mount } = mount_by(&point, Method::Auto).unwrap();
    let (short, start) = (Duration::from_millis(200), Instant::now());
    let error = attach(&point, &options(), Method::Auto, DeadMount::Clean, short).unwrap_err();
    assert!(matches!(error, MountError::Wedged { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
    let cleaned = stale::clean(&point, mount.device().unwrap(), DEADLINE).unwrap();
    // Detached when the one that asked in vain is still on its way out.
    assert_ne!(cleaned, Unmounted::WasNotMounted);
    assert_eq!(mountinfo::find(&point).unwrap(), None);
    drop((device, mount));
}

/// The control file system on a folder of the test, for many machines have it nowhere.
struct Control(TempDir);

impl Control {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        rustix::mount::mount("none", folder.path(), "fusectl", MountFlags::empty(), None).unwrap();
        Self(folder)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(self.0.path(), UnmountFlags::DETACH) {
            eprintln!("unmount {:?}: {error}", self.0.path());
        }
    }
}

#[test]
fn abort_ends_the_session_and_its_readers() {
    if !may_mount() {
        return;
    }
    let (_folder, point) = folder();
    let (mount, running) = served(&point, Method::Auto);
    let number = mount.device().unwrap();
    let _control = Control::new();
    assert_eq!(stale::waiting(number), Some(0));
    stale::abort(number).unwrap();
    assert_eq!(running.join(), End::Aborted);
    assert_eq!(stale::health(&point, DEADLINE).unwrap(), Health::Dead);
    assert_ne!(stale::clean(&point, number, DEADLINE).unwrap(), Unmounted::WasNotMounted);
    // Not the same number: another test's mount may have it by now.
    let none = DeviceNumber { major: 0, minor: 999_999 };
    assert!(matches!(stale::abort(none), Err(AbortError::Gone { .. })));
}

#[test]
fn ordinary_user_mounts_by_helper_only() {
    if let Some(point) = std::env::var_os(AS_USER) {
        return as_ordinary_user(Path::new(&point));
    }
    if !may_mount() {
        return;
    }
    let (folder, point) = folder();
    let open_to_all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), open_to_all.clone()).unwrap();
    let (own, program) = (point.join("own"), point.join("program"));
    fs::create_dir(&own).unwrap();
    chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    // A copy: the build folder may be closed to others.
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, open_to_all).unwrap();
    // In a mount namespace of its own, so that nothing is left whatever happens, and where the device is open to all as
    // it usually is.
    let script = "mknod -m 666 \"$1/fuse\" c 10 229 && mount --bind \"$1/fuse\" /dev/fuse && \
                  exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$1/program\" --exact \
                  ordinary_user_mounts_by_helper_only --nocapture";
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
        .arg(&point)
        .env(AS_USER, &own)
        .env_remove("TMPDIR")
        .current_dir("/")
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    assert_eq!(mountinfo::find(&own).unwrap(), None, "{words}");
    // A part that the other process has skipped.
    let _ = write!(std::io::stderr(), "{words}");
}

/// What an ordinary user meets; runs in a process of that user.
fn as_ordinary_user(point: &Path) {
    let error = mount_by(point, Method::Syscall).unwrap_err();
    assert!(matches!(error, MountError::NotAllowed { .. }), "{error:?}");
    let error = fusermount::mount(Path::new("/proc"), &options(), DEADLINE).unwrap_err();
    assert!(matches!(error, MountError::NotAllowed { .. }), "{error:?}");
    let attached = match mount_by(point, Method::Auto) {
        Ok(attached) => attached,
        Err(error @ MountError::FusermountMissing { .. }) => {
            skipped(&error.to_string());
            return;
        }
        Err(error) => panic!("{error:?}"),
    };
    let Attached { device, mount } = attached;
    let session = Session::negotiate(device, &Wanted::default(), DEADLINE).unwrap();
    let running = session.run(2, Arc::new(Empty)).unwrap();
    assert_eq!(fs::read_dir(point).unwrap().count(), 0);
    let error = read_ahead::set(mount.device().unwrap(), 1024).unwrap_err();
    assert!(matches!(error, read_ahead::ReadAheadError::NotAllowed { .. }), "{error:?}");
    // Another mount of the same folder, and the end of this one while it is in use.
    assert!(matches!(mount_by(point, Method::Auto).unwrap_err(), MountError::Busy { .. }));
    let open = fs::File::open(point).unwrap();
    assert_eq!(mount.unmount().unwrap(), Unmounted::Detached);
    drop(open);
    assert_eq!(running.join(), End::Unmounted);
    // A dead one.
    let attached = mount_by(point, Method::Auto).unwrap();
    drop(attached.device);
    std::mem::forget(attached.mount);
    assert_eq!(clean_dead(point, DEADLINE).unwrap(), 1);
    assert_eq!(mountinfo::find(point).unwrap(), None);
}
