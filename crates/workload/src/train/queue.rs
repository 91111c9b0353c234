//! How far ahead may a rank's readers read, and when is its next batch complete?

use std::collections::VecDeque;
use std::sync::Mutex;

use super::Ended;
use super::gate::{Gate, Waiters, WakeUps, lock};
use super::profile::Profile;
use crate::clock::Clock;

/// The queue between the readers of a rank and the rank.
///
/// `prefetch` batches lie ready at most, besides the sample that each reader has in hand; what the rank waits for may
/// always be read. Each sample that may be read is a permit, for whichever reader is free, or for the one whose file it is in.
pub(super) struct Queue<'a> {
    clock: &'a dyn Clock,
    batch: u64,
    prefetch: u64,
    threads: u64,
    /// Samples of the epoch.
    last: u64,
    /// The reader of each sample, where that is fixed.
    owners: Option<Vec<u16>>,
    state: Mutex<State>,
    is_complete: Gate,
    may_read: Vec<Gate>,
}

#[derive(Debug, Default)]
struct State {
    is_ended: bool,
    /// Samples below may be read.
    horizon: u64,
    /// Batches that the rank has.
    taken: u64,
    /// Samples read of the batches that are not taken yet, in their order.
    read: VecDeque<u64>,
    rank: Waiters,
    /// One for all readers, or one for each.
    slots: Vec<Slot>,
}

/// What readers of one kind may do.
#[derive(Debug, Default)]
struct Slot {
    waiters: Waiters,
    permits: u64,
    next: u64,
}

impl<'a> Queue<'a> {
    /// For an epoch of so many samples; nothing may be read yet.
    pub fn new(clock: &'a dyn Clock, profile: &Profile, owners: Option<Vec<u16>>, last: u64) -> Self {
        let threads = profile.read_threads.max(1);
        let slots = if owners.is_some() { threads } else { 1 };
        let state = State { slots: (0..slots).map(|_| Slot::default()).collect(), ..State::default() };
        Self {
            clock,
            batch: profile.batch.max(1),
            prefetch: profile.prefetch,
            threads: threads as u64,
            last,
            owners,
            state: Mutex::new(state),
            is_complete: Gate::default(),
            may_read: (0..slots).map(|_| Gate::default()).collect(),
        }
    }

    /// The next sample for a reader, once it may be read; `None` at the end.
    pub fn next(&self, thread: usize) -> Option<u64> {
        let index = if self.owners.is_some() { thread } else { 0 };
        let mut state = lock(&self.state);
        loop {
            let slot = &mut state.slots[index];
            self.pass_others(slot, thread);
            let number = slot.next;
            if number >= self.last || state.is_ended {
                return None;
            }
            let slot = &mut state.slots[index];
            if slot.permits > 0 {
                slot.permits -= 1;
                slot.next += 1;
                if slot.next >= self.last {
                    // The others of the slot need not wait for more.
                    let wake_ups = slot.waiters.wake(self.clock, usize::MAX);
                    drop(state);
                    self.may_read[index].open(wake_ups);
                }
                return Some(number);
            }
            state = self.may_read[index].wait(self.clock, state, |state| &mut state.slots[index].waiters);
        }
    }

    /// Samples of other readers are not this one's.
    fn pass_others(&self, slot: &mut Slot, thread: usize) {
        let Some(owners) = &self.owners else { return };
        while slot.next < self.last && usize::from(owners[slot.next as usize]) != thread {
            slot.next += 1;
        }
    }

    /// A sample was read.
    pub fn put(&self, number: u64) {
        let mut state = lock(&self.state);
        // Batches before `taken` are complete, so none of their samples comes again.
        let index = usize::try_from((number / self.batch).saturating_sub(state.taken)).unwrap_or(usize::MAX);
        if index >= state.read.len() {
            state.read.resize(index + 1, 0);
        }
        state.read[index] += 1;
        if index == 0 && state.read[0] >= self.batch {
            let wake_ups = state.rank.wake(self.clock, 1);
            drop(state);
            self.is_complete.open(wake_ups);
        }
    }

    /// Waits for the next batch and takes it. The first call lets the readers begin.
    ///
    /// # Errors
    /// Where the epoch ends before.
    pub fn take_batch(&self) -> Result<(), Ended> {
        let mut state = lock(&self.state);
        let wake_ups = self.advance(&mut state, true);
        if wake_ups.iter().any(Option::is_some) {
            drop(state);
            self.open(wake_ups);
            state = lock(&self.state);
        }
        while !state.is_ended && state.read.front().is_none_or(|read| *read < self.batch) {
            state = self.is_complete.wait(self.clock, state, |state| &mut state.rank);
        }
        if state.is_ended {
            return Err(Ended);
        }
        state.read.pop_front();
        state.taken += 1;
        let wake_ups = self.advance(&mut state, false);
        drop(state);
        self.open(wake_ups);
        Ok(())
    }

    /// Gives permits for what may be read now, and says whom to wake at each gate.
    fn advance(&self, state: &mut State, is_waiting: bool) -> Vec<Option<WakeUps>> {
        let in_hand = if self.prefetch == 0 { 0 } else { self.threads };
        let ahead = (state.taken + self.prefetch) * self.batch + in_hand;
        let wanted = (state.taken + u64::from(is_waiting)) * self.batch;
        let horizon = ahead.max(wanted).min(self.last);
        let mut given = vec![0_usize; state.slots.len()];
        for number in state.horizon..horizon {
            let slot = self.owners.as_ref().map_or(0, |owners| usize::from(owners[number as usize]));
            state.slots[slot].permits += 1;
            given[slot] += 1;
        }
        state.horizon = state.horizon.max(horizon);
        let wake =
            |(slot, given): (&mut Slot, usize)| (given > 0).then(|| slot.waiters.wake(self.clock, given));
        state.slots.iter_mut().zip(given).map(wake).collect()
    }

    fn open(&self, wake_ups: Vec<Option<WakeUps>>) {
        for (gate, wake_ups) in self.may_read.iter().zip(wake_ups) {
            if let Some(wake_ups) = wake_ups {
                gate.open(wake_ups);
            }
        }
    }

    /// Ends the epoch for rank and readers.
    pub fn end(&self) {
        let mut state = lock(&self.state);
        state.is_ended = true;
        let rank = state.rank.wake(self.clock, usize::MAX);
        let wake = |slot: &mut Slot| Some(slot.waiters.wake(self.clock, usize::MAX));
        let readers = state.slots.iter_mut().map(wake).collect();
        drop(state);
        self.is_complete.open(rank);
        self.open(readers);
    }
}
