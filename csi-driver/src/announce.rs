//! How do the workers hear which pods of this node have the mount?
//!
//! Whoever started the mount process keeps a file with the pods; it is looked at again and again, as the membership's is.

use std::io::Read;
use std::path::{Path, PathBuf};

use millrace_api::ids::VersionId;
use millrace_api::mount::{Announce, Pod};
use millrace_transport::client::Client;
use tokio_util::sync::CancellationToken;

use crate::files::{LOOK_EVERY, WatchedFile};

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
    let mut pods_file = pods_file.map(WatchedFile::new);
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    loop {
        if let Some(file) = &mut pods_file
            && file.has_changed()
        {
            match read_pods(file.path()) {
                Ok(new) => pods = new,
                // Half written, most likely; it will change once more.
                Err(error) => {
                    tracing::warn!(path = %file.path().display(), error = %error, "pods file not read");
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
        let mut watched = WatchedFile::from_now(file.path().to_owned());
        assert!(!watched.has_changed());
        std::fs::write(file.path(), "{}").unwrap();
        assert!(watched.has_changed());
        assert!(read_pods(file.path()).is_err());
    }
}
