//! How do the workers hear which pods of this node have the mount?
//!
//! Whoever started the mount process keeps a file with the pods; it is looked at again and again, as the membership's is.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_api::ids::VersionId;
use millrace_api::mount::{Announce, Pod};
use millrace_transport::client::Client;
use tokio_util::sync::CancellationToken;

use crate::files::stamp;

/// How often the file is looked at: one stat a second costs nothing.
const INTERVAL: Duration = Duration::from_secs(1);

/// Longest file: more pods than a node runs, at the longest names. What follows is not read, and then nothing is.
const MAX_BYTES: u64 = 1 << 20;

/// Tells the workers of the mount, and again whenever the pods in the file are others, until the token is cancelled.
pub async fn follow(
    client: Client,
    node: String,
    version: VersionId,
    pods_file: Option<PathBuf>,
    token: CancellationToken,
) {
    let mut pods = Vec::new();
    let mut seen = None;
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        if let Some(path) = &pods_file {
            let now = stamp(path);
            if now != seen {
                seen = now;
                match read_pods(path) {
                    Ok(new) => pods = new,
                    // Half written, most likely; it will change once more.
                    Err(error) => {
                        tracing::warn!(path = %path.display(), error = %error, "pods file not read")
                    }
                }
            }
        }
        // Told again only where it is news.
        client.announce(Announce::new(node.clone(), version, pods.clone()));
        tokio::select! {
            _ = ticks.tick() => {}
            () = token.cancelled() => return,
        }
    }
}

fn read_pods(path: &Path) -> std::io::Result<Vec<Pod>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_file_reads_and_one_of_another_form_does_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), r#"[{"namespace": "vision", "name": "train-0", "uid": "6e9f"}]"#)
            .unwrap();
        let pod = Pod { namespace: "vision".into(), name: "train-0".into(), uid: "6e9f".into() };
        assert_eq!(read_pods(file.path()).unwrap(), [pod]);
        let before = stamp(file.path());
        std::fs::write(file.path(), "{}").unwrap();
        assert_ne!(stamp(file.path()), before);
        assert!(read_pods(file.path()).is_err());
    }
}
