//! Which requests were taken from the kernel and not answered, so that an INTERRUPT finds its request?

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::interruption::Interruption;

/// Locks that the table is spread over, so that reader threads seldom meet.
const SHARDS: usize = 16;
/// Most requests in flight. The kernel sends one for each waiting thread of a reader and `max_background` more; at
/// about 200 bytes each this many cost 13 MiB.
pub(crate) const MAX_IN_FLIGHT: u64 = 65_536;

/// The requests in flight by id.
///
/// The id is the whole one, with the bit of RESEND: a request that was sent again is another one to the kernel, which
/// takes no answer for the first any more. The same id may come twice all the same (RESEND twice), hence the count.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    shards: [Mutex<HashMap<u64, Taken>>; SHARDS],
    count: AtomicU64,
}

#[derive(Debug)]
struct Taken {
    interruption: Arc<Interruption>,
    holders: u32,
}

impl InFlight {
    /// Enters a request; `None` when the table is full.
    pub fn enter(&self, unique: u64) -> Option<Arc<Interruption>> {
        if self.count.fetch_add(1, Relaxed) >= MAX_IN_FLIGHT {
            self.count.fetch_sub(1, Relaxed);
            return None;
        }
        let mut shard = self.shard(unique).lock();
        let interruption = match shard.entry(unique) {
            Entry::Occupied(mut taken) => {
                taken.get_mut().holders += 1;
                Arc::clone(&taken.get().interruption)
            }
            Entry::Vacant(free) => {
                let interruption = Interruption::new();
                free.insert(Taken { interruption: Arc::clone(&interruption), holders: 1 });
                interruption
            }
        };
        Some(interruption)
    }

    /// Removes a request that is about to be answered.
    pub fn leave(&self, unique: u64) {
        let last = {
            let mut shard = self.shard(unique).lock();
            match shard.entry(unique) {
                Entry::Occupied(mut taken) if taken.get().holders > 1 => {
                    taken.get_mut().holders -= 1;
                    None
                }
                Entry::Occupied(taken) => Some(taken.remove().interruption),
                Entry::Vacant(_) => return,
            }
        };
        self.count.fetch_sub(1, Relaxed);
        if let Some(interruption) = last {
            interruption.answered();
        }
    }

    /// Finds the interruption of a request; `None` when it is not here (not yet, or not any more).
    pub fn find(&self, unique: u64) -> Option<Arc<Interruption>> {
        self.shard(unique).lock().get(&unique).map(|taken| Arc::clone(&taken.interruption))
    }

    /// Gives the number of requests in flight.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    fn shard(&self, unique: u64) -> &Mutex<HashMap<u64, Taken>> {
        // Ids go up by two; the lowest bit marks INTERRUPTs.
        let index = (unique >> 1) as usize % SHARDS;
        self.shards.get(index).expect("a remainder of the length is an index")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::UNIQUE_RESEND;

    #[test]
    fn interrupt_finds_only_what_is_in_flight() {
        let table = InFlight::default();
        assert!(table.find(2).is_none());
        let interruption = table.enter(2).expect("room");
        table.find(2).expect("in flight").interrupt();
        assert!(interruption.is_interrupted());
        table.leave(2);
        assert!(table.find(2).is_none());
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn request_sent_again_is_another_one() {
        let table = InFlight::default();
        let first = table.enter(4).expect("room");
        let again = table.enter(4 | UNIQUE_RESEND).expect("room");
        table.find(4 | UNIQUE_RESEND).expect("in flight").interrupt();
        assert!(again.is_interrupted() && !first.is_interrupted());
    }

    #[test]
    fn request_taken_twice_stays_until_both_are_answered() {
        let table = InFlight::default();
        let (first, second) = (table.enter(6).expect("room"), table.enter(6).expect("room"));
        table.leave(6);
        table.find(6).expect("still in flight").interrupt();
        assert!(first.is_interrupted() && second.is_interrupted());
        table.leave(6);
        table.leave(6);
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn full_table_turns_away_and_takes_again_after_an_answer() {
        let table = InFlight::default();
        (0..MAX_IN_FLIGHT).for_each(|id| assert!(table.enter(id * 2).is_some()));
        assert!(table.enter(1 << 40).is_none());
        table.leave(0);
        assert!(table.enter(1 << 40).is_some());
    }
}
