//! Who is a Dataset, and with which keys do its processes prove it?

use std::path::Path;

use anyhow::Context;
use millrace_api::keys::{KEY_BYTES, Key};

use super::folder::{self, Folder};

/// UID and control key of a Dataset.
#[derive(Debug, Clone)]
pub struct Identity {
    /// As a Kubernetes object has it; a Dataset that was forgotten comes back as another.
    pub uid: String,
    /// Key of the control ports.
    pub control_key: Key,
}

impl Identity {
    /// Reads the identity of a Dataset, or makes one, and writes the keys for its processes.
    ///
    /// # Errors
    /// Names the file.
    pub fn ensure(folder: &Folder) -> anyhow::Result<Self> {
        let uid = text_or(&folder.uid_file(), || uuid::Uuid::new_v4().to_string())?;
        let master =
            text_or(&folder.master_key_file(), || Key::new(rand::random::<[u8; KEY_BYTES]>()).to_hex())?;
        let master = Key::from_hex(&master).with_context(|| {
            format!("read {:?}: forget the dataset with `millrace local rm`", folder.master_key_file())
        })?;
        let control_key = Key::control_key(&master, &uid);
        folder::write_private(&folder.data_key_file(), Key::data_key(&master, &uid).to_hex().as_bytes())?;
        folder::write_private(&folder.control_key_file(), control_key.to_hex().as_bytes())?;
        Ok(Self { uid, control_key })
    }
}

/// Reads the key of the control ports.
///
/// # Errors
/// Names the file.
pub fn control_key(folder: &Folder) -> anyhow::Result<Key> {
    let path = folder.control_key_file();
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path:?}"))?;
    Key::from_hex(&text).with_context(|| format!("read {path:?}"))
}

/// Reads the UID; empty where there is none.
pub fn uid(folder: &Folder) -> String {
    let text = std::fs::read_to_string(folder.uid_file()).unwrap_or_default();
    text.trim().to_owned()
}

fn text_or(path: &Path, make: impl FnOnce() -> String) -> anyhow::Result<String> {
    if let Some(content) = folder::read_if_there(path)? {
        let text = String::from_utf8_lossy(&content).trim().to_owned();
        if !text.is_empty() {
            return Ok(text);
        }
    }
    let text = make();
    folder::write_private(path, text.as_bytes())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::folder::Root;

    #[test]
    fn an_identity_stays_and_a_broken_key_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Root::find(Some(dir.path())).unwrap().folder(&"a/b".parse().unwrap());
        folder.make().unwrap();
        let first = Identity::ensure(&folder).unwrap();
        let second = Identity::ensure(&folder).unwrap();
        assert_eq!((&first.uid, &first.control_key), (&second.uid, &second.control_key));
        assert_eq!(control_key(&folder).unwrap(), first.control_key);
        assert_eq!(uid(&folder), first.uid);
        std::fs::write(folder.master_key_file(), "short").unwrap();
        assert!(Identity::ensure(&folder).unwrap_err().to_string().contains("millrace local rm"));
    }
}
