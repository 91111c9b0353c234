//! How far is a warm-up, and what could it not load?
//!
//! Pure. A warm-up walks the files of a version in one fixed order; each file of which this worker owns a part is a *unit*
//! with a place in that order. The saved form says "all before the cursor is settled" with the counts up to there, so a
//! restarted worker goes on at the cursor; what was loaded beyond it is found in the store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

/// How many failures are named; all are counted.
pub const MAX_NAMED_FAILURES: usize = 1000;

/// How many units may be settled beyond the cursor: a unit that waits for a sick origin must not let the map grow.
pub const MAX_BEYOND: usize = 8192;

/// What the warm-up does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum State {
    /// Never started.
    #[default]
    Idle,
    /// Loading.
    Running,
    /// Stopped by request; goes on when started.
    Paused,
    /// All units are settled.
    Done,
    /// Given up by request.
    Cancelled,
    /// The store admits no more.
    Full,
}

/// One object that could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// As shown in the mount.
    pub path: String,
    /// A constant in CamelCase.
    pub reason: String,
    /// For the user.
    pub message: String,
    /// Milliseconds since 1970.
    pub at_ms: u64,
}

/// How a unit ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// This worker's part of it is in the store.
    Loaded,
    /// It cannot be loaded.
    Failed(Failed),
}

/// The counts of a warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Units in the store.
    pub done: u64,
    /// Units that cannot be loaded.
    pub failed: u64,
    /// Bytes of this worker's share in the store.
    pub bytes_done: u64,
}

/// The ledger of one warm-up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// What was asked for, as shown in the mount; empty: all.
    pub paths: Vec<String>,
    /// The membership's epoch when the walk began: another one shares the units out anew.
    pub epoch: u64,
    /// What it does now.
    pub state: State,
    /// Units of this worker in the walk; 0 until they are counted.
    pub listed: u64,
    /// Their bytes, this worker's share.
    pub bytes_total: u64,
    cursor: u64,
    counts: Counts,
    failures: VecDeque<Failed>,
    #[serde(skip)]
    in_flight: BTreeSet<u64>,
    #[serde(skip)]
    beyond: BTreeMap<u64, (u64, Outcome)>,
    #[serde(skip)]
    next: u64,
}

impl Ledger {
    /// A warm-up of `paths` that has not begun.
    pub fn new(paths: Vec<String>, epoch: u64) -> Self {
        Self { paths, epoch, state: State::Running, ..Self::default() }
    }

    /// The place in the walk to go on from after a restart or a pause.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Forgets what is under way, to walk again from the cursor.
    pub fn rewind(&mut self) {
        self.in_flight.clear();
        self.beyond.clear();
        self.next = self.cursor;
    }

    /// Notes that the unit at `place` has begun. Places only grow.
    pub fn begin(&mut self, place: u64) {
        self.in_flight.insert(place);
        self.next = self.next.max(place + 1);
    }

    /// Notes the end of a unit; `bytes` is this worker's share of it.
    pub fn settle(&mut self, place: u64, bytes: u64, outcome: Outcome) {
        if self.in_flight.remove(&place) {
            self.beyond.insert(place, (bytes, outcome));
        }
        self.advance();
    }

    /// Notes that every place before `place` has been looked at.
    pub fn passed(&mut self, place: u64) {
        self.next = self.next.max(place);
        self.advance();
    }

    /// Whether no further unit may begin until older ones end.
    pub fn is_crowded(&self) -> bool {
        self.beyond.len() >= MAX_BEYOND
    }

    /// The counts, with what is settled beyond the cursor.
    pub fn counts(&self) -> Counts {
        self.beyond.values().fold(self.counts, |counts, (bytes, outcome)| add(counts, *bytes, outcome))
    }

    /// Units that are neither done nor failed.
    pub fn pending(&self) -> u64 {
        let counts = self.counts();
        self.listed.saturating_sub(counts.done + counts.failed)
    }

