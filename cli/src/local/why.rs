//! What do the workers and this node know about one path?

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::Context;
use millrace_control::proto;

use super::folder::Root;
use super::{ask, identity, select, warm, why_text};
use crate::args::WhyArgs;
use crate::exit::{self, Told};

/// Tells all about a path; without one, which keys are not shown.
///
/// # Errors
/// Where no worker answers, or the dataset has no such path.
pub async fn why(root: &Root, args: &WhyArgs) -> anyhow::Result<()> {
    let paths: Vec<_> = args.path.iter().cloned().collect();
    let folder = warm::folder_of(root, args.dataset.as_ref(), &paths)?;
    let run = select::running(&folder)?;
    let version = run.version.clone().context("the dataset is not listed yet: try again when it is ready")?;
    let key = identity::control_key(&folder)?;
    let path = args.path.as_deref().map(|path| inside(path, &run.mount_point)).unwrap_or_default();
    let mut answers = Vec::new();
    for worker in &run.workers {
        let request = proto::WhyRequest { version: version.clone(), path: path.clone() };
        let answer = ask::in_time(&worker.name, async {
            let mut client = ask::worker(worker, &key)?;
            Ok(client.why(request).await.map_err(|status| ask::refusal(&status))?.into_inner())
        });
        answers.push((worker.name.clone(), answer.await));
    }
    if answers.iter().all(|(_, answer)| answer.is_err()) {
        if let Some((_, Err(error))) = answers.into_iter().next() {
            return Err(error);
        }
        return Ok(());
    }
    let node = args.path.as_ref().and_then(|_| node_share(&run.mount_point, &path));
    let (text, is_known) = why_text::explain(&path, &answers, node.as_deref());
    exit::print(&text)?;
    if is_known { Ok(()) } else { Err(Told.into()) }
}

/// The path's bytes as the dataset has them, `/` for the root; keys need not be UTF-8.
fn inside(path: &Path, mount_point: &Path) -> Vec<u8> {
    let below = warm::below(path, mount_point);
    let bytes = below.as_deref().unwrap_or(path).as_os_str().as_bytes();
    let start = bytes.iter().take_while(|byte| **byte == b'/').count();
    match bytes.get(start..).unwrap_or_default() {
        b"" => b"/".to_vec(),
        inside => inside.to_vec(),
    }
}

/// Share of a file that this node's store has, percent; as the mount tells it.
fn node_share(mount_point: &Path, path: &[u8]) -> Option<String> {
    let file = mount_point.join(std::ffi::OsStr::from_bytes(path));
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(&file, "user.millrace.cached", &mut value).ok()?;
    Some(String::from_utf8_lossy(value.get(..length)?).into_owned())
}
