//! What has to be so before anything is started?

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use millrace_api::dataset::check::Problem;
use millrace_api::dataset::credentials;
use millrace_api::dataset::manifest::Manifest;
use millrace_api::dataset::spec::Dataset;
use millrace_csi_driver::mount::attach::clean_dead;
use millrace_csi_driver::mount::point::require_ready;

use super::applied;
use super::clean::clean;
use super::folder::{self, DatasetName, Folder, Root};
use super::identity::Identity;
use super::lock::{self, Lock};
use super::plan::{self, Plan};
use super::programs::Programs;
use super::start::System;
use crate::args::UpArgs;

/// Deadline of each look at the mount point.
const LOOK_DEADLINE: Duration = Duration::from_secs(5);

/// Checks all that can be checked, takes the lock, cleans up after a crashed predecessor and writes keys and credentials.
/// Blocks.
///
/// # Errors
/// All problems of the file, or what else is in the way.
pub fn prepare(root: &Root, args: &UpArgs, log_filter: &str) -> anyhow::Result<(System, Lock)> {
    let manifest = crate::manifest::read(&args.file)?;
    refuse(&manifest.secret_problems(), "Dataset", &args.file)?;
    let spec = &manifest.dataset.spec;
    for field in spec.cluster_fields() {
        eprintln!("note: {field} is used in a cluster only");
    }
    for other in &manifest.others {
        eprintln!("note: {other} is used in a cluster only");
    }
    let workers = plan::worker_count(spec, args.workers)?;
    let programs = Programs::find()?;
    let name = name_of(&manifest.dataset)?;
    let folder = root.folder(&name);
    folder.make()?;
    let lock = lock::take(&folder.lock_file()).with_context(|| format!("start dataset {name}"))?;
    for found in clean(&folder)? {
        eprintln!("left by a crash, ended: {found}");
    }
    applied::refuse_changes(&folder, &manifest.dataset)?;
    let mount_point = mount_point(&folder, args.mount.as_deref())?;
    let identity = Identity::ensure(&folder)?;
    applied::write(&folder, &manifest.dataset)?;
    write_credentials(&folder, &manifest)?;
    let plan = Plan {
        workers: plan::worker_names(&name.name, workers),
        name,
        uid: identity.uid.clone(),
        spec: spec.clone(),
        mount_point,
        log_filter: log_filter.to_owned(),
    };
    Ok((System::new(folder, plan, programs, identity)?, lock))
}

fn name_of(dataset: &Dataset) -> anyhow::Result<DatasetName> {
    let metadata = &dataset.metadata;
    let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
    let name = format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default());
    name.parse().map_err(|error: String| anyhow::anyhow!("metadata: {error}"))
}

fn refuse(problems: &[Problem], kind: &str, file: &Path) -> anyhow::Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    let lines: String = problems.iter().map(|problem| format!("\n  {problem}")).collect();
    bail!("{file:?}: {kind} cannot be used:{lines}");
}

/// Our own folder is made; one that the user names has to be there, so that a misspelt path is not filled.
fn mount_point(folder: &Folder, given: Option<&Path>) -> anyhow::Result<std::path::PathBuf> {
    let point = match given {
        Some(point) => std::path::absolute(point).with_context(|| format!("--mount {point:?}"))?,
        None => {
            let point = folder.default_mount_point();
            folder::make_dir(&point)?;
            point
        }
    };
    clean_dead(&point, LOOK_DEADLINE).context("--mount")?;
    require_ready(&point, LOOK_DEADLINE).context("--mount")
}

/// One folder for each Secret that the Dataset names, one file for each of its keys that is read.
fn write_credentials(folder: &Folder, manifest: &Manifest) -> anyhow::Result<()> {
    let dir = folder.credentials_dir();
    folder::make_dir(&dir)?;
    for source in &manifest.dataset.spec.sources {
        let Some(secret) = &source.s3.credentials.secret_ref else { continue };
        let Some(secret) = manifest.secret(&secret.name) else { continue };
        let dir = dir.join(&secret.name);
        folder::make_dir(&dir)?;
        for (key, value) in secret.data.iter().filter(|(key, _)| credentials::ALL.contains(&key.as_str())) {
            folder::write_private(&dir.join(key), value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "apiVersion: millrace.dev/v1alpha1
kind: Dataset
metadata: {name: x}
spec:
  sources:
  - {path: /, s3: {bucket: abc, region: r, credentials: {secretRef: {name: keys}}}}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {AWS_ACCESS_KEY_ID: me, AWS_SECRET_ACCESS_KEY: hush, note: mine}
";

    fn folder(dir: &Path) -> Folder {
        let folder = Root::find(Some(dir)).unwrap().folder(&"default/x".parse().unwrap());
        folder.make().unwrap();
        folder
    }

    #[test]
    fn credentials_are_files_of_their_own_and_never_in_the_datasets() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(dir.path());
        let manifest = Manifest::parse(FILE).unwrap();
        write_credentials(&folder, &manifest).unwrap();
        applied::write(&folder, &manifest.dataset).unwrap();
        let secret = folder.credentials_dir().join("keys");
        assert_eq!(std::fs::read(secret.join("AWS_SECRET_ACCESS_KEY")).unwrap(), b"hush");
        assert!(!secret.join("note").exists());
        assert_eq!(std::fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(!std::fs::read_to_string(folder.dataset_file()).unwrap().contains("hush"));
    }

    #[test]
    fn a_mount_point_that_is_missing_or_full_is_refused_before_anything_starts() {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(dir.path());
        let missing = dir.path().join("missing");
        let error = format!("{:#}", mount_point(&folder, Some(&missing)).unwrap_err());
        assert!(error.contains("does not exist"), "{error}");
        let error = format!("{:#}", mount_point(&folder, Some(dir.path())).unwrap_err());
        assert!(error.contains("not empty"), "{error}");
        assert!(mount_point(&folder, None).unwrap().ends_with("default/x/mount"));
    }
}
