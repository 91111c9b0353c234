//! How does a mount process hear of new workers from whoever composed it?
//!
//! Workers tell of a newer membership in their answers; that does not help when all of them have moved. So the file that
//! held the first membership is looked at again.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use millrace_transport::client::Client;
use tokio_util::sync::CancellationToken;

use crate::config::mount::read_membership;

/// How often the file is looked at: one stat a second costs nothing, and a read waits far longer than this.
const INTERVAL: Duration = Duration::from_secs(1);

/// Takes each newer membership that appears in the file, until the token is cancelled.
pub async fn follow(path: PathBuf, client: Client, token: CancellationToken) {
    let mut seen = modified(&path);
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = token.cancelled() => return,
        }
        let now = modified(&path);
        if now == seen {
            continue;
        }
        seen = now;
        match read_membership(&path) {
            Ok(membership) => {
                tracing::info!(
                    epoch = membership.epoch,
                    workers = membership.workers.len(),
                    "membership file changed"
                );
                client.set_membership(membership);
            }
            // Half written, most likely; it will change once more.
            Err(error) => tracing::warn!(error = %error, "membership file cannot be read"),
        }
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}
