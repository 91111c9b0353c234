//! Where are the parts of a system that has come up?

use anyhow::Context;
use indicatif::{BinaryBytes, HumanCount};

use super::start::System;
use super::version_file::VersionRecord;

/// Tells where things are; the last line begins with `ready:`.
///
/// # Errors
/// Where the version cannot be read.
pub fn text(system: &System) -> anyhow::Result<String> {
    let version = VersionRecord::read(&system.folder)?.context("no version")?;
    let run = system.run();
    let mut text = format!(
        "dataset: {}\nversion: {} ({} objects, {})\n",
        system.folder.name,
        version.id,
        HumanCount(version.objects),
        BinaryBytes(version.bytes)
    );
    if version.left_out > 0 {
        text.push_str(&format!(
            "left out: {} keys that cannot be shown as files; `millrace local why` lists them\n",
            HumanCount(version.left_out)
        ));
    }
    for worker in &run.workers {
        let admin = worker.addresses.as_ref().map_or("?", |addresses| addresses.admin.as_str());
        text.push_str(&format!("worker: {} http://{admin}/metrics\n", worker.name));
    }
    if let Some(admin) = &run.mount_admin {
        text.push_str(&format!("mount process: http://{admin}/metrics\n"));
    }
    text.push_str(&format!("state: {}\n", system.folder.path().display()));
    text.push_str(&format!("ready: mounted at {}\n", run.mount_point.display()));
    Ok(text)
}
