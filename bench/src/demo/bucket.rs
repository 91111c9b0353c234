//! Which real files are there without downloading any?
//!
//! Whoever has built this program has the sources of its dependencies (tens of thousands of small files) and a toolchain
//! (a few large archives). The bucket is a tree of links to them.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::lab::Lab;

/// Bounds, so that the demo takes no more than minutes on two cores.
const MAX_FILES: usize = 30_000;

/// See [`MAX_FILES`].
const MAX_BYTES: u64 = 1_500_000_000;

/// From this size on a file of the toolchain is large.
const LARGE_BYTES: u64 = 1 << 20;

/// The share of the bytes that the toolchain may take, so that crates have room.
const MAX_TOOLCHAIN_BYTES: u64 = 1_000_000_000;

/// The packages that were built.
const LOCK: &str = include_str!("../../../Cargo.lock");

/// What is in the bucket.
#[derive(Debug)]
pub struct Contents {
    /// Folder of the bucket.
    pub root: PathBuf,
    /// All files, below the folder, with their sizes.
    pub files: BTreeMap<PathBuf, u64>,
    /// Sum of the sizes.
    pub bytes: u64,
}

/// Makes the bucket in `root`.
///
/// # Errors
/// Where neither crates nor toolchain are found.
pub fn assemble(lab: &Lab, root: &Path) -> Result<Contents> {
    let mut contents = Contents { root: root.to_owned(), files: BTreeMap::new(), bytes: 0 };
    for (name, path, size) in toolchain_files() {
        if contents.bytes + size <= MAX_TOOLCHAIN_BYTES {
            contents.link(&Path::new("toolchain").join(name), &path, size)?;
        }
    }
    let sources = registry_sources();
    for package in packages(LOCK) {
        lab.check()?;
        let Some(dir) = sources.iter().map(|sources| sources.join(&package)).find(|dir| dir.is_dir()) else {
            continue;
        };
        for (below, path, size) in files_below(&dir) {
            let has_room = contents.files.len() < MAX_FILES && contents.bytes + size <= MAX_BYTES;
            if has_room {
                contents.link(&Path::new("crates").join(&package).join(below), &path, size)?;
            }
        }
    }
    ensure!(
        !contents.files.is_empty(),
        "found neither crate sources (CARGO_HOME) nor a Rust toolchain to put in the bucket"
    );
    Ok(contents)
}

impl Contents {
    fn link(&mut self, below: &Path, original: &Path, size: u64) -> Result<()> {
        let link = self.root.join(below);
        if let Some(parent) = link.parent() {
            std::fs::create_dir_all(parent).with_context(|| format!("make {parent:?}"))?;
        }
        symlink(original, &link).with_context(|| format!("link {link:?}"))?;
        self.files.insert(below.to_owned(), size);
        self.bytes += size;
        Ok(())
    }
}

/// Folder names of the packages of a lock file, as cargo unpacks them: `name-version`.
fn packages(lock: &str) -> Vec<String> {
    let value = |line: &str, field: &str| {
        Some(line.strip_prefix(field)?.strip_prefix(" = \"")?.strip_suffix('"')?.to_owned())
    };
    let mut packages = Vec::new();
    let mut name = None;
    for line in lock.lines() {
        if let Some(found) = value(line, "name") {
            name = Some(found);
        } else if let (Some(version), Some(name)) = (value(line, "version"), name.take()) {
            packages.push(format!("{name}-{version}"));
        }
    }
    packages
}

/// Where cargo unpacks what it downloads.
fn registry_sources() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let entries =
        home.map(|home| std::fs::read_dir(home.join("registry/src"))).into_iter().flatten().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}

/// The large files of the toolchain, the largest first.
fn toolchain_files() -> Vec<(PathBuf, PathBuf, u64)> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let Ok(output) = Command::new(rustc).args(["--print", "sysroot"]).output() else { return Vec::new() };
    let lib = Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("lib");
    let mut files = files_below(&lib);
    files.retain(|(_, path, size)| {
        let is_archive = path.extension().is_some_and(|extension| extension == "rlib" || extension == "so");
        is_archive && *size >= LARGE_BYTES
    });
    files.sort_by_key(|(_, _, size)| std::cmp::Reverse(*size));
    files
}

/// All regular files below a folder: path below it, whole path, size. What cannot be read is left out.
fn files_below(root: &Path) -> Vec<(PathBuf, PathBuf, u64)> {
    let (mut files, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else { continue };
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.is_file()
                && let Ok(below) = path.strip_prefix(root)
            {
                files.push((below.to_owned(), path.clone(), metadata.len()));
            }
        }
    }
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packages_of_a_lock_file_are_found() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0\"\nsource = \"x\"\n\n[[package]]\nname = \"b-c\"\nversion = \"0.2\"\n";
        assert_eq!(packages(lock), ["a-1.0", "b-c-0.2"]);
        assert!(packages(LOCK).len() > 100);
    }

    #[test]
    fn links_are_files_with_the_size_of_the_original() {
        let (dir, original) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(original.path(), "abc").unwrap();
        let root = dir.path().join("bucket");
        let mut contents = Contents { root: root.clone(), files: BTreeMap::new(), bytes: 0 };
        contents.link(Path::new("a/b"), original.path(), 3).unwrap();
        assert_eq!(std::fs::read(root.join("a/b")).unwrap(), b"abc");
        assert_eq!((contents.bytes, contents.files.len()), (3, 1));
    }
}
