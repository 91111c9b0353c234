//! How does what a mount shows come to be plain files?

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use millrace_s3_server::synthetic;

use crate::reading::Expected;

/// Writes a file of a mount as a plain file.
///
/// # Errors
/// Where it cannot be written.
pub fn write_natively(dir: &Path, file: &Expected) -> Result<()> {
    let mut out = create(dir, file)?;
    let mut piece = vec![0; usize::try_from(file.size.min(1 << 20))?];
    let mut offset = 0;
    while offset < file.size {
        let length = piece.len().min(usize::try_from(file.size - offset)?);
        synthetic::fill(file.key.as_deref().unwrap_or_default(), offset, &mut piece[..length]);
        out.write_all(&piece[..length])?;
        offset += length as u64;
    }
    // Small ones are written back together, when the caches are dropped.
    if file.size >= 1 << 20 {
        out.sync_data()?;
    }
    Ok(())
}

/// Makes a plain file of the size of a file of a mount, without data.
///
/// # Errors
/// Where it cannot be made.
pub fn make_natively(dir: &Path, file: &Expected) -> Result<()> {
    Ok(create(dir, file)?.set_len(file.size)?)
}

fn create(dir: &Path, file: &Expected) -> Result<File> {
    let path = dir.join(&file.path);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    Ok(File::create(path)?)
}
