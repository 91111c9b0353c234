//! Which files are below a folder?

use std::path::{Path, PathBuf};

use crate::error::Error;

/// More files are not looked at: ImageNet has 1.28 million, and two million paths take about 300 MB.
pub const MAX_FILES: usize = 2_000_000;

/// A regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its path.
    pub path: PathBuf,
    /// Its size, bytes.
    pub size: u64,
}

impl Listed {
    /// Refuses a file that ended before the size with which it was listed.
    pub(crate) fn ended_at(&self, offset: u64) -> Result<(), Error> {
        if offset < self.size {
            return Err(Error::Shrunk { path: self.path.clone(), offset, size: self.size });
        }
        Ok(())
    }
}

/// The files below a folder, by path; links are not followed.
#[derive(Debug, Clone)]
pub struct Tree {
    /// The folder.
    pub root: PathBuf,
    /// Its files.
    pub files: Vec<Listed>,
    /// Whether there are more than were looked at.
    pub is_cut: bool,
}

impl Tree {
    /// Lists a folder, or takes a single file. Looks at every file, so that names and attributes are in the kernel's caches
    /// afterwards.
    ///
    /// # Errors
    /// `ReadFolder` and `Stat` with what could not be listed.
    pub fn list(root: &Path, max_files: usize) -> Result<Self, Error> {
        let metadata =
            std::fs::metadata(root).map_err(|source| Error::Stat { path: root.to_owned(), source })?;
        let mut tree = Self { root: root.to_owned(), files: Vec::new(), is_cut: false };
        if !metadata.is_dir() {
            tree.files.push(Listed { path: root.to_owned(), size: metadata.len() });
            return Ok(tree);
        }
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            let read = |source| Error::ReadFolder { path: folder.clone(), source };
            for entry in std::fs::read_dir(&folder).map_err(read)? {
                let entry = entry.map_err(read)?;
                let path = entry.path();
                let stat = |source| Error::Stat { path: path.clone(), source };
                let kind = entry.file_type().map_err(stat)?;
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_file() {
                    if tree.files.len() >= max_files {
                        tree.is_cut = true;
                        folders.clear();
                        break;
                    }
                    let size = entry.metadata().map_err(stat)?.len();
                    tree.files.push(Listed { path, size });
                }
            }
        }
        tree.files.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        Ok(tree)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Files of at least so many bytes.
    ///
    /// # Errors
    /// `NothingToRead` where there is none.
    pub fn at_least(&self, bytes: u64) -> Result<Vec<&Listed>, Error> {
        let files: Vec<_> = self.files.iter().filter(|file| file.size >= bytes.max(1)).collect();
        if files.is_empty() {
            return Err(self.nothing(
                format!("file of at least {}", size_text(bytes.max(1))),
                "give a folder with larger files, a smaller --block-size, or make some with `millrace bench generate`",
            ));
        }
        Ok(files)
    }

    /// Files of at most so many bytes.
    ///
    /// # Errors
    /// `NothingToRead` where there is none.
    pub fn at_most(&self, bytes: u64) -> Result<Vec<&Listed>, Error> {
        let files: Vec<_> = self.files.iter().filter(|file| file.size <= bytes).collect();
        if files.is_empty() {
            return Err(self.nothing(
                format!("file of at most {}", size_text(bytes)),
                "give a folder with smaller files, or make some with `millrace bench generate PATH --profile resnet50-raw`",
            ));
        }
        Ok(files)
    }

    /// That what a case needs is not there.
    pub(crate) fn nothing(&self, wanted: String, cure: &str) -> Error {
        Error::NothingToRead {
            path: self.root.clone(),
            wanted,
            found: self.describe(),
            cure: cure.to_owned(),
        }
    }

    /// What is there, for people.
    pub fn describe(&self) -> String {
        let smallest = self.files.iter().map(|file| file.size).min();
        let largest = self.files.iter().map(|file| file.size).max();
        let more = if self.is_cut { " and more" } else { "" };
        match (self.files.len(), smallest, largest) {
            (1, Some(size), _) => format!("1 file of {}", size_text(size)),
            (count, Some(smallest), Some(largest)) => format!(
                "{count} files{more}, {} in all, from {} to {}",
                size_text(self.bytes()),
                size_text(smallest),
                size_text(largest)
            ),
            _ => "no files".to_owned(),
        }
    }
}

/// A size for people: exact where it is a power of two's multiple, to a tenth otherwise.
pub fn size_text(bytes: u64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        None => format!("{bytes} B"),
        Some((name, unit)) if bytes.is_multiple_of(unit) => format!("{} {name}", bytes / unit),
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, usize)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, size) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, vec![0; *size]).unwrap();
        }
        dir
    }

    #[test]
    fn files_are_listed_by_path_and_links_are_not_followed() {
        let dir = folder(&[("b/2", 2), ("a", 1), ("b/c/3", 3)]);
        std::os::unix::fs::symlink(dir.path(), dir.path().join("loop")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("a"), dir.path().join("link")).unwrap();
        let tree = Tree::list(dir.path(), MAX_FILES).unwrap();
        let sizes: Vec<u64> = tree.files.iter().map(|file| file.size).collect();
        assert_eq!((sizes, tree.bytes(), tree.is_cut), (vec![1, 2, 3], 6, false));
        let cut = Tree::list(dir.path(), 2).unwrap();
        assert!(cut.is_cut && cut.files.len() == 2);
    }

    #[test]
    fn a_single_file_is_a_tree_and_a_missing_one_is_named() {
        let dir = folder(&[("a", 7)]);
        let tree = Tree::list(&dir.path().join("a"), MAX_FILES).unwrap();
        assert_eq!((tree.files.len(), tree.bytes()), (1, 7));
        let error = Tree::list(&dir.path().join("none"), MAX_FILES).unwrap_err().to_string();
        assert!(error.contains("none"), "{error}");
    }

    #[test]
    fn what_is_missing_is_said_with_what_is_there_and_what_would_be_right() {
        let dir = folder(&[("a", 100), ("b", 3 << 10)]);
        let tree = Tree::list(dir.path(), MAX_FILES).unwrap();
        assert_eq!(tree.at_least(101).unwrap().len(), 1);
        let error = tree.at_least(1 << 20).unwrap_err().to_string();
        assert!(error.contains("file of at least 1 MiB"), "{error}");
        assert!(error.contains("2 files, 3.1 KiB in all, from 100 B to 3 KiB"), "{error}");
        assert!(error.contains("--block-size") && error.contains("generate"), "{error}");
        let error = tree.at_most(10).unwrap_err().to_string();
        assert!(error.contains("at most 10 B") && error.contains("resnet50-raw"), "{error}");
        let empty = folder(&[]);
        let error = Tree::list(empty.path(), 1).unwrap().at_least(0).unwrap_err().to_string();
        assert!(error.contains("found no files"), "{error}");
    }
}
