//! What was applied last?

use anyhow::{Context, bail};
use millrace_api::dataset::manifest::Manifest;
use millrace_api::dataset::spec::{Dataset, DatasetSpec};

use super::folder::{self, Folder};

/// Reads what the user wants of a Dataset.
///
/// # Errors
/// Where it was never up, or the file cannot be read.
pub fn spec(folder: &Folder) -> anyhow::Result<DatasetSpec> {
    let path = folder.dataset_file();
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("read {path:?}: `millrace local up` writes it"))?;
    Ok(Manifest::parse(&text).with_context(|| format!("read {path:?}"))?.dataset.spec)
}

/// Keeps a Dataset, without its status; Secrets are not part of it.
///
/// # Errors
/// Names the file.
pub fn write(folder: &Folder, dataset: &Dataset) -> anyhow::Result<()> {
    let mut applied = dataset.clone();
    applied.status = None;
    folder::write_private(&folder.dataset_file(), serde_yaml::to_string(&applied)?.as_bytes())
}

/// What is fixed for the life of a Dataset may not differ from what was applied last.
///
/// # Errors
/// All that differs.
pub fn refuse_changes(folder: &Folder, new: &Dataset) -> anyhow::Result<()> {
    let Some(old) = folder::read_if_there(&folder.dataset_file())? else { return Ok(()) };
    // One that cannot be read any more was written by another version of this program.
    let Ok(Manifest { dataset: old, .. }) = Manifest::parse(&String::from_utf8_lossy(&old)) else {
        return Ok(());
    };
    let problems = new.check_update(&old);
    if problems.is_empty() {
        return Ok(());
    }
    let lines: String = problems.iter().map(|problem| format!("\n  {problem}")).collect();
    bail!(
        "Dataset {} was up before with other values that are fixed for its life; forget it with `millrace local rm {}`, \
         or give this one another name:{lines}",
        folder.name,
        folder.name
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::folder::Root;

    const FILE: &str = "apiVersion: millrace.dev/v1alpha1
kind: Dataset
metadata: {name: x}
spec:
  sources:
  - {path: /, s3: {bucket: abc, region: r}}
";

    #[test]
    fn what_is_fixed_may_not_change_and_the_cure_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Root::find(Some(dir.path())).unwrap().folder(&"default/x".parse().unwrap());
        folder.make().unwrap();
        let manifest = Manifest::parse(FILE).unwrap();
        refuse_changes(&folder, &manifest.dataset).unwrap();
        write(&folder, &manifest.dataset).unwrap();
        refuse_changes(&folder, &manifest.dataset).unwrap();
        assert_eq!(spec(&folder).unwrap(), manifest.dataset.spec);
        let other = FILE.replace("spec:\n", "spec:\n  workers: {cache: {blockSize: 4Mi}}\n");
        let refused =
            refuse_changes(&folder, &Manifest::parse(&other).unwrap().dataset).unwrap_err().to_string();
        assert!(
            refused.contains("blockSize") && refused.contains("millrace local rm default/x"),
            "{refused}"
        );
    }
}
