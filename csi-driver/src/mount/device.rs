//! Does the kernel have FUSE, and can this container open its device?
//!
//! A container gets the devices that the node has when it starts. One that is loaded later is missing in it, although the
//! kernel has it; so the device is made here where it is absent. Opening it has the kernel load the module, where the node
//! has one.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, makedev, mknodat, open};
use rustix::io::Errno;

/// Number of the device, the same everywhere (`FUSE_MINOR` among the kernel's miscellaneous devices).
const FUSE: (u32, u32) = (10, 229);

/// Opens the device once, and makes it first where it is absent.
///
/// # Errors
/// What the system says: the kernel has no FUSE, or this process may neither open nor make the device.
pub fn require(device: &Path) -> io::Result<()> {
    match try_open(device) {
        Err(Errno::NOENT) => {
            let (major, minor) = FUSE;
            let mode = Mode::from_raw_mode(0o666);
            match mknodat(CWD, device, FileType::CharacterDevice, mode, makedev(major, minor)) {
                // Another call was faster.
                Ok(()) | Err(Errno::EXIST) => Ok(try_open(device)?),
                Err(errno) => Err(errno.into()),
            }
        }
        opened => Ok(opened?),
    }
}

fn try_open(device: &Path) -> Result<(), Errno> {
    open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_absent_is_made_where_the_kernel_has_fuse() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("fuse");
        let is_possible = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
        if !is_possible {
            eprintln!("\nskipped: a_device_that_is_absent_is_made: needs root and /dev/fuse");
            return;
        }
        require(&device).unwrap();
        require(&device).unwrap();
        assert!(device.exists());
    }

    #[test]
    fn a_device_that_nobody_can_make_or_open_is_told() {
        let nowhere = require(Path::new("/nonexistent/fuse")).unwrap_err();
        assert_eq!(nowhere.kind(), io::ErrorKind::NotFound);
        // What a node's own file says where the kernel has no such device.
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("fuse");
        let made =
            mknodat(CWD, &device, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(10, 254));
        if made.is_ok() {
            require(&device).unwrap_err();
        }
    }
}
