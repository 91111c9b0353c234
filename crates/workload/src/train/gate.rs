//! How do threads wait for each other under a clock that may be a test's?

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::clock::Clock;

/// A place to wait at for a change of a state behind a lock.
///
/// A clock whose time passes only while all threads wait has to know who waits: those that are woken count as running
/// from the change on, not from when they come to run. And whoever wakes another does so after unlocking: on few
/// processors the woken thread would else wait for the lock at once.
#[derive(Debug, Default)]
pub(super) struct Gate {
    changed: Condvar,
}

/// Who waits at a gate; a part of the state.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    waiting: usize,
    /// Wake-ups that no thread has come back with.
    woken: usize,
}

/// So many threads are to be woken at a gate once the lock is open.
#[derive(Debug)]
#[must_use]
pub(super) struct WakeUps(usize);

impl Waiters {
    /// Takes so many threads, or as many as there are, for running.
    pub fn wake(&mut self, clock: &dyn Clock, most: usize) -> WakeUps {
        let count = most.min(self.waiting);
        if count > 0 {
            self.waiting -= count;
            self.woken += count;
            clock.unblocked(count);
        }
        WakeUps(count)
    }
}

impl Gate {
    /// Wakes threads that were taken for running.
    pub fn open(&self, wake_ups: WakeUps) {
        for _ in 0..wake_ups.0 {
            self.changed.notify_one();
        }
    }

    /// Waits until woken.
    pub fn wait<'s, S>(
        &self,
        clock: &dyn Clock,
        mut state: MutexGuard<'s, S>,
        waiters: impl Fn(&mut S) -> &mut Waiters,
    ) -> MutexGuard<'s, S> {
        waiters(&mut state).waiting += 1;
        clock.blocked();
        loop {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            let woken = &mut waiters(&mut state).woken;
            if *woken > 0 {
                *woken -= 1;
                return state;
            }
        }
    }
}

/// Locks a state. A thread that panicked ends the program anyway.
pub(super) fn lock<S>(state: &Mutex<S>) -> MutexGuard<'_, S> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
