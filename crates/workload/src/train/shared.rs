//! How do threads wait for each other under a clock that may be a test's?

use parking_lot::{Condvar, Mutex};

use crate::clock::Clock;

/// A state that threads change and wait for.
///
/// A clock whose time passes only while all threads wait has to know who waits: those that are woken count as running
/// from the moment of the change on, not from when they come to run.
pub(super) struct Shared<'a, S> {
    clock: &'a dyn Clock,
    inner: Mutex<Inner<S>>,
    changed: Condvar,
}

struct Inner<S> {
    state: S,
    waiting: usize,
    /// Counts changes that were announced, to tell them from wake-ups without cause.
    generation: u64,
}

/// Whether those that wait have to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Announce {
    /// They have.
    Yes,
    /// The change is none that anybody waits for.
    No,
}

impl<'a, S> Shared<'a, S> {
    /// Around a state.
    pub fn new(clock: &'a dyn Clock, state: S) -> Self {
        Self { clock, inner: Mutex::new(Inner { state, waiting: 0, generation: 0 }), changed: Condvar::new() }
    }

    /// Changes the state.
    pub fn change(&self, change: impl FnOnce(&mut S) -> Announce) {
        let mut inner = self.inner.lock();
        if change(&mut inner.state) == Announce::Yes {
            self.announce(&mut inner);
        }
    }

    /// Waits until `ready` gives something; what it changes then is announced.
    pub fn take<T>(&self, mut ready: impl FnMut(&mut S) -> Option<(T, Announce)>) -> T {
        let mut inner = self.inner.lock();
        loop {
            if let Some((taken, announce)) = ready(&mut inner.state) {
                if announce == Announce::Yes {
                    self.announce(&mut inner);
                }
                return taken;
            }
            inner.waiting += 1;
            let generation = inner.generation;
            self.clock.blocked();
            while inner.generation == generation {
                self.changed.wait(&mut inner);
            }
        }
    }

    fn announce(&self, inner: &mut Inner<S>) {
        if inner.waiting > 0 {
            self.clock.unblocked(inner.waiting);
            inner.waiting = 0;
            inner.generation += 1;
            self.changed.notify_all();
        }
    }
}
