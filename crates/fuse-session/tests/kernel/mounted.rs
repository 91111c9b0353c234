//! A real mount of the file system in memory, taken down when it is dropped.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use millrace_fuse_session::{
    Errno, Filesystem, MetricsSnapshot, ReadReply, ReadRequest, Running, Session, Wanted,
};
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

use crate::memory::Memory;

pub const DEADLINE: Duration = Duration::from_secs(10);

/// A mount of any file system.
pub struct Served {
    /// `None` between two sessions.
    pub running: Option<Running>,
    unmount: Unmount,
}

/// A mount of the file system in memory.
pub struct Mounted {
    served: Served,
    pub memory: Arc<Memory>,
    pub held: Receiver<(ReadRequest, ReadReply)>,
}

/// Unmounts on drop, also when the test panics. A field of its own: it must exist before anything else can fail.
struct Unmount(TempDir);

impl Drop for Unmount {
    fn drop(&mut self) {
        // The end of a test is no place to fail; a mount left behind shows in the next lines of its output.
        if let Err(error) = rustix::mount::unmount(self.0.path(), UnmountFlags::DETACH) {
            eprintln!("unmount {:?}: {error}", self.0.path());
        }
    }
}

/// Says that a test is skipped, past the capture of its output: the closing summary collects these lines.
pub fn skipped(why: &str) {
    let thread = std::thread::current();
    // Nobody is left to tell where standard error is closed.
    let _ = writeln!(std::io::stderr(), "\nskipped: {}: {why}", thread.name().unwrap_or("a test"));
}

/// Tells, aloud, when mounts are not possible here.
pub fn may_mount() -> bool {
    let is_possible = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !is_possible {
        skipped("mounting needs root and /dev/fuse");
    }
    is_possible
}

/// Opens the device and mounts it; the caller speaks FUSE on it.
fn mount(directory: &Path) -> OwnedFd {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("open /dev/fuse");
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read=1048576\0",
        device.as_raw_fd()
    );
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).expect("options");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("session-test", directory, "fuse.session-test", flags, options).expect("mount");
    device.into()
}

impl Served {
    pub fn new<F: Filesystem>(wanted: &Wanted, file_system: Arc<F>) -> Self {
        let directory = tempfile::tempdir().expect("temporary folder");
        let device = mount(directory.path());
        let unmount = Unmount(directory);
        let session = Session::negotiate(device, wanted, DEADLINE).expect("negotiate");
        let running = Some(session.run(4, file_system).expect("run"));
        Self { running, unmount }
    }

    pub fn root(&self) -> &Path {
        self.unmount.0.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub fn running(&self) -> &Running {
        self.running.as_ref().expect("a session runs")
    }

    /// Waits until nothing is in flight, and gives the counters: the kernel sends RELEASE behind the back of a close.
    pub fn settled(&self) -> MetricsSnapshot {
        let start = Instant::now();
        loop {
            let metrics = self.running().metrics();
            if metrics.in_flight == 0 || start.elapsed() > DEADLINE {
                return metrics;
            }
            std::thread::yield_now();
        }
    }

    /// Unmounts, but not under what is open. Another test's child has our files open between its fork and its exec, so
    /// busy is not always true for long.
    pub fn unmount(&self) {
        let start = Instant::now();
        while let Err(errno) = rustix::mount::unmount(self.root(), UnmountFlags::empty()) {
            assert!(errno == Errno::BUSY && start.elapsed() < DEADLINE, "unmount: {errno}");
            std::thread::yield_now();
        }
    }

    /// Gives another descriptor of the same connection.
    pub fn duplicate(&self) -> OwnedFd {
        self.running().as_fd().try_clone_to_owned().expect("duplicate")
    }

    /// Raises the mount's read-ahead, as the kernel offers 128 KiB in INIT.
    pub fn set_read_ahead(&self, kibibytes: u32) {
        let device = fs::metadata(self.root()).expect("stat").dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        fs::write(path, kibibytes.to_string()).expect("write read_ahead_kb");
    }
}

impl Mounted {
    pub fn new(wanted: &Wanted) -> Self {
        let (memory, held) = Memory::new();
        Self { served: Served::new(wanted, Arc::clone(&memory)), memory, held }
    }

    pub fn reads(&self) -> Vec<(u64, u32)> {
        self.memory.reads.lock().expect("reads").clone()
    }
}

impl Deref for Mounted {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

impl DerefMut for Mounted {
    fn deref_mut(&mut self) -> &mut Served {
        &mut self.served
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Readers that are still waiting get EIO, so that nothing hangs on the mount when it is detached.
        for (_, reply) in self.held.try_iter() {
            drop(reply);
        }
    }
}

/// Opens for O_DIRECT reads.
pub fn open_direct(path: &Path) -> File {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).expect("open with O_DIRECT")
}
