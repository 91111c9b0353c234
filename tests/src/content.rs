//! Which files does a test have, and are their bytes right?

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::synthetic;

/// How much is read at once.
const READ_BYTES: usize = 256 << 10;

/// Keys and sizes of a dataset; the bytes of an object follow from its key.
#[derive(Debug, Clone, Default)]
pub struct Files(pub Vec<(String, u64)>);

impl Files {
    /// No files.
    pub fn new() -> Self {
        Self::default()
    }

    /// With a file more.
    pub fn with(mut self, key: impl Into<String>, size: u64) -> Self {
        self.0.push((key.into(), size));
        self
    }

    /// With files more: `count` of them in `dir`, each of `size` bytes.
    pub fn with_many(mut self, dir: &str, count: usize, size: u64) -> Self {
        self.0.extend((0..count).map(|number| (format!("{dir}/{number:03}"), size)));
        self
    }

    /// The objects in a bucket.
    pub fn objects(&self) -> InMemory {
        let objects = InMemory::new();
        for (key, size) in &self.0 {
            objects.put_sized(key, *size);
        }
        objects
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, size)| size).sum()
    }

    /// Reads all files below `dir` and compares each byte.
    pub fn check(&self, dir: &Path) {
        for (key, size) in &self.0 {
            check_file(dir, key, *size);
        }
    }
}

/// Reads one file below `dir` and compares each byte.
pub fn check_file(dir: &Path, key: &str, size: u64) {
    let path = dir.join(key);
    let mut file = File::open(&path).unwrap_or_else(|error| panic!("open {path:?}: {error}"));
    assert_eq!(file.metadata().unwrap().len(), size, "size of {path:?}");
    let (mut buffer, mut offset) = (vec![0; READ_BYTES], 0);
    loop {
        let count =
            file.read(&mut buffer).unwrap_or_else(|error| panic!("read {path:?} at {offset}: {error}"));
        if count == 0 {
            assert_eq!(offset, size, "end of {path:?}");
            return;
        }
        assert!(synthetic::matches(key, offset, &buffer[..count]), "wrong bytes in {path:?} behind {offset}");
        offset += count as u64;
    }
}

/// Reads a part of a file; the error where it cannot be read, a failed test where it is wrong.
pub fn check_part(dir: &Path, key: &str, offset: u64, len: usize) -> std::io::Result<()> {
    let path = dir.join(key);
    let mut buffer = vec![0; len];
    File::open(&path)?.read_exact_at(&mut buffer, offset)?;
    assert!(synthetic::matches(key, offset, &buffer), "wrong bytes in {path:?} behind {offset}");
    Ok(())
}

/// Lets the kernel forget the pages of a file, so that the next read asks the mount process.
pub fn forget_pages(path: &Path) {
    let file = File::open(path).unwrap_or_else(|error| panic!("open {path:?}: {error}"));
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}
