//! Can a folder be mounted on, and if not, why?

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use super::deadline::within;
use super::error::MountError;
use super::mountinfo::{self, MountEntry};
use super::stale::{self, Health};

/// What is at a path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PointState {
    /// An empty folder.
    Ready,
    /// Nothing.
    Missing,
    /// Not a folder.
    NotDirectory,
    /// A folder with something in it.
    NotEmpty,
    /// A mount that answers, or not a FUSE mount.
    Busy(MountEntry),
    /// A FUSE mount whose process is gone.
    Dead(MountEntry),
    /// A FUSE mount whose process did not answer in time.
    Wedged(MountEntry),
}

/// Looks at a path, for about twice `deadline` at most.
///
/// # Errors
/// [`MountError::Inspect`] when it cannot be looked at, [`MountError::Deadline`] when the way to it hangs.
pub fn inspect(point: &Path, deadline: Duration) -> Result<PointState, MountError> {
    let failed = |source| MountError::Inspect { point: point.to_owned(), source };
    let path = match resolve(point, deadline)? {
        Some(path) => path,
        None => return Ok(PointState::Missing),
    };
    if let Some(entry) = mountinfo::find(&path).map_err(failed)? {
        if !entry.is_fuse() {
            return Ok(PointState::Busy(entry));
        }
        return Ok(match stale::health(&path, deadline).map_err(failed)? {
            Health::Answers => PointState::Busy(entry),
            Health::Dead => PointState::Dead(entry),
            Health::Silent => PointState::Wedged(entry),
        });
    }
    let folder = path.clone();
    within(deadline, move || folder_state(&folder), drop)
        .map_err(|reason| MountError::no_answer(reason, "list mount point", point, deadline))?
        .map_err(failed)
}

/// Looks at a path and gives it without symbolic links if it can be mounted on.
///
/// # Errors
/// [`MountError`], one variant for each state but [`PointState::Ready`].
pub fn require_ready(point: &Path, deadline: Duration) -> Result<PathBuf, MountError> {
    let point = point.to_owned();
    match inspect(&point, deadline)? {
        PointState::Ready => resolve(&point, deadline)?.ok_or(MountError::Missing { point }),
        PointState::Missing => Err(MountError::Missing { point }),
        PointState::NotDirectory => Err(MountError::NotDirectory { point }),
        PointState::NotEmpty => Err(MountError::NotEmpty { point }),
        PointState::Busy(MountEntry { file_system, source: source_name, .. }) => {
            Err(MountError::Busy { point, file_system, source_name })
        }
        PointState::Dead(_) => Err(MountError::Dead { point }),
        PointState::Wedged(_) => Err(MountError::Wedged { point, after: deadline }),
    }
}

/// Gives the path without symbolic links, `None` when there is nothing. Does not look into a mount at its end.
///
/// # Errors
/// [`MountError::Inspect`], or [`MountError::Deadline`] when the way to it hangs.
pub fn resolve(point: &Path, deadline: Duration) -> Result<Option<PathBuf>, MountError> {
    let path = point.to_owned();
    within(deadline, move || resolve_now(&path), drop)
        .map_err(|reason| MountError::no_answer(reason, "resolve mount point", point, deadline))?
        .map_err(|source| MountError::Inspect { point: point.to_owned(), source })
}

fn resolve_now(point: &Path) -> io::Result<Option<PathBuf>> {
    let absolute = std::path::absolute(point)?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return absent_is_none(absolute.canonicalize());
    };
    let Some(parent) = absent_is_none(parent.canonicalize())? else {
        return Ok(None);
    };
    let path = parent.join(name);
    // A mount is not a symbolic link; asking it would hang if it is wedged.
    if mountinfo::find(&path)?.is_some() {
        return Ok(Some(path));
    }
    absent_is_none(path.canonicalize())
}

fn absent_is_none(path: io::Result<PathBuf>) -> io::Result<Option<PathBuf>> {
    match path {
        Ok(path) => Ok(Some(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn folder_state(folder: &Path) -> io::Result<PointState> {
    match std::fs::read_dir(folder) {
        Ok(mut names) => Ok(match names.next() {
            None => PointState::Ready,
            Some(_) => PointState::NotEmpty,
        }),
        Err(error) if error.raw_os_error() == Some(Errno::NOTDIR.raw_os_error()) => {
            Ok(PointState::NotDirectory)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(PointState::Missing),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);

    #[test]
    fn each_kind_of_unfit_folder_is_told_apart() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (empty, full, file) = (folder.path().join("e"), folder.path().join("f"), folder.path().join("x"));
        std::fs::create_dir(&empty).expect("mkdir");
        std::fs::create_dir_all(full.join("inner")).expect("mkdir");
        std::fs::write(&file, "x").expect("write");
        assert_eq!(require_ready(&empty, DEADLINE).expect("ready"), empty.canonicalize().expect("path"));
        let error = |path: &Path| require_ready(path, DEADLINE).expect_err("not ready");
        assert!(matches!(error(&full), MountError::NotEmpty { .. }));
        assert!(matches!(error(&file), MountError::NotDirectory { .. }));
        assert!(matches!(error(&folder.path().join("no")), MountError::Missing { .. }));
        assert!(matches!(error(&folder.path().join("no/deeper")), MountError::Missing { .. }));
        let busy = error(Path::new("/proc"));
        assert!(matches!(&busy, MountError::Busy { file_system, .. } if file_system == "proc"), "{busy}");
        assert!(busy.to_string().contains("proc"));
        assert!(matches!(error(Path::new("/")), MountError::Busy { .. }));
    }

    #[test]
    fn link_to_a_folder_is_followed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        std::fs::create_dir(&real).expect("mkdir");
        std::os::unix::fs::symlink(&real, &link).expect("symlink");
        assert_eq!(require_ready(&link, DEADLINE).expect("ready"), real.canonicalize().expect("path"));
    }
}
