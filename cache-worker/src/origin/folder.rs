//! What do the files of a credentials folder say at this moment?

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use aws_credential_types::Credentials;
use millrace_api::dataset::credentials as keys;

use super::config::WebIdentity;

/// Longest file that is read, bytes: a bundle of all public authorities has 220 KB.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What a folder of credentials holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Held {
    /// An access key.
    Keys(Credentials),
    /// A role to assume.
    WebIdentity(WebIdentity),
}

/// Why a folder gives no credentials.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadFolder {
    /// A file could not be read.
    #[error("read credentials file {path:?}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// Text of the I/O error.
        reason: String,
    },
    /// There is nothing in it yet.
    #[error(
        "credentials folder {folder:?} is missing or empty; put AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in it (in a cluster: \
         create the Secret {name:?} with these keys)"
    )]
    Empty {
        /// The folder.
        folder: PathBuf,
        /// Its own name: that of the Secret.
        name: String,
    },
    /// A file that must be there is not, or is empty.
    #[error("credentials folder {folder:?} has no {name}; put the key in a file of that name")]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// Name of the file.
        name: &'static str,
    },
}

/// Tells two states of a folder apart without reading the files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Stamp(Vec<Option<(SystemTime, u64, u64)>>);

/// The state of the files now.
pub(super) fn stamp(folder: &Path) -> Stamp {
    let folder = settled(folder);
    Stamp(keys::ALL.iter().map(|name| stamp_of(&folder.join(name))).collect())
}

/// The state of one file now; `None` where there is none.
fn stamp_of(path: &Path) -> Option<(SystemTime, u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let meta = fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len(), meta.ino()))
}

/// Reads the credentials.
pub(super) fn read(folder: &Path) -> Result<Held, ReadFolder> {
    let files = settled(folder);
    let file = |name| read_file(&files.join(name));
    let missing = |name| ReadFolder::Missing { folder: folder.to_owned(), name };
    match (file(keys::ACCESS_KEY_ID)?, file(keys::ROLE_ARN)?) {
        (Some(id), _) => {
            let secret = file(keys::SECRET_ACCESS_KEY)?.ok_or_else(|| missing(keys::SECRET_ACCESS_KEY))?;
            let token = file(keys::SESSION_TOKEN)?;
            Ok(Held::Keys(Credentials::new(id, secret, token, None, "folder")))
        }
        (None, Some(role_arn)) => {
            let token = file(keys::WEB_IDENTITY_TOKEN_FILE)?;
            Ok(Held::WebIdentity(WebIdentity {
                role_arn,
                token_file: token.ok_or_else(|| missing(keys::WEB_IDENTITY_TOKEN_FILE))?.into(),
                session_name: file(keys::ROLE_SESSION_NAME)?,
                sts_endpoint: file(keys::STS_ENDPOINT)?,
            }))
        }
        (None, None) if keys::ALL.iter().all(|name| !files.join(name).exists()) => {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Err(ReadFolder::Empty { folder: folder.to_owned(), name })
        }
        (None, None) => Err(missing(keys::ACCESS_KEY_ID)),
    }
}

/// Reads the certificates of the folder's own authorities, if it has any.
pub(super) fn read_ca(folder: &Path) -> Result<Option<String>, ReadFolder> {
    read_file(&settled(folder).join(keys::CA))
}

/// A mounted Secret is exchanged as a whole by a symbolic link, `..data`; following it once keeps us from reading the id of
/// one key and the secret of the next.
fn settled(folder: &Path) -> PathBuf {
    fs::canonicalize(folder.join("..data")).unwrap_or_else(|_| folder.to_owned())
}

/// The trimmed text of a file; `None` where it does not exist or is blank.
pub(super) fn read_file(path: &Path) -> Result<Option<String>, ReadFolder> {
    let failed = |reason: String| ReadFolder::File { path: path.to_owned(), reason };
    match fs::metadata(path) {
        Ok(meta) if meta.len() > MAX_FILE_BYTES => {
            return Err(failed(format!("{} bytes are too long", meta.len())));
        }
        Ok(_) => {}
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(failed(err.to_string())),
    }
    let text = fs::read_to_string(path).map_err(|err| failed(err.to_string()))?;
    let text = text.trim();
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_holds_a_key_or_a_web_identity_or_says_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let absent = dir.path().join("imagenet-s3");
        let error = read(&absent).unwrap_err().to_string();
        assert!(error.contains("Secret \"imagenet-s3\"") && error.contains("AWS_ACCESS_KEY_ID"), "{error}");
        assert!(matches!(read(dir.path()), Err(ReadFolder::Empty { .. })));
        put(keys::SECRET_ACCESS_KEY, "s");
        assert!(read(dir.path()).unwrap_err().to_string().contains("has no AWS_ACCESS_KEY_ID"));
        fs::remove_file(dir.path().join(keys::SECRET_ACCESS_KEY)).unwrap();
        put(keys::ROLE_ARN, "arn:aws:iam::1:role/r\n");
        assert!(read(dir.path()).unwrap_err().to_string().contains("AWS_WEB_IDENTITY_TOKEN_FILE"));
        put(keys::WEB_IDENTITY_TOKEN_FILE, "/var/token");
        let Held::WebIdentity(identity) = read(dir.path()).unwrap() else { panic!("keys") };
        assert_eq!((identity.role_arn.as_str(), identity.sts_endpoint), ("arn:aws:iam::1:role/r", None));
        put(keys::ACCESS_KEY_ID, " AKIA1 \n");
        assert!(read(dir.path()).unwrap_err().to_string().contains("AWS_SECRET_ACCESS_KEY"));
        put(keys::SECRET_ACCESS_KEY, "s");
        let Held::Keys(pair) = read(dir.path()).unwrap() else { panic!("role") };
        assert_eq!((pair.access_key_id(), pair.session_token()), ("AKIA1", None));
    }

    #[test]
    fn a_stamp_changes_with_any_file_and_a_mounted_secret_is_read_through_its_link() {
        let dir = tempfile::tempdir().unwrap();
        for (state, id) in [("one", "A"), ("two", "B")] {
            let folder = dir.path().join(state);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join(keys::ACCESS_KEY_ID), id).unwrap();
            fs::write(folder.join(keys::SECRET_ACCESS_KEY), id).unwrap();
        }
        std::os::unix::fs::symlink("one", dir.path().join("..data")).unwrap();
        let before = stamp(dir.path());
        assert_eq!(before, stamp(dir.path()));
        fs::remove_file(dir.path().join("..data")).unwrap();
        std::os::unix::fs::symlink("two", dir.path().join("..data")).unwrap();
        assert_ne!(before, stamp(dir.path()));
        let Held::Keys(pair) = read(dir.path()).unwrap() else { panic!("role") };
        assert_eq!(pair.access_key_id(), "B");
    }
}
