//! How does a test lay an overlayfs over a folder, and surely take it away?

use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_tests::mounted::detach;
use millrace_tests::skip::skipped;

/// Lays an overlayfs with layers below `layers` over a folder; false, and said, where none can be had.
pub fn overlay(layers: &Path, lower: &Path, over: &Path) -> bool {
    let layer = |name: &str| {
        std::fs::create_dir(layers.join(name)).unwrap();
        layers.join(name).to_str().unwrap().to_owned()
    };
    let lower = lower.to_str().unwrap();
    let options = format!("lowerdir={lower},upperdir={},workdir={}", layer("upper"), layer("work"));
    let mut command = Command::new("mount");
    let is_mounted =
        command.args(["-t", "overlay", "-o", &options, "none"]).arg(over).status().unwrap().success();
    if !is_mounted {
        skipped("overlay", "overlayfs cannot be mounted here");
    }
    is_mounted
}

/// A file system on a folder of the test.
pub struct OnFolder(pub PathBuf);

impl Drop for OnFolder {
    fn drop(&mut self) {
        detach(&self.0);
    }
}
