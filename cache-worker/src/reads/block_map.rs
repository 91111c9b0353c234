//! Which chunks are on their way from the origin, and who waits for them?
//!
//! A slot of a store file is *absent* (not in the map: the store has it, or nobody), *pending* (one flight brings it) or
//! *ready* (in memory, being written to the store). Everything here is values under the caller's lock: no I/O, no clock.
//!
//! ```text
//! absent --claim--> pending --arrive--> ready --settle--> absent (in the store, or not kept)
//!                      |  ^
//!                      |  +--take_over (another flight brings it sooner)
//!                      +--release (was in the store), fail (told to those who wait)--> absent
//! ```

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use millrace_api::ids::ContentId;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

/// One chunk in memory, shared by those who wait for it and the writer of the store.
#[derive(Debug)]
pub struct Chunk {
    /// CRC32C of the bytes, taken as they arrived from the origin.
    pub crc: u32,
    bytes: Mutex<Option<Bytes>>,
}

impl Chunk {
    /// Wraps bytes and their CRC32C.
    pub fn new(bytes: Bytes, crc: u32) -> Self {
        Self { crc, bytes: Mutex::new(Some(bytes)) }
    }

    /// The bytes; `None` once the store has them, so that a slow reader holds no memory.
    pub fn bytes(&self) -> Option<Bytes> {
        self.bytes.lock().clone()
    }

    /// Forgets the bytes: the store has them.
    pub fn forget(&self) {
        self.bytes.lock().take();
    }
}

/// One request to the origin, as those who wait for its chunks see it.
#[derive(Debug)]
pub struct Flight {
    id: u64,
    next_slot: AtomicU32,
    has_begun: AtomicBool,
    is_urgent: AtomicBool,
    urged: Notify,
}

impl Flight {
    /// A flight that will bring slots from `first_slot` on; `id` is unique in the process. `is_urgent`: a reader waits.
    pub fn new(id: u64, first_slot: u32, is_urgent: bool) -> Self {
        Self {
            id,
            next_slot: AtomicU32::new(first_slot),
            has_begun: AtomicBool::new(false),
            is_urgent: AtomicBool::new(is_urgent),
            urged: Notify::new(),
        }
    }

    /// Records that all slots before `slot` have arrived, and so that the answer has begun.
    pub fn advance(&self, slot: u32) {
        self.has_begun.store(true, Ordering::Relaxed);
        self.next_slot.store(slot, Ordering::Relaxed);
    }

    /// The next slot that will arrive.
    pub fn next_slot(&self) -> u32 {
        self.next_slot.load(Ordering::Relaxed)
    }

    /// Whether anything of the answer has arrived.
    pub fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Whether a reader waits for it.
    pub fn is_urgent(&self) -> bool {
        self.is_urgent.load(Ordering::Relaxed)
    }

    /// Says that a reader now waits for it.
    pub fn urge(&self) {
        if !self.is_urgent.swap(true, Ordering::Relaxed) {
            self.urged.notify_one();
        }
    }

    /// Waits until a reader waits for it.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn urged(&self) {
        self.urged.notified().await;
    }
}

/// What becomes of a slot that somebody waits for.
#[derive(Debug)]
pub enum Arrival<E> {
    /// It arrived.
    Chunk(Arc<Chunk>),
    /// It is in the store already.
    Stored,
    /// The flight failed.
    Failed(Arc<E>),
}

impl<E> Clone for Arrival<E> {
    fn clone(&self) -> Self {
        match self {
            Self::Chunk(chunk) => Self::Chunk(Arc::clone(chunk)),
            Self::Stored => Self::Stored,
            Self::Failed(error) => Self::Failed(Arc::clone(error)),
        }
    }
}

/// Where a waiting reader hears of its slots; bounded by the number of slots it asked for, so it never fills.
pub type Mailbox<E> = mpsc::Sender<(u32, Arrival<E>)>;

#[derive(Debug)]
enum Slot<E> {
    Pending { flight: Arc<Flight>, waiters: Vec<Mailbox<E>> },
    Ready(Arc<Chunk>),
}

/// The slots that are pending or ready.
///
/// Bounded by the flights: each claims at most one request's worth of chunks, and flights are limited by their callers.
#[derive(Debug)]
pub struct BlockMap<E> {
    slots: HashMap<(ContentId, u32), Slot<E>>,
    last_flight: u64,
}

