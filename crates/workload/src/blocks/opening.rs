//! How is a file opened, and a block of it read?

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use super::Access;
use crate::aligned::ALIGNMENT;
use crate::error::Error;

/// Opens a file for reading.
///
/// # Errors
/// `NoDirect` where the file system has no direct reads, `Open` otherwise.
pub(super) fn open(path: &Path, access: Access) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options.read(true);
    if access == Access::Direct {
        options.custom_flags(OFlags::DIRECT.bits().cast_signed());
    }
    options.open(path).map_err(|source| match (access, source.raw_os_error()) {
        // open(2): "the filesystem does not support the O_DIRECT flag".
        (Access::Direct, Some(code)) if code == rustix::io::Errno::INVAL.raw_os_error() => {
            Error::NoDirect { path: path.to_owned() }
        }
        _ => Error::Open { path: path.to_owned(), source },
    })
}

/// The block size as a buffer's, where it is allowed.
///
/// # Errors
/// `UnalignedBlock` for direct reads of other than whole pages.
pub(super) fn buffer_bytes(block_bytes: u64, access: Access) -> Result<usize, Error> {
    let refused = Error::UnalignedBlock { bytes: block_bytes };
    let bytes = usize::try_from(block_bytes.max(1)).unwrap_or(usize::MAX);
    if access == Access::Direct && bytes % ALIGNMENT != 0 { Err(refused) } else { Ok(bytes) }
}
