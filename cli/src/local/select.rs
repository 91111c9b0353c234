//! Which Dataset is meant?

use anyhow::bail;

use super::folder::{DatasetName, Folder, Root};
use super::lock;
use super::run_file::Run;
use crate::exit::NotRunning;

/// The Dataset of this name; without one the only one that is up, else the only one there is.
///
/// # Errors
/// Where there is none, or more than one.
pub fn one(root: &Root, name: Option<&DatasetName>) -> anyhow::Result<Folder> {
    if let Some(name) = name {
        let folder = root.folder(name);
        if folder.exists() {
            return Ok(folder);
        }
        bail!("dataset {name} was never up here: {}", known(&root.folders()?));
    }
    let folders = root.folders()?;
    let up: Vec<&Folder> =
        folders.iter().filter(|folder| lock::holder(&folder.lock_file()).is_some()).collect();
    match (up.as_slice(), folders.as_slice()) {
        ([only], _) => Ok((*only).clone()),
        ([], [only]) => Ok(only.clone()),
        (_, []) => bail!("no dataset was ever up here: start one with `millrace local up -f FILE`"),
        _ => bail!("several datasets are here, name one: {}", known(&folders)),
    }
}

fn known(folders: &[Folder]) -> String {
    let names: Vec<String> = folders.iter().map(|folder| folder.name.to_string()).collect();
    if names.is_empty() { "there is none".to_owned() } else { names.join(", ") }
}

/// The processes of a Dataset that is up.
///
/// # Errors
/// [`NotRunning`] where it is not.
pub fn running(folder: &Folder) -> anyhow::Result<Run> {
    let run = Run::read(folder)?.filter(|run| run.children().any(|(_, id)| id.is_alive()));
    run.ok_or_else(|| NotRunning { name: folder.name.to_string() }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(root: &Root, name: &str) -> Folder {
        let folder = root.folder(&name.parse().unwrap());
        folder.make().unwrap();
        std::fs::write(folder.uid_file(), "u").unwrap();
        folder
    }

    #[test]
    fn the_only_one_or_the_only_one_that_is_up_needs_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::find(Some(dir.path())).unwrap();
        assert!(one(&root, None).unwrap_err().to_string().contains("millrace local up"));
        make(&root, "default/a");
        assert_eq!(one(&root, None).unwrap().name.name, "a");
        let b = make(&root, "default/b");
        let several = one(&root, None).unwrap_err().to_string();
        assert!(several.contains("default/a, default/b"), "{several}");
        let _up = lock::take(&b.lock_file()).unwrap();
        assert_eq!(one(&root, None).unwrap().name.name, "b");
        let a = "a".parse().unwrap();
        assert_eq!(one(&root, Some(&a)).unwrap().name.name, "a");
        let unknown = one(&root, Some(&"c".parse().unwrap())).unwrap_err().to_string();
        assert!(unknown.contains("default/c") && unknown.contains("default/a"), "{unknown}");
        assert!(running(&b).unwrap_err().is::<NotRunning>());
    }
}
