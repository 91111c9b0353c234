//! How do readers of a mount behave: whole files one after the other, several at once, or pieces at random?

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millrace_s3_server::synthetic;
use millrace_workload::blocks::Access;
use rustix::fs::OFlags;

use crate::lab::Lab;

/// What a reader asks for at a time: what `cp` and most loaders of large files do, within a factor of four.
const BUFFER_BYTES: usize = 1 << 20;

/// A file in a mount, and the object whose bytes it must have.
#[derive(Debug, Clone)]
pub struct Expected {
    /// Path below the mount.
    pub path: PathBuf,
    /// Key in a synthetic bucket of seed 0; `None` where the bytes are not looked at.
    pub key: Option<String>,
    /// Size, bytes.
    pub size: u64,
}

/// Reads whole files with so many threads, each taking the next file, and says how long it took.
///
/// # Errors
/// Where a file cannot be read, has another size, or has other bytes than its object.
pub fn read_all(lab: &Lab, root: &Path, files: &[Expected], threads: usize) -> Result<Duration> {
    Ok(read_for(lab, root, files, threads, Duration::MAX)?.1)
}

/// As [`read_all`], but takes no file after so long, and says how many were read: the first ones.
///
/// # Errors
/// As [`read_all`].
pub fn read_for(
    lab: &Lab,
    root: &Path,
    files: &[Expected],
    threads: usize,
    limit: Duration,
) -> Result<(usize, Duration)> {
    let (next, trouble) = (AtomicUsize::new(0), Mutex::new(None));
    let (started, read) = (Instant::now(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut buffer = vec![0; BUFFER_BYTES];
                while started.elapsed() < limit {
                    let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    if let Err(error) = read_one(lab, root, file, &mut buffer) {
                        next.store(files.len(), Ordering::Relaxed);
                        *trouble.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
                        return;
                    }
                    read.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let took = started.elapsed();
    match trouble.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok((read.into_inner(), took)),
    }
}

/// Time of each of these reads of `length` bytes, one after the other; the bytes are compared outside the time.
///
/// # Errors
/// As [`read_all`].
pub fn read_at(
    lab: &Lab,
    root: &Path,
    file: &Expected,
    offsets: &[u64],
    length: usize,
    access: Access,
) -> Result<Vec<Duration>> {
    let path = root.join(&file.path);
    let flags = match access {
        Access::Cached => OFlags::empty(),
        Access::Direct => OFlags::DIRECT,
    };
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(&path)
        .with_context(|| format!("open {path:?}"))?;
    let mut buffer = vec![0; length];
    let mut times = Vec::with_capacity(offsets.len());
    for offset in offsets {
        lab.check()?;
        let started = Instant::now();
        opened.read_exact_at(&mut buffer, *offset).with_context(|| format!("read {path:?} at {offset}"))?;
        times.push(started.elapsed());
        if let Some(key) = &file.key {
            ensure!(synthetic::matches(key, *offset, &buffer), "{path:?} has wrong bytes at {offset}");
        }
    }
    Ok(times)
}

/// Reads a tree with so many threads against another, byte for byte, and returns files and bytes.
///
/// # Errors
/// Where something cannot be read, is missing, or differs.
pub fn compare_files(lab: &Lab, left: &Path, right: &Path, files: &[PathBuf], threads: usize) -> Result<u64> {
    let (next, bytes, trouble) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut buffers = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
                while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match compare_one(lab, &left.join(file), &right.join(file), &mut buffers) {
                        Ok(size) => bytes.fetch_add(size, Ordering::Relaxed),
                        Err(error) => {
                            next.store(files.len(), Ordering::Relaxed);
                            *trouble.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
                            return;
                        }
                    };
                }
            });
        }
    });
    match trouble.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(bytes.into_inner()),
    }
}

