//! How does time pass in tests: only while every thread waits, and then at once to the next deadline?

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::clock::Clock;

/// A clock for tests.
#[derive(Debug, Default)]
pub(super) struct VirtualClock {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    now: Duration,
    threads: usize,
    idle: usize,
    deadlines: Vec<Duration>,
}

impl Inner {
    /// Goes on to the next deadline where nobody runs.
    fn advance(&mut self, changed: &Condvar) {
        if self.idle < self.threads || self.threads == 0 {
            return;
        }
        let Some(next) = self.deadlines.iter().min().copied() else {
            panic!("all threads wait for each other")
        };
        self.now = next;
        let before = self.deadlines.len();
        self.deadlines.retain(|deadline| *deadline > next);
        self.idle -= before - self.deadlines.len();
        changed.notify_all();
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        self.inner.lock().now
    }

    fn sleep_until(&self, deadline: Duration) {
        let mut inner = self.inner.lock();
        if deadline <= inner.now {
            return;
        }
        inner.deadlines.push(deadline);
        inner.idle += 1;
        inner.advance(&self.changed);
        while inner.now < deadline {
            self.changed.wait(&mut inner);
        }
    }

    fn enter(&self, threads: usize) {
        self.inner.lock().threads += threads;
    }

    fn leave(&self) {
        let mut inner = self.inner.lock();
        inner.threads -= 1;
        inner.advance(&self.changed);
    }

    fn blocked(&self) {
        let mut inner = self.inner.lock();
        inner.idle += 1;
        inner.advance(&self.changed);
    }

    fn unblocked(&self, threads: usize) {
        self.inner.lock().idle -= threads;
    }
}