    /// The newest failures, at most `most`, the newest last.
    pub fn failures(&self, most: usize) -> Vec<Failed> {
        let settled = self.failures.iter();
        let beyond = self.beyond.values().filter_map(|(_, outcome)| match outcome {
            Outcome::Loaded => None,
            Outcome::Failed(failed) => Some(failed),
        });
        let all: Vec<&Failed> = settled.chain(beyond).collect();
        all[all.len().saturating_sub(most)..].iter().map(|failed| (*failed).clone()).collect()
    }

    fn advance(&mut self) {
        let end = self.in_flight.first().copied().unwrap_or(self.next);
        while let Some(entry) = self.beyond.first_entry() {
            if *entry.key() >= end {
                break;
            }
            let (bytes, outcome) = entry.remove();
            self.counts = add(self.counts, bytes, &outcome);
            if let Outcome::Failed(failed) = outcome {
                self.failures.push_back(failed);
                if self.failures.len() > MAX_NAMED_FAILURES {
                    self.failures.pop_front();
                }
            }
        }
        self.cursor = self.cursor.max(end);
    }
}

fn add(mut counts: Counts, bytes: u64, outcome: &Outcome) -> Counts {
    match outcome {
        Outcome::Loaded => {
            counts.done += 1;
            counts.bytes_done += bytes;
        }
        Outcome::Failed(_) => counts.failed += 1,
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn failed(path: &str) -> Outcome {
        Outcome::Failed(Failed {
            path: path.into(),
            reason: "Gone".into(),
            message: "deleted".into(),
            at_ms: 1,
        })
    }

    #[test]
    fn a_restart_goes_on_at_the_first_unsettled_unit_with_the_counts_up_to_there() {
        let mut ledger = Ledger::new(vec![], 3);
        ledger.listed = 4;
        for place in [2, 5, 6, 9] {
            ledger.begin(place);
        }
        ledger.settle(2, 10, Outcome::Loaded);
        ledger.settle(6, 10, failed("six"));
        assert_eq!(ledger.cursor(), 5);
        assert_eq!(ledger.counts(), Counts { done: 1, failed: 1, bytes_done: 10 });
        assert_eq!(ledger.pending(), 2);
        let saved = serde_json::to_string(&ledger).unwrap();
        let mut again: Ledger = serde_json::from_str(&saved).unwrap();
        again.rewind();
        assert_eq!(again.cursor(), 5);
        assert_eq!(again.counts(), Counts { done: 1, failed: 0, bytes_done: 10 });
        for place in [5, 6, 9] {
            again.begin(place);
            again.settle(place, 10, Outcome::Loaded);
        }
        again.passed(100);
        assert_eq!(again.cursor(), 100);
        assert_eq!(again.pending(), 0);
    }

    #[test]
    fn failures_are_named_up_to_the_bound_and_all_counted() {
        let mut ledger = Ledger::new(vec![], 0);
        for place in 0..1500 {
            ledger.begin(place);
            ledger.settle(place, 1, failed(&place.to_string()));
        }
        assert_eq!(ledger.counts().failed, 1500);
        assert_eq!(ledger.failures(usize::MAX).len(), MAX_NAMED_FAILURES);
        assert_eq!(ledger.failures(20).last().unwrap().path, "1499");
    }

    proptest! {
        #[test]
        fn any_order_of_endings_counts_each_unit_once(order in Just((0u64..40).collect::<Vec<_>>()).prop_shuffle(), cut in 0usize..40) {
            let mut ledger = Ledger::new(vec![], 0);
            (0..40).for_each(|place| ledger.begin(place));
            for place in &order[..cut] {
                ledger.settle(*place, 2, Outcome::Loaded);
            }
            prop_assert_eq!(ledger.counts().done, cut as u64);
            let mut again: Ledger = serde_json::from_str(&serde_json::to_string(&ledger).unwrap()).unwrap();
            again.rewind();
            let cursor = again.cursor();
            prop_assert_eq!(again.counts().done, cursor.min(40));
            (cursor..40).for_each(|place| { again.begin(place); again.settle(place, 2, Outcome::Loaded); });
            prop_assert_eq!(again.counts(), Counts { done: 40, failed: 0, bytes_done: 80 });
        }
    }
}
