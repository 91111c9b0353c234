//! How fast are folders listed and files looked at, as `find`, `ls -lR` and a loader's scan do it?

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, statat};
use rustix::io::Errno;

use crate::error::Error;
use crate::run::{Outcome, Plan, Worker, for_each, on_threads};
use crate::tree::Listed;

/// What is asked of each entry of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing but its name, as by `find`.
    Names,
    /// Its attributes, as by `find -size`.
    Sizes,
    /// Its attributes, label and access list, folder by folder and sorted, as by `ls -lR`.
    Long,
}

/// Walks a tree on one thread, as the programs it stands for do. One operation is the listing of a folder or the look at an entry;
/// files are entries seen, folders too.
///
/// # Errors
/// The first folder or entry that cannot be looked at.
pub fn walk(plan: Plan<'_>, root: &Path, look: Look) -> Result<Outcome, Error> {
    on_threads(Plan { threads: 1, ..plan }, |worker| {
        let mut extended = Extended::default();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            if !worker.goes_on() {
                return Ok(false);
            }
            let (opened, mut names) = worker.time(|| entries(&folder))?;
            if look == Look::Long {
                names.sort_unstable_by(|one, other| one.0.cmp(&other.0));
            }
            let below = folders.len();
            for (name, kind) in names {
                if !worker.goes_on() {
                    return Ok(false);
                }
                worker.files += 1;
                let kind = look_at(worker, look, &folder, &opened, &name, kind, &mut extended)?;
                if kind == FileType::Directory {
                    folders.push(join(&folder, &name));
                }
            }
            // The last one is taken next: the first in order has to be the last.
            folders[below..].reverse();
        }
        Ok(true)
    })
}

/// Looks at each file once by its full path, shuffled by the plan's seed; each thread takes the next one.
///
/// # Errors
/// The first file that cannot be looked at.
pub fn stat(plan: Plan<'_>, files: &[Listed]) -> Result<Outcome, Error> {
    let mut order: Vec<&Listed> = files.iter().collect();
    order.shuffle(&mut SmallRng::seed_from_u64(plan.seed));
    for_each(
        plan,
        &order,
        || (),
        |worker, file, ()| {
            let seen = worker.time(|| std::fs::symlink_metadata(&file.path));
            seen.map_err(|source| Error::Stat { path: file.path.clone(), source })?;
            Ok(true)
        },
    )
}

fn join(folder: &Path, name: &CString) -> PathBuf {
    folder.join(std::ffi::OsStr::from_bytes(name.as_bytes()))
}

/// The entries of a folder with their kinds, and the open folder.
fn entries(folder: &Path) -> Result<(OwnedFd, Vec<(CString, FileType)>), Error> {
    let refused = |errno: Errno| Error::ReadFolder { path: folder.to_owned(), source: errno.into() };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, folder, flags, Mode::empty()).map_err(refused)?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&opened).map_err(refused)? {
        let entry = entry.map_err(refused)?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push((name.to_owned(), entry.file_type()));
        }
    }
    Ok((opened, names))
}

/// Looks at an entry as the look wants it, and says what it is.
fn look_at(
    worker: &mut Worker<'_>,
    look: Look,
    folder: &Path,
    opened: &OwnedFd,
    name: &CString,
    kind: FileType,
    extended: &mut Extended,
) -> Result<FileType, Error> {
    let stat = || {
        let seen = statat(opened, name, AtFlags::SYMLINK_NOFOLLOW);
        seen.map(|seen| FileType::from_raw_mode(seen.st_mode))
    };
    let seen = match look {
        // File systems that do not tell the kind leave finding out to the reader.
        Look::Names if kind == FileType::Unknown => worker.time(stat),
        Look::Names => return Ok(kind),
        Look::Sizes => worker.time(stat),
        Look::Long => {
            let path = join(folder, name);
            worker.time(|| {
                let kind = rustix::fs::lstat(&path).map(|seen| FileType::from_raw_mode(seen.st_mode))?;
                extended.ask(&path, kind);
                Ok(kind)
            })
        }
    };
    seen.map_err(|errno| Error::Stat { path: join(folder, name), source: errno.into() })
}

/// What `ls -l` asks beyond stat, until the file system says that it knows no such thing.
#[derive(Debug, Default)]
struct Extended {
    has_no_labels: bool,
    has_no_lists: bool,
}

impl Extended {
    fn ask(&mut self, path: &Path, kind: FileType) {
        let is_unknown = |asked: rustix::io::Result<usize>| asked == Err(Errno::OPNOTSUPP);
        if !self.has_no_labels {
            self.has_no_labels =
                is_unknown(rustix::fs::lgetxattr(path, c"security.selinux", &mut [0_u8; 255][..]));
        }
        if !self.has_no_lists && kind != FileType::Symlink {
            self.has_no_lists =
                is_unknown(rustix::fs::getxattr(path, c"system.posix_acl_access", &mut [0_u8; 0][..]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Monotonic;
    use crate::tree::{MAX_FILES, Tree};
    use std::time::Duration;

    fn plan(threads: usize) -> Plan<'static> {
        Plan { clock: &Monotonic, threads, runtime: Duration::from_secs(600), seed: 1 }
    }

    #[test]
    fn each_walk_sees_every_entry_once() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["a", "a/b", "c"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
            for file in 0..10 {
                std::fs::write(dir.path().join(folder).join(format!("f{file}")), "x").unwrap();
            }
        }
        std::os::unix::fs::symlink("nowhere", dir.path().join("broken")).unwrap();
        // 3 folders, 30 files, 1 link; 4 listings.
        for (look, operations) in [(Look::Names, 4), (Look::Sizes, 4 + 34), (Look::Long, 4 + 34)] {
            let outcome = walk(plan(3), dir.path(), look).unwrap();
            assert_eq!((outcome.files, outcome.operations), (34, operations), "{look:?}");
            assert!(outcome.is_complete);
        }
        let tree = Tree::list(dir.path(), MAX_FILES).unwrap();
        let outcome = stat(plan(3), &tree.files).unwrap();
        assert_eq!((outcome.files, outcome.operations, outcome.is_complete), (30, 30, true));
        std::fs::remove_file(dir.path().join("c/f3")).unwrap();
        let error = stat(plan(1), &tree.files).unwrap_err().to_string();
        assert!(error.contains("c/f3"), "{error}");
    }

    #[test]
    fn a_folder_that_is_missing_is_named() {
        let error = walk(plan(1), Path::new("/no/such/folder"), Look::Names).unwrap_err().to_string();
        assert!(error.contains("/no/such/folder"), "{error}");
    }
}