fn read_one(lab: &Lab, root: &Path, file: &Expected, buffer: &mut [u8]) -> Result<()> {
    let path = root.join(&file.path);
    let mut opened = File::open(&path).with_context(|| format!("open {path:?}"))?;
    let mut offset = 0;
    loop {
        lab.check()?;
        let length = opened.read(buffer).with_context(|| format!("read {path:?} at {offset}"))?;
        if length == 0 {
            break;
        }
        if let Some(key) = &file.key {
            ensure!(
                synthetic::matches(key, offset, &buffer[..length]),
                "{path:?} has wrong bytes near {offset}"
            );
        }
        offset += length as u64;
    }
    ensure!(offset == file.size, "{path:?} has {offset} bytes, expected {}", file.size);
    Ok(())
}

fn compare_one(lab: &Lab, left: &Path, right: &Path, buffers: &mut (Vec<u8>, Vec<u8>)) -> Result<u64> {
    let open = |path: &Path| File::open(path).with_context(|| format!("open {path:?}"));
    let (mut left_file, mut right_file) = (open(left)?, open(right)?);
    let mut offset = 0;
    loop {
        lab.check()?;
        let length = left_file.read(&mut buffers.0).with_context(|| format!("read {left:?}"))?;
        let wanted = &mut buffers.1[..length];
        right_file.read_exact(wanted).with_context(|| format!("read {right:?} at {offset}"))?;
        ensure!(*wanted == buffers.0[..length], "{left:?} and {right:?} differ after {offset} bytes");
        if length == 0 {
            break;
        }
        offset += length as u64;
    }
    let more = right_file.read(&mut buffers.1[..1]).with_context(|| format!("read {right:?}"))?;
    ensure!(more == 0, "{right:?} is longer than {left:?}");
    Ok(offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Options;

    fn lab() -> Lab {
        Lab::new(Options::default()).unwrap()
    }

    #[test]
    fn wrong_bytes_and_wrong_sizes_are_noticed() {
        let (lab, dir) = (lab(), tempfile::tempdir().unwrap());
        let mut bytes = vec![0; 3 << 20];
        synthetic::fill("k", 0, &mut bytes);
        std::fs::write(dir.path().join("f"), &bytes).unwrap();
        let mut file = Expected { path: "f".into(), key: Some("k".to_owned()), size: 3 << 20 };
        read_all(&lab, dir.path(), std::slice::from_ref(&file), 2).unwrap();
        assert_eq!(read_at(&lab, dir.path(), &file, &[0, 99_999], 4096, Access::Cached).unwrap().len(), 2);
        file.size += 1;
        assert!(read_all(&lab, dir.path(), std::slice::from_ref(&file), 1).is_err());
        file.size -= 1;
        bytes[2 << 20] ^= 1;
        std::fs::write(dir.path().join("f"), &bytes).unwrap();
        let error = read_all(&lab, dir.path(), &[file], 1).unwrap_err().to_string();
        assert!(error.contains("wrong bytes"), "{error}");
    }

    #[test]
    fn no_file_is_taken_after_the_time() {
        let (lab, dir) = (lab(), tempfile::tempdir().unwrap());
        let file = |name: &str| Expected { path: name.into(), key: None, size: 4 };
        let files = ["a", "b", "c"].map(file);
        for file in &files {
            std::fs::write(dir.path().join(&file.path), "four").unwrap();
        }
        assert_eq!(read_for(&lab, dir.path(), &files, 2, Duration::MAX).unwrap().0, 3);
        assert_eq!(read_for(&lab, dir.path(), &files, 2, Duration::ZERO).unwrap().0, 0);
    }

    #[test]
    fn trees_that_differ_are_told_apart() {
        let (lab, left, right) = (lab(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(left.path().join("f"), "same").unwrap();
        std::fs::write(right.path().join("f"), "same").unwrap();
        let files = [PathBuf::from("f")];
        let compare = || compare_files(&lab, left.path(), right.path(), &files, 2);
        assert_eq!(compare().unwrap(), 4);
        for other in ["sane", "same and more", "sam"] {
            std::fs::write(right.path().join("f"), other).unwrap();
            assert!(compare().is_err(), "{other}");
        }
        std::fs::remove_file(right.path().join("f")).unwrap();
        assert!(compare().is_err());
    }
}
