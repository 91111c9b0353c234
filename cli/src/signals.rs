//! Has somebody asked us to end?

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that SIGINT (Ctrl-C), SIGTERM and SIGHUP (the terminal is gone) cancel. A second one while things are being
/// stopped changes nothing.
///
/// # Errors
/// Where a signal cannot be listened for.
pub fn stop() -> anyhow::Result<CancellationToken> {
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        signals.push(signal(kind).with_context(|| format!("listen for signal {}", kind.as_raw_value()))?);
    }
    let token = CancellationToken::new();
    for mut signal in signals {
        let token = token.clone();
        // Ends with the runtime, which ends with the program.
        tokio::spawn(async move {
            while signal.recv().await.is_some() {
                token.cancel();
            }
        });
    }
    Ok(token)
}
