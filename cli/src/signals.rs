//! Has somebody asked us to end?

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that SIGINT (Ctrl-C), SIGTERM and SIGHUP (the terminal is gone) cancel. A second one while things are being
/// stopped changes nothing; one that whoever started us has us ignore stays ignored (SIGHUP by nohup).
///
/// # Errors
/// Where a signal cannot be listened for.
pub fn stop() -> anyhow::Result<CancellationToken> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let number = kind.as_raw_value();
        if kind == SignalKind::hangup() && is_ignored(&status, number) {
            continue;
        }
        signals.push(signal(kind).with_context(|| format!("listen for signal {number}"))?);
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

/// Whether a signal is ignored, by the text of `/proc/self/status` (proc(5): SigIgn, a hexadecimal mask from signal 1 on).
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    u32::try_from(signal - 1).is_ok_and(|bit| mask.checked_shr(bit).unwrap_or(0) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_seen() {
        let nohup = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(nohup, 1) && is_ignored(nohup, 13) && !is_ignored(nohup, 2));
        assert!(!is_ignored("", 1) && !is_ignored("SigIgn:\tzz", 1));
    }
}
