//! How does a mount process that runs learn that its node store may hold more or less than before?
//!
//! Whoever started it keeps a file with the number of bytes; it is looked at again and again, as the membership's is.

use std::path::{Path, PathBuf};

use millrace_store::Store;
use tokio_util::sync::CancellationToken;

use crate::files::WatchedFile;

/// Gives the store the quota in the file whenever that changes, until the token is cancelled.
pub async fn follow(store: Store, quota_file: PathBuf, token: CancellationToken) {
    let mut file = WatchedFile::new(quota_file);
    loop {
        tokio::select! {
            () = file.changed() => {}
            () = token.cancelled() => return,
        }
        match read(file.path()) {
            Ok(quota_bytes) => {
                let store = store.clone();
                // Evicts what is over. Cut off where the process ends; its successor does it at its start.
                let set = tokio::task::spawn_blocking(move || store.set_quota(quota_bytes)).await;
                if let Ok(true) = set {
                    tracing::info!(quota_bytes, "the node store may hold another amount");
                }
            }
            Err(error) => {
                tracing::warn!(path = %file.path().display(), error = %error, "quota file not read");
            }
        }
    }
}

fn read(path: &Path) -> std::io::Result<u64> {
    let text = std::fs::read_to_string(path)?;
    text.trim().parse::<u64>().map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))
}
