//! How does a mount process end with the driver that started it, however that ended?

use std::io::{self, Read};

use tokio_util::sync::CancellationToken;

/// Cancels the token at the end of standard input, whose other end the parent holds.
///
/// # Errors
/// When there is no thread to be had.
pub fn watch(token: CancellationToken) -> io::Result<()> {
    let wait = move || {
        // Nothing is ever written; an error means as much as the end.
        let mut nothing = [0; 64];
        while io::stdin().read(&mut nothing).is_ok_and(|read| read > 0) {}
        tracing::info!("the process that started this one is gone");
        token.cancel();
    };
    // Not joined: it waits for as long as the parent lives, and ends with this process.
    std::thread::Builder::new().name("parent".into()).spawn(wait).map(drop)
}
