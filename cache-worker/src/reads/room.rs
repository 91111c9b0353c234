//! May a request that nobody waits for be sent now?
//!
//! Requests of the background and of warm-ups start only when the origin's window would take them at once: queued there,
//! a reader that comes to want their chunks could not pass those before them.

use std::sync::Arc;
use std::time::Duration;

use super::fetcher::Fetcher;
use crate::origin::window::{Window, WindowNow};

/// Bytes that such requests may be asking for: 16 requests of 8 MiB fill 400 MB/s at 30 ms first byte and 80 MB/s a
/// stream twice over.
const MAX_BYTES: u64 = 128 << 20;

/// How often the window is looked at where nothing of ours ends meanwhile: other sources' requests, listing.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Who asks for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asker {
    /// What belongs to a read: its block's rest, its pack, the blocks ahead.
    Background,
    /// A warm-up: leaves most of the bandwidth to readers while there are any.
    WarmUp,
}

/// Watches the window.
#[derive(Debug, Clone)]
pub struct Room {
    fetcher: Arc<Fetcher>,
    window: Arc<Window>,
}

impl Room {
    /// Room in `window`, looked at anew whenever a flight of `fetcher` lands.
    pub fn new(fetcher: Arc<Fetcher>, window: Arc<Window>) -> Self {
        Self { fetcher, window }
    }

    /// Waits until one more request would start at once. One task should ask for each asker: there is no reservation.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn wait(&self, asker: Asker) {
        while !self.has_room(asker) {
            let landed = self.fetcher.landed.notified();
            // Either way the window is looked at again.
            let _ = tokio::time::timeout(LOOK_AGAIN, landed).await;
        }
    }

    fn has_room(&self, asker: Asker) -> bool {
        has_room(&self.window.now(), self.fetcher.starting(), self.fetcher.is_half_full(), asker)
    }
}

/// An answer that is all here has left the window, and its chunks may hold memory for long where the disk is slow.
fn has_room(now: &WindowNow, starting: usize, is_half_full: bool, asker: Asker) -> bool {
    let share = match asker {
        Asker::WarmUp if now.foreground > 0 => now.limit / 4,
        Asker::WarmUp | Asker::Background => now.limit - now.limit / 4,
    };
    let nobody_waits = now.foreground_waiting == 0 && now.warm_up_waiting == 0;
    !is_half_full
        && nobody_waits
        && now.foreground + now.warm_up + starting < share.max(1)
        && now.bytes < MAX_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_leaves_three_quarters_to_readers() {
        let idle = WindowNow {
            limit: 16,
            foreground: 0,
            warm_up: 8,
            bytes: 0,
            foreground_waiting: 0,
            warm_up_waiting: 0,
        };
        assert!(has_room(&idle, 0, false, Asker::WarmUp) && has_room(&idle, 0, false, Asker::Background));
        let read = WindowNow { foreground: 1, warm_up: 3, ..idle };
        assert!(!has_room(&read, 0, false, Asker::WarmUp) && has_room(&read, 0, false, Asker::Background));
        assert!(!has_room(&idle, 4, false, Asker::Background));
        assert!(!has_room(&WindowNow { foreground_waiting: 1, ..idle }, 0, false, Asker::Background));
        assert!(!has_room(&WindowNow { bytes: MAX_BYTES, ..idle }, 0, false, Asker::Background));
    }

    #[test]
    fn nobody_may_send_while_chunks_hold_half_of_the_memory() {
        let idle = WindowNow {
            limit: 16,
            foreground: 0,
            warm_up: 0,
            bytes: 0,
            foreground_waiting: 0,
            warm_up_waiting: 0,
        };
        for asker in [Asker::WarmUp, Asker::Background] {
            assert!(has_room(&idle, 0, false, asker) && !has_room(&idle, 0, true, asker));
        }
    }
}
