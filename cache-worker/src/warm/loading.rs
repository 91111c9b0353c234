//! What becomes of one unit of a warm-up?

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace_store::Class;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::ledger::{Failed, Ledger, Outcome, State};
use crate::origin::window::Priority;
use crate::reads::Kept;
use crate::reads::fetcher::{Fetcher, Target, Terms};
use crate::reads::patience::MAX_WRONG_ANSWERS;

/// How long one request of a warm-up is tried before it is begun anew; as long as a read waits.
const DEADLINE: Duration = Duration::from_secs(120);

/// A unit under way.
pub(super) struct Loading {
    pub place: u64,
    pub bytes: u64,
    /// Runs that have not ended, and the first failure.
    pub left: Mutex<(usize, Option<Failed>)>,
}

impl Loading {
    /// Notes the end of one run; the last one settles the unit. Returns how the whole warm-up ends, where it must.
    pub(super) fn end(&self, ledger: &Mutex<Ledger>, target: &Target, loaded: Loaded) -> Option<State> {
        let mut left = self.left.lock();
        left.0 -= 1;
        match loaded {
            Loaded::Kept => {}
            // The unit stays unsettled: a later start tries it again.
            Loaded::NotKept => return Some(State::Full),
            Loaded::Failed { reason, message } => {
                let path = target.version.path_text(target.object.file);
                let at_ms =
                    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
                left.1.get_or_insert(Failed { path, reason: reason.to_owned(), message, at_ms });
            }
        }
        if left.0 == 0 {
            let outcome = left.1.take().map_or(Outcome::Loaded, Outcome::Failed);
            ledger.lock().settle(self.place, self.bytes, outcome);
        }
        None
    }
}

/// What became of one run.
pub(super) enum Loaded {
    Kept,
    NotKept,
    Failed { reason: &'static str, message: String },
}

/// Loads one run, through outages of any length.
pub(super) async fn load(fetcher: &Arc<Fetcher>, target: &Target, run: Range<u32>) -> Loaded {
    let mut wrong_answers = 0;
    loop {
        let refusal = {
            let failures = fetcher.failures.lock();
            failures
                .refusal(&target.object.id, std::time::Instant::now())
                .map(|failure| Arc::clone(&failure.error))
        };
        if let Some(error) = refusal {
            return Loaded::Failed { reason: error.reason, message: error.message.clone() };
        }
        let deadline = Instant::now() + DEADLINE;
        let terms = Terms { priority: Priority::WarmUp, class: Class::Owned, deadline };
        match fetcher.ensure(target, run.clone(), terms).await {
            Ok(Kept::All) => return Loaded::Kept,
            Ok(Kept::NotAll) => return Loaded::NotKept,
            Err(error)
                if error.hold.is_some() || error.is_wrong_answer() && wrong_answers == MAX_WRONG_ANSWERS =>
            {
                return Loaded::Failed { reason: error.reason, message: error.message.clone() };
            }
            Err(error) => {
                wrong_answers += u32::from(error.is_wrong_answer());
                tracing::debug!(error = %error, "warm-up request tried again");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}
