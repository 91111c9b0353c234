//! What time is it, for the ages of blocks and the pauses after faults?

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970: the system's, or a test's own.
///
/// Wall time, because stamps in sidecars are compared by several processes and across restarts. A jump only changes
/// the order of eviction.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    manual: Option<Arc<AtomicU64>>,
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self { manual: None }
    }

    /// A clock that shows what `millis` holds.
    pub fn manual(millis: Arc<AtomicU64>) -> Self {
        Self { manual: Some(millis) }
    }

    /// Milliseconds since 1970.
    pub fn millis(&self) -> u64 {
        match &self.manual {
            Some(millis) => millis.load(Ordering::Relaxed),
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
        }
    }
}
