//! Are all ranks as far as this one?

use std::sync::Mutex;

use super::Ended;
use super::gate::{Gate, Waiters, lock};
use crate::clock::Clock;

/// Where ranks wait for each other after each step, as for gradients.
pub(super) struct Barrier<'a> {
    clock: &'a dyn Clock,
    ranks: usize,
    state: Mutex<State>,
    all_are_here: Gate,
}

#[derive(Debug, Default)]
struct State {
    arrived: usize,
    round: u64,
    is_ended: bool,
    waiters: Waiters,
}

impl<'a> Barrier<'a> {
    /// For so many ranks.
    pub fn new(clock: &'a dyn Clock, ranks: usize) -> Self {
        Self { clock, ranks, state: Mutex::default(), all_are_here: Gate::default() }
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// Where the epoch ends before.
    pub fn meet(&self) -> Result<(), Ended> {
        let mut state = lock(&self.state);
        state.arrived += 1;
        if state.arrived == self.ranks {
            state.arrived = 0;
            state.round += 1;
            let wake_ups = state.waiters.wake(self.clock, usize::MAX);
            let is_ended = state.is_ended;
            drop(state);
            self.all_are_here.open(wake_ups);
            return if is_ended { Err(Ended) } else { Ok(()) };
        }
        let round = state.round;
        while state.round == round && !state.is_ended {
            state = self.all_are_here.wait(self.clock, state, |state| &mut state.waiters);
        }
        if state.is_ended { Err(Ended) } else { Ok(()) }
    }

    /// Ends the epoch for all ranks.
    pub fn end(&self) {
        let mut state = lock(&self.state);
        state.is_ended = true;
        let wake_ups = state.waiters.wake(self.clock, usize::MAX);
        drop(state);
        self.all_are_here.open(wake_ups);
    }
}
