//! How do a data file and its sidecar come, open and go together?

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use millrace_api::ids::ContentId;

use crate::open_file::OpenFile;
use crate::sidecar::{HEADER_BYTES, Layout};

/// What became of an attempt to open a pair of files.
#[derive(Debug)]
pub(crate) enum Opened {
    /// Both are there and fit.
    File(OpenFile),
    /// There is no sidecar.
    Absent,
    /// They were removed meanwhile.
    Removed,
    /// They do not fit each other, or are cut, or of another version.
    Damaged(&'static str),
}

/// One file of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The chunks.
    Data,
    /// What says which of them are there.
    Sidecar,
}

impl Part {
    /// How the names of such files end.
    pub fn extension(self) -> &'static str {
        match self {
            Part::Data => "data",
            Part::Sidecar => "map",
        }
    }
}

/// Opens a data file and its sidecar; only for reading where the file system is read-only.
pub(crate) fn open_pair([data_path, sidecar_path]: &[PathBuf; 2], content: ContentId) -> io::Result<Opened> {
    open_pair_by(content, |part| match part {
        Part::Data => open_either(data_path),
        Part::Sidecar => open_either(sidecar_path),
    })
}

/// The same, where `open` opens a file, if it is there, and says whether it can be written.
pub(crate) fn open_pair_by(
    content: ContentId,
    open: impl Fn(Part) -> io::Result<Option<(File, bool)>>,
) -> io::Result<Opened> {
    let Some((sidecar, is_writable)) = open(Part::Sidecar)? else { return Ok(Opened::Absent) };
    let mut header = [0; HEADER_BYTES];
    match sidecar.read_exact_at(&mut header, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(Opened::Damaged("sidecar cut short"));
        }
        Err(error) => return Err(error),
    }
    let (layout, marks) = match Layout::decode(&header) {
        Ok(decoded) => decoded,
        Err(error) => {
            tracing::debug!(content = %content, error = %error, "read sidecar");
            return Ok(Opened::Damaged("sidecar header not valid"));
        }
    };
    if layout.file.content != content {
        return Ok(Opened::Damaged("sidecar of another content"));
    }
    if sidecar.metadata()?.len() < layout.len() {
        return Ok(Opened::Damaged("sidecar cut short"));
    }
    let data = open(Part::Data)?;
    // A sidecar that is still there was there when its data file was opened, since it goes first.
    if sidecar.metadata()?.nlink() == 0 {
        return Ok(Opened::Removed);
    }
    let Some((data, data_is_writable)) = data else { return Ok(Opened::Damaged("data file vanished")) };
    let open = OpenFile::new(layout, data, sidecar, is_writable && data_is_writable, marks);
    Ok(if open.has_its_length() { Opened::File(open) } else { Opened::Damaged("data file cut short") })
}

fn open_either(path: &Path) -> io::Result<Option<(File, bool)>> {
    let mut options = OpenOptions::new();
    match options.read(true).write(true).open(path) {
        Ok(file) => return Ok(Some((file, true))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {}
        Err(error) => return Err(error),
    }
    match File::open(path) {
        Ok(file) => Ok(Some((file, false))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes both files; the sidecar gets its name last, when all is there. Only under the usage record's lock.
pub(crate) fn create_pair(paths: &[PathBuf; 2], layout: Layout) -> io::Result<OpenFile> {
    let [data_path, sidecar_path] = paths;
    let unnamed = sidecar_path.with_extension("new");
    let make = || -> io::Result<OpenFile> {
        let data = create_file(data_path)?;
        data.set_len(layout.file.len)?;
        let sidecar = create_file(&unnamed)?;
        sidecar.set_len(layout.len())?;
        sidecar.write_all_at(&layout.encode(), 0)?;
        fs::rename(&unnamed, sidecar_path)?;
        Ok(OpenFile::new(layout, data, sidecar, true, 0))
    };
    let made = make();
    if made.is_err() {
        // What cannot be removed now is removed by the next count.
        let _ = fs::remove_file(&unnamed);
        let _ = unlink_pair(paths);
    }
    made
}

fn create_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(path.parent().unwrap_or(path))?;
            options.open(path)
        }
        other => other,
    }
}

/// Removes both files, the sidecar first. Only under the usage record's lock.
pub(crate) fn unlink_pair([data_path, sidecar_path]: &[PathBuf; 2]) -> io::Result<()> {
    for path in [sidecar_path, data_path] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
