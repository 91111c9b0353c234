//! How is a file handed to the kernel, so that it reads it itself (FUSE passthrough, Linux 6.9 and later)?
//!
//! The crate's only unsafe code: two ioctls of the FUSE device, `FUSE_DEV_IOC_BACKING_OPEN` and `_CLOSE` of
//! `include/uapi/linux/fuse.h`. The kernel keeps the very open file that it is given, with its flock, until the id is
//! closed and the last file opened by it is closed too.

#![expect(unsafe_code, reason = "rustix has no safe form of these two ioctls")]

use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};

use crate::channel::Channel;

/// `FUSE_DEV_IOC_MAGIC`.
const MAGIC: u8 = 229;
const OPEN: Opcode = opcode::write::<BackingMap>(MAGIC, 1);
const CLOSE: Opcode = opcode::write::<u32>(MAGIC, 2);

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

const _: () = assert!(size_of::<BackingMap>() == 16);

/// The kernel's number for a file that it was given; above zero, valid on one connection.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct BackingId(pub i32);

/// Hands files to the kernel over a connection.
#[derive(Clone)]
pub struct Backing(Arc<Channel>);

impl Backing {
    pub(crate) fn new(channel: &Arc<Channel>) -> Self {
        Self(Arc::clone(channel))
    }

    /// Hands an open file to the kernel; the descriptor may be closed afterwards.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN or where passthrough was not settled in INIT; ELOOP when the file lies on a stacked
    /// file system (overlayfs); EOPNOTSUPP or ENOTTY when the kernel or the file system cannot do it.
    pub fn open(&self, file: BorrowedFd<'_>) -> Result<BackingId, Errno> {
        let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the opcode and the struct belong together (`BackingOpen` says so), and the device outlives the call.
        unsafe { ioctl(self.0.device.as_fd(), BackingOpen(map)) }
    }

    /// Takes an id back. Files opened by it stay open; the number may come again for another file.
    ///
    /// # Errors
    /// ENOENT for an id that the connection does not have.
    pub fn close(&self, id: BackingId) -> Result<(), Errno> {
        let number = u32::try_from(id.0).map_err(|_| Errno::NOENT)?;
        // SAFETY: `FUSE_DEV_IOC_BACKING_CLOSE` reads a u32 from where it is pointed to, and writes nothing.
        unsafe { ioctl(self.0.device.as_fd(), Setter::<CLOSE, u32>::new(number)) }
    }
}

impl fmt::Debug for Backing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Backing")
    }
}

/// `FUSE_DEV_IOC_BACKING_OPEN`, whose result is its return value.
struct BackingOpen(BackingMap);

// SAFETY: the opcode is that of `FUSE_DEV_IOC_BACKING_OPEN`, which reads a `fuse_backing_map` from the pointer and writes
// nothing there; the pointer is that of a field that lives as long as the value; the output is a plain number.
unsafe impl Ioctl for BackingOpen {
    type Output = BackingId;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPEN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<BackingId> {
        Ok(BackingId(output))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!((OPEN, CLOSE), (0x4010_e501, 0x4004_e502));
    }
}