impl<E> Default for BlockMap<E> {
    fn default() -> Self {
        Self { slots: HashMap::new(), last_flight: 0 }
    }
}

/// What a reader finds when it joins.
#[derive(Debug, Default)]
pub struct Joined {
    /// Runs that nobody brings: the caller looks in the store, then claims and fetches them.
    pub absent: Vec<Range<u32>>,
    /// Slots that another flight brings, with that flight.
    pub pending: Vec<(u32, Arc<Flight>)>,
}

impl<E> BlockMap<E> {
    /// Begins a flight whose first slot is `first_slot`.
    pub fn flight(&mut self, first_slot: u32, is_urgent: bool) -> Arc<Flight> {
        self.last_flight += 1;
        Arc::new(Flight::new(self.last_flight, first_slot, is_urgent))
    }

    /// Tells `mailbox` of every slot of `wanted` that is ready now or arrives later; says which are pending or absent.
    pub fn join(&mut self, content: ContentId, wanted: Range<u32>, mailbox: &Mailbox<E>) -> Joined {
        let mut joined = Joined::default();
        for slot in wanted {
            match self.slots.get_mut(&(content, slot)) {
                None => push_slot(&mut joined.absent, slot),
                Some(Slot::Ready(chunk)) => tell(mailbox, slot, Arrival::Chunk(Arc::clone(chunk))),
                Some(Slot::Pending { flight, waiters }) => {
                    waiters.push(mailbox.clone());
                    joined.pending.push((slot, Arc::clone(flight)));
                }
            }
        }
        joined
    }

    /// Makes the absent slots of `wanted` pending for `flight`, with `mailbox` as first waiter; returns them as runs.
    ///
    /// The caller looks in the store *after* this and releases what it finds there: a slot leaves the map only once it
    /// is in the store, so nothing is fetched twice.
    pub fn claim(
        &mut self,
        content: ContentId,
        wanted: Range<u32>,
        flight: &Arc<Flight>,
        mailbox: Option<&Mailbox<E>>,
    ) -> Vec<Range<u32>> {
        let mut claimed = Vec::new();
        for slot in wanted {
            self.slots.entry((content, slot)).or_insert_with(|| {
                push_slot(&mut claimed, slot);
                Slot::Pending { flight: Arc::clone(flight), waiters: mailbox.into_iter().cloned().collect() }
            });
        }
        claimed
    }

    /// Gives the pending slots of `wanted` to a flight that brings them sooner; those who wait go on waiting.
    pub fn take_over(&mut self, content: ContentId, wanted: Range<u32>, by: &Arc<Flight>) {
        for slot in wanted {
            if let Some(Slot::Pending { flight, .. }) = self.slots.get_mut(&(content, slot)) {
                *flight = Arc::clone(by);
            }
        }
    }

    /// Says of the flights that are to bring slots of `wanted` and have not begun that a reader waits for them.
    pub fn urge(&self, content: ContentId, wanted: Range<u32>) {
        for slot in wanted {
            if let Some(Slot::Pending { flight, .. }) = self.slots.get(&(content, slot))
                && !flight.has_begun()
            {
                flight.urge();
            }
        }
    }

    /// Records a chunk's arrival and tells those who wait; false where another flight brought it before.
    pub fn arrive(&mut self, content: ContentId, slot: u32, chunk: &Arc<Chunk>) -> bool {
        let Some(entry) = self.slots.get_mut(&(content, slot)) else { return false };
        let Slot::Pending { waiters, .. } = entry else { return false };
        for waiter in waiters.drain(..) {
            tell(&waiter, slot, Arrival::Chunk(Arc::clone(chunk)));
        }
        *entry = Slot::Ready(Arc::clone(chunk));
        true
    }

    /// Ends the life of ready slots in the map: the store has them, or would not keep them.
    pub fn settle(&mut self, content: ContentId, slots: Range<u32>) {
        for slot in slots {
            if let Some(Slot::Ready(_)) = self.slots.get(&(content, slot)) {
                self.slots.remove(&(content, slot));
            }
        }
    }

    /// Gives back claimed slots that turned out to be in the store.
    pub fn release(&mut self, content: ContentId, slots: Range<u32>, flight: &Flight) {
        self.end(content, slots, flight, &Arrival::Stored);
    }

