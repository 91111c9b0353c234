//! How are small files written so that a reader never meets half of one, and keys read from theirs?

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use millrace_api::keys::{Key, ParseKey};

/// Why a key cannot be had from its file.
#[derive(Debug, thiserror::Error)]
pub enum ReadKey {
    /// The file cannot be read.
    #[error("read key file {path:?}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file holds no key.
    #[error("key file {path:?}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ParseKey,
    },
}

/// Writes a file whole, or not at all; only its owner may read it. Not synced: what a power failure takes is void after it
/// anyway.
///
/// # Errors
/// Of the file system; then the former content stands.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    file.write_all(content)?;
    std::fs::rename(&partial, path)
}

/// Reads a key of 64 hexadecimal digits.
///
/// # Errors
/// [`ReadKey`] names the file, and never shows what is in it.
pub fn read_key(path: &Path) -> Result<Key, ReadKey> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|source| ReadKey::Read { path: path.to_owned(), source })?;
    Key::from_hex(&text).map_err(|source| ReadKey::Parse { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_is_replaced_whole_and_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("addresses.json");
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"2").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"2");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
        assert!(write_atomically(&dir.path().join("no/such"), b"x").is_err());
    }

    #[test]
    fn a_key_is_read_and_its_file_is_named_when_it_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.key");
        let key = Key::new([7; 32]);
        std::fs::write(&path, format!("{}\n", key.to_hex())).unwrap();
        assert_eq!(read_key(&path).unwrap(), key);
        std::fs::write(&path, "secret").unwrap();
        let error = read_key(&path).unwrap_err();
        assert!(error.to_string().contains("data.key") && !format!("{error:?}").contains("secret"));
        assert!(matches!(read_key(&dir.path().join("none")), Err(ReadKey::Read { .. })));
    }
}
