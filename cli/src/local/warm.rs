//! How are paths loaded ahead on request?

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use millrace_api::dataset::spec::WarmUpWhen;
use millrace_api::keys::Key;
use millrace_control::proto;
use millrace_control::warm_up::{self, Phase};

use super::folder::{Folder, Root};
use super::follow::Follow;
use super::progress::{Progress, warm_up_text};
use super::run_file::Run;
use super::supervise::end_text;
use super::{applied, ask, identity, lock, select};
use crate::args::WarmArgs;
use crate::exit::Told;

/// Loads paths and waits until they are; Ctrl-C stops the waiting, not the loading.
///
/// # Errors
/// Where paths are not in the dataset, objects failed, or the caches are full.
pub async fn warm(root: &Root, args: &WarmArgs) -> anyhow::Result<()> {
    let folder = folder_of(root, args.dataset.as_ref(), &args.paths)?;
    let run = select::running(&folder)?;
    let version = run.version.clone().context("the dataset is not listed yet: try again when it is ready")?;
    let key = identity::control_key(&folder)?;
    let paths: Vec<String> =
        args.paths.iter().map(|path| in_mount(path, &run.mount_point)).collect::<anyhow::Result<_>>()?;
    let unknown = ask_all(&run, &key, &version, &paths).await?;
    if !unknown.is_empty() {
        bail!(
            "not in the dataset: {}; `millrace local why PATH` tells whether a key was left out",
            unknown.join(", ")
        );
    }
    let mut follow = Follow::new(&folder, &key, run.workers.len());
    let mut progress = Progress::new("warm-up");
    let end = loop {
        let states = follow.now();
        let now = warm_up::merge(states.iter().map(Option::as_ref), &version);
        if now.phase != Phase::Running && now.phase != Phase::Idle {
            break now;
        }
        if states.iter().any(Option::is_some) {
            progress.warm_up(&now);
        }
        if states.iter().all(Option::is_none) {
            select::running(&folder)?;
        }
        follow.changed().await;
    };
    let spec = applied::spec(&folder)?;
    if spec.warm_up.when == WarmUpWhen::Created {
        // What is cached by now is passed over.
        ask_all(&run, &key, &version, &spec.warm_up.paths).await?;
    }
    progress.finish(&format!("warm-up {}: {}", end_text(end.phase), warm_up_text(&end, 0)));
    for failure in &end.failures {
        eprintln!("failed: {}: {} ({})", failure.path, failure.message, failure.reason);
    }
    if end.failed > 0 || end.phase != Phase::Done { Err(Told.into()) } else { Ok(()) }
}

/// Asks all workers to load paths, and gives those that the version does not have.
///
/// # Errors
/// Where a worker does not answer.
pub async fn ask_all(run: &Run, key: &Key, version: &str, paths: &[String]) -> anyhow::Result<Vec<String>> {
    let mut unknown = Vec::new();
    for worker in &run.workers {
        let request = proto::WarmRequest {
            action: proto::warm_request::Action::Start.into(),
            version: version.to_owned(),
            paths: paths.to_vec(),
        };
        let tell = async {
            let mut client = ask::worker(worker, key)?;
            Ok(client.warm(request).await.map_err(|status| ask::refusal(&status))?.into_inner())
        };
        unknown.extend(ask::in_time(&worker.name, tell).await?.unknown_paths);
    }
    unknown.sort();
    unknown.dedup();
    Ok(unknown)
}

/// The Dataset that is named, else the one below whose mount point the paths are, else the only one.
///
/// # Errors
/// Where that is none, or not one.
pub fn folder_of(
    root: &Root,
    name: Option<&super::folder::DatasetName>,
    paths: &[PathBuf],
) -> anyhow::Result<Folder> {
    if let (None, Some(first)) = (name, paths.first()) {
        for folder in root.folders()? {
            let is_up = lock::holder(&folder.lock_file()).is_some();
            if is_up && Run::read(&folder)?.is_some_and(|run| below(first, &run.mount_point).is_some()) {
                return Ok(folder);
            }
        }
    }
    select::one(root, name)
}

/// A path as the dataset has it: below the mount point without that, else as it is.
///
/// # Errors
/// Where it is not UTF-8.
pub fn in_mount(path: &Path, mount_point: &Path) -> anyhow::Result<String> {
    let inside = below(path, mount_point);
    let text = inside
        .as_deref()
        .unwrap_or(path)
        .to_str()
        .with_context(|| format!("path {path:?} is not UTF-8: warm the folder that it is in"))?;
    Ok(format!("/{}", text.trim_matches('/')))
}

/// The part of a path that is below the mount point, also where symbolic links lead there.
pub fn below(path: &Path, mount_point: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if let Ok(inside) = absolute.strip_prefix(mount_point) {
        return Some(inside.to_owned());
    }
    real(&absolute).strip_prefix(real(mount_point)).ok().map(Path::to_owned)
}

/// A path without symbolic links, as far as it is there: keys that are not shown have paths too.
fn real(path: &Path) -> PathBuf {
    let resolved = |there: &Path| Some(there.canonicalize().ok()?.join(path.strip_prefix(there).ok()?));
    path.ancestors().find_map(resolved).unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_be_given_below_the_mount_point_or_inside() {
        let mount = Path::new("/mnt/x");
        for (given, inside) in [
            ("/mnt/x/train/a", "/train/a"),
            ("/mnt/x", "/"),
            ("/mnt/x/", "/"),
            ("/train/", "/train"),
            ("train/a", "/train/a"),
            ("/mnt/xy", "/mnt/xy"),
        ] {
            assert_eq!(in_mount(Path::new(given), mount).unwrap(), inside, "{given}");
        }
    }

    #[test]
    fn a_path_may_lead_to_the_mount_point_through_a_symbolic_link() {
        let dir = tempfile::tempdir().unwrap();
        let (mount, link) = (dir.path().join("mnt"), dir.path().join("link"));
        std::fs::create_dir_all(mount.join("train")).unwrap();
        std::os::unix::fs::symlink(&mount, &link).unwrap();
        for given in ["train", "train/not-shown"] {
            assert_eq!(in_mount(&link.join(given), &mount).unwrap(), format!("/{given}"));
            assert_eq!(in_mount(&mount.join(given), &link).unwrap(), format!("/{given}"));
        }
        let beside = dir.path().join("beside");
        assert_eq!(in_mount(&beside, &mount).unwrap(), beside.to_str().unwrap());
    }
}
