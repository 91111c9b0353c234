//! Is the server out of service, and how does it show?

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// How an outage shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OutageMode {
    /// Connections are reset and new ones refused: nothing listens on the port.
    Refuse,
    /// Each request is answered with 500 InternalError.
    InternalError,
}

/// The outage now, if there is one.
pub(crate) struct Outage {
    state: watch::Sender<Option<(OutageMode, Instant)>>,
}

impl Outage {
    pub fn none() -> Self {
        Self { state: watch::Sender::new(None) }
    }

    /// Begins an outage, in place of one that may be on.
    pub fn begin(&self, mode: OutageMode, length: Duration) {
        self.state.send_replace(Some((mode, Instant::now() + length)));
    }

    pub fn end(&self) {
        self.state.send_replace(None);
    }

    pub fn now(&self) -> Option<OutageMode> {
        self.state.borrow().filter(|(_, until)| *until > Instant::now()).map(|(mode, _)| mode)
    }

    /// Waits until connections are to be refused, and returns when that ends.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn refused(&self) -> Instant {
        let mut watcher = self.state.subscribe();
        loop {
            if let Some((OutageMode::Refuse, until)) = *watcher.borrow_and_update()
                && until > Instant::now()
            {
                return until;
            }
            if watcher.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until connections are no more refused.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn accepted(&self) {
        let mut watcher = self.state.subscribe();
        loop {
            let until = match *watcher.borrow_and_update() {
                Some((OutageMode::Refuse, until)) if until > Instant::now() => until,
                _ => return,
            };
            tokio::select! {
                _ = tokio::time::sleep_until(until.into()) => {}
                // The sender lives as long as self.
                _ = watcher.changed() => {}
            }
        }
    }
}