    /// Ends the pending slots of a failed flight and tells those who wait why.
    pub fn fail(&mut self, content: ContentId, slots: Range<u32>, flight: &Flight, error: &Arc<E>) {
        self.end(content, slots, flight, &Arrival::Failed(Arc::clone(error)));
    }

    /// Whether a flight is to bring a slot.
    pub fn is_pending(&self, content: ContentId, slot: u32) -> bool {
        matches!(self.slots.get(&(content, slot)), Some(Slot::Pending { .. }))
    }

    /// How many slots are pending or ready.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether nothing is pending or ready.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn end(&mut self, content: ContentId, slots: Range<u32>, flight: &Flight, arrival: &Arrival<E>) {
        for slot in slots {
            let key = (content, slot);
            match self.slots.get(&key) {
                Some(Slot::Pending { flight: owner, .. }) if owner.id == flight.id => {}
                _ => continue,
            }
            if let Some(Slot::Pending { waiters, .. }) = self.slots.remove(&key) {
                for waiter in waiters {
                    tell(&waiter, slot, arrival.clone());
                }
            }
        }
    }
}

fn tell<E>(mailbox: &Mailbox<E>, slot: u32, arrival: Arrival<E>) {
    // Closed: the reader is gone. Full: cannot be, a mailbox has room for every slot it was registered for.
    let _ = mailbox.try_send((slot, arrival));
}

