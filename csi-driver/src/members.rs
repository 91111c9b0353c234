//! How does a mount process hear of new workers from whoever composed it?
//!
//! Workers tell of a newer membership in their answers; that does not help when all of them have moved. So the file that
//! held the first membership is looked at again.

use std::path::PathBuf;

use millrace_transport::client::Client;
use tokio_util::sync::CancellationToken;

use crate::config::mount::read_membership;
use crate::files::WatchedFile;

/// Takes each newer membership that appears in the file, until the token is cancelled.
pub async fn follow(path: PathBuf, client: Client, token: CancellationToken) {
    let mut file = WatchedFile::from_now(path);
    loop {
        tokio::select! {
            () = file.changed() => {}
            () = token.cancelled() => return,
        }
        match read_membership(file.path()) {
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
