//! Whose turn is it on the cluster? A few tests run beside each other; one that takes away what others need waits until none is
//! left, however many threads the tests have.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Tests that do something at a time: with more, users' deadlines would be missed for want of processors.
const AT_ONCE: usize = 4;

static STATE: Mutex<State> = Mutex::new(State { waiting: 0, busy: 0, resting: 0, is_alone: false });
static CHANGED: Condvar = Condvar::new();

#[derive(Debug)]
struct State {
    /// Tests that wait to run beside others.
    waiting: usize,
    /// Tests that run beside others.
    busy: usize,
    /// Tests that only look, and are not to be disturbed.
    resting: usize,
    /// Whether a test has the cluster alone.
    is_alone: bool,
}

/// A turn; over with this value.
#[derive(Debug)]
pub(super) enum Turn {
    /// Beside others.
    Shared,
    /// Without any other.
    Alone,
}

impl Turn {
    /// Waits for a turn beside others.
    pub(super) fn shared() -> Self {
        drop(join(state()));
        Self::Shared
    }

    /// Waits for a turn without others: those that run beside each other come first.
    pub(super) fn alone() -> Self {
        let is_used =
            |state: &mut State| state.is_alone || state.waiting > 0 || state.busy > 0 || state.resting > 0;
        let mut state = CHANGED.wait_while(state(), is_used).unwrap_or_else(PoisonError::into_inner);
        state.is_alone = true;
        Self::Alone
    }

    /// Lets others run while `look` does nothing but look.
    pub(super) fn rest<T>(&self, look: impl FnOnce() -> T) -> T {
        match self {
            Self::Alone => look(),
            Self::Shared => {
                let _resting = Resting::begin();
                look()
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        match self {
            Self::Shared => state().busy -= 1,
            Self::Alone => state().is_alone = false,
        }
        CHANGED.notify_all();
    }
}

struct Resting;

impl Resting {
    fn begin() -> Self {
        let mut state = state();
        state.busy -= 1;
        state.resting += 1;
        CHANGED.notify_all();
        Self
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        // Still one that is not to be disturbed while it waits.
        join(state()).resting -= 1;
    }
}

fn join(mut state: MutexGuard<'static, State>) -> MutexGuard<'static, State> {
    state.waiting += 1;
    let is_full = |state: &mut State| state.is_alone || state.busy >= AT_ONCE;
    let mut state = CHANGED.wait_while(state, is_full).unwrap_or_else(PoisonError::into_inner);
    state.waiting -= 1;
    state.busy += 1;
    state
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}