/// Adds `slot` to the last run where it continues it.
pub fn push_slot(runs: &mut Vec<Range<u32>>, slot: u32) {
    match runs.last_mut() {
        Some(run) if run.end == slot => run.end += 1,
        _ => runs.push(slot..slot + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const A: ContentId = ContentId([1; 16]);

    fn chunk(text: &'static str) -> Arc<Chunk> {
        Arc::new(Chunk::new(Bytes::from_static(text.as_bytes()), 7))
    }

    #[test]
    fn one_flight_serves_all_who_wait() {
        let mut map: BlockMap<String> = BlockMap::default();
        let (first, mut first_mail) = mpsc::channel(4);
        let (second, mut second_mail) = mpsc::channel(4);
        let flight = map.flight(0, true);
        assert_eq!(map.join(A, 0..3, &first).absent, vec![0..3]);
        assert_eq!(map.claim(A, 0..3, &flight, Some(&first)), vec![0..3]);
        let joined = map.join(A, 1..3, &second);
        assert!(joined.absent.is_empty());
        assert_eq!(joined.pending.len(), 2);
        assert!(map.arrive(A, 1, &chunk("b")));
        for mail in [&mut first_mail, &mut second_mail] {
            assert!(matches!(mail.try_recv(), Ok((1, Arrival::Chunk(_)))));
        }
        map.fail(A, 0..3, &flight, &Arc::new("reset".into()));
        assert!(matches!(first_mail.try_recv(), Ok((0, Arrival::Failed(_)))));
        assert!(matches!(second_mail.try_recv(), Ok((2, Arrival::Failed(_)))));
        map.settle(A, 0..3);
        assert!(map.is_empty());
    }

    #[test]
    fn a_sooner_flight_takes_a_slot_over_and_the_late_one_is_ignored() {
        let mut map: BlockMap<String> = BlockMap::default();
        let (mailbox, mut mail) = mpsc::channel(8);
        let (slow, fast) = (map.flight(0, true), map.flight(5, true));
        map.claim(A, 0..8, &slow, None);
        map.join(A, 5..6, &mailbox);
        map.take_over(A, 5..6, &fast);
        map.fail(A, 0..8, &slow, &Arc::new("gone".into()));
        assert!(mail.try_recv().is_err(), "the slow flight's end is not this slot's");
        assert!(map.arrive(A, 5, &chunk("f")));
        assert!(!map.arrive(A, 5, &chunk("f")));
        assert!(matches!(mail.try_recv(), Ok((5, Arrival::Chunk(_)))));
    }

    #[test]
    fn a_slow_reader_holds_no_memory_once_the_store_has_the_chunk() {
        let held = chunk("x");
        let reader = Arc::clone(&held);
        assert!(reader.bytes().is_some());
        held.forget();
        assert!(reader.bytes().is_none());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Join(u32, u32),
        Claim(u32, u32),
        TakeOver(u32, u32),
        Arrive(u32),
        Settle(u32, u32),
        Release(usize, u32, u32),
        Fail(usize, u32, u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let range = || (0u32..16, 0u32..8);
        let step = prop_oneof![
            range().prop_map(|(a, n)| Step::Join(a, a + n)),
            range().prop_map(|(a, n)| Step::Claim(a, a + n)),
            range().prop_map(|(a, n)| Step::TakeOver(a, a + n)),
            (0u32..24).prop_map(Step::Arrive),
            range().prop_map(|(a, n)| Step::Settle(a, a + n)),
            (0usize..8, range()).prop_map(|(f, (a, n))| Step::Release(f, a, a + n)),
            (0usize..8, range()).prop_map(|(f, (a, n))| Step::Fail(f, a, a + n)),
        ];
        prop::collection::vec(step, 1..80)
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Model {
        Pending { flight: usize, waiting: usize },
        Ready,
    }

    proptest! {
        /// Every registration is answered exactly once, and slots are pending for exactly one flight.
        #[test]
        fn the_map_does_what_its_model_does(steps in steps()) {
            let mut map: BlockMap<String> = BlockMap::default();
            let mut model: BTreeMap<u32, Model> = BTreeMap::new();
            let mut flights = Vec::new();
            let (mailbox, mut mail) = mpsc::channel(4096);
            let (mut registered, mut answered) = (0usize, 0usize);
            for step in steps {
                match step {
                    Step::Join(a, b) => {
                        let joined = map.join(A, a..b, &mailbox);
                        let absent: Vec<u32> = joined.absent.iter().cloned().flatten().collect();
                        let expected: Vec<u32> = (a..b).filter(|s| !model.contains_key(s)).collect();
                        prop_assert_eq!(absent, expected);
                        for slot in a..b {
                            match model.get_mut(&slot) {
                                Some(Model::Ready) => { registered += 1; answered += 1; }
                                Some(Model::Pending { waiting, .. }) => { registered += 1; *waiting += 1; }
                                None => {}
                            }
                        }
                    }
                    Step::Claim(a, b) => {
                        let flight = map.flight(a, false);
                        let claimed: Vec<u32> =
                            map.claim(A, a..b, &flight, Some(&mailbox)).into_iter().flatten().collect();
                        let expected: Vec<u32> = (a..b).filter(|s| !model.contains_key(s)).collect();
                        prop_assert_eq!(&claimed, &expected);
                        for slot in claimed {
                            registered += 1;
                            model.insert(slot, Model::Pending { flight: flights.len(), waiting: 1 });
                        }
                        flights.push(flight);
                    }
                    Step::TakeOver(a, b) => {
                        let by = map.flight(a, false);
                        map.take_over(A, a..b, &by);
                        for slot in a..b {
                            if let Some(Model::Pending { flight, .. }) = model.get_mut(&slot) { *flight = flights.len(); }
                        }
                        flights.push(by);
                    }
                    Step::Arrive(slot) => {
                        let first = map.arrive(A, slot, &chunk("c"));
                        if let Some(Model::Pending { waiting, .. }) = model.get(&slot).copied() {
                            prop_assert!(first);
                            answered += waiting;
                            model.insert(slot, Model::Ready);
                        } else {
                            prop_assert!(!first);
                        }
                    }
                    Step::Settle(a, b) => {
                        map.settle(A, a..b);
                        model.retain(|s, m| !((a..b).contains(s) && *m == Model::Ready));
                    }
                    Step::Release(f, a, b) | Step::Fail(f, a, b) => {
                        let Some(flight) = flights.get(f) else { continue };
                        if matches!(step, Step::Release(..)) {
                            map.release(A, a..b, flight);
                        } else {
                            map.fail(A, a..b, flight, &Arc::new(String::new()));
                        }
                        model.retain(|s, m| match m {
                            Model::Pending { flight, waiting } if *flight == f && (a..b).contains(s) => {
                                answered += *waiting;
                                false
                            }
                            _ => true,
                        });
                    }
                }
                prop_assert_eq!(map.len(), model.len());
            }
            let mut heard = 0;
            while mail.try_recv().is_ok() { heard += 1; }
            prop_assert_eq!(heard, answered);
            let open: usize = model.values().map(|m| match m { Model::Pending { waiting, .. } => *waiting, Model::Ready => 0 }).sum();
            prop_assert_eq!(registered, answered + open);
        }
    }
}
