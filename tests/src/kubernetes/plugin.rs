//! What does `kubectl millrace` say?

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;

use super::cluster::Cluster;
use super::namespace::Namespace;
use super::objects::{Kind, POD};
use crate::program::path_of;

/// The plug-in in a folder of the PATH, as users install it.
pub struct Plugin<'a> {
    cluster: &'a Cluster,
    dir: tempfile::TempDir,
}

impl<'a> Plugin<'a> {
    /// Installs it in a folder of its own.
    pub fn new(cluster: &'a Cluster) -> Self {
        let dir = tempfile::tempdir().unwrap();
        symlink(path_of("millrace"), dir.path().join("kubectl-millrace")).unwrap();
        Self { cluster, dir }
    }

    /// Its folder, for what goes with it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs it by way of kubectl.
    pub fn run(&self, args: &[&str]) -> Output {
        let path = format!("{}:{}", self.dir.path().display(), std::env::var("PATH").unwrap_or_default());
        self.cluster.kubectl().arg("millrace").args(args).env("PATH", path).output().unwrap()
    }

    /// What it prints where all is well.
    pub fn text(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What `why` says of a pod or a Dataset, and its exit code.
    pub fn why(&self, space: &Namespace<'_>, subject: &str) -> (Option<i32>, Value) {
        let output = self.run(&["why", subject, "-n", &space.name, "-o", "json"]);
        let said = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        (output.status.code(), said)
    }

    /// Waits until `why` names a link of a pod, or of the Dataset `dataset/...`, as the first that is broken, with a text in
    /// what it says; fails where it names no cure.
    pub fn wait_for_broken(&self, space: &Namespace<'_>, subject: &str, link: &str, says: &str) {
        let (kind, name): (Kind<'_>, _) = match subject.split_once('/') {
            Some((_, name)) => (super::objects::DATASET, name),
            None => (POD, subject),
        };
        let what = format!("why {subject} names the link {link} with {says:?}");
        let mut last = Value::Null;
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            space.wait(kind, name, &what, Duration::from_secs(60), |_| {
                let (code, said) = self.why(space, subject);
                last = said;
                let broken = &last["broken"];
                let is_named =
                    broken["link"] == link && broken["says"].as_str().unwrap_or_default().contains(says);
                (is_named && code == Some(1)).then_some(())
            });
        }));
        assert!(found.is_ok(), "{what}; last: {last:#}");
        assert!(last["broken"]["cure"].as_str().is_some_and(|cure| !cure.is_empty()), "no cure: {last:#}");
    }
}
