//! What does a read send for, and what goes with it?

use std::ops::Range;
use std::sync::Arc;

use millrace_api::ids::ContentId;
use millrace_api::index::PackIndex;
use millrace_store::Class;

use super::{Reading, Reads};
use crate::origin::window::Priority;
use crate::reads::ahead::MAX_BLOCKS_AHEAD;
use crate::reads::background::Hint;
use crate::reads::block_map::{Flight, Joined, push_slot};
use crate::reads::fetcher::{Target, Terms};
use crate::reads::plan;
use crate::reads::timing::Timing;

impl Reads {
    /// Sends for `run` (slots), which `flight` has claimed, and for what belongs to it; returns what this read's own
    /// flights bring.
    pub(super) fn send_for(
        &self,
        reading: &mut Reading<'_>,
        run: Range<u32>,
        flight: &Arc<Flight>,
    ) -> Vec<Range<u32>> {
        let (target, fetcher) = (reading.target.clone(), &self.fetcher);
        let (span, content) = (&target.object.span, target.content());
        let block = span.file.block_of(run.start).index;
        let class = self.members.class(target.object.placement(block));
        // A full store keeps nothing, and of others' blocks only what is wanted is our business.
        let extends = class == Class::Owned && fetcher.admits();
        let planned = if !extends {
            run.clone()
        } else if target.object.is_packed() {
            target.slots(&span.chunks())
        } else {
            let of_block = span.file.slots_of(block);
            plan::foreground(run.clone(), of_block)
        };
        let is_urgent = reading.priority == Priority::Foreground;
        let mut claimed = vec![run.clone()];
        {
            let mut map = fetcher.map.lock();
            for around in [planned.start..run.start.max(planned.start), run.end..planned.end.max(run.end)] {
                claimed.extend(map.claim(content, around, flight, None));
            }
        }
        claimed.sort_by_key(|run| run.start);
        let terms = Terms { priority: reading.priority, class, deadline: reading.deadline };
        let mut own = Vec::new();
        for absent in join_runs(fetcher.absent_from_store(&target, claimed, flight)) {
            // Chunks that are not kept must come in order: a reader holds them until it has sent those before.
            let in_flight =
                if extends { fetcher.metrics.flights.get().max(0) as usize } else { plan::BUSY_FLIGHTS };
            for part in plan::split(absent, in_flight) {
                let flight = {
                    let mut map = fetcher.map.lock();
                    let flight = map.flight(part.start, is_urgent);
                    map.take_over(content, part.clone(), &flight);
                    flight
                };
                own.push(part.clone());
                drop(fetcher.launch(target.clone(), part, flight, terms));
            }
        }
        // Who reads ahead in a pack asks for its other files itself, where it wants them.
        let follows = is_urgent || !target.object.is_packed();
        if extends && follows && !own.is_empty() {
            reading.behind = behind(&target, block, &planned);
        }
        own
    }

    /// Sees to it that wanted slots on other flights do not come late; returns what own flights bring sooner.
    pub(super) fn hurry(&self, reading: &Reading<'_>, joined: &Joined) -> Vec<Range<u32>> {
        if reading.priority != Priority::Foreground {
            return Vec::new();
        }
        let timing = &self.fetcher.timing;
        let mut late: Vec<Range<u32>> = Vec::new();
        for (slot, flight) in &joined.pending {
            if !flight.has_begun() {
                flight.urge();
            } else if is_late(flight, *slot, timing) {
                push_slot(&mut late, *slot);
            }
        }
        let block = |run: &Range<u32>| reading.target.object.span.file.block_of(run.start).index;
        for run in &late {
            let class = self.members.class(reading.target.object.placement(block(run)));
            let flight = {
                let mut map = self.fetcher.map.lock();
                let flight = map.flight(run.start, true);
                map.take_over(reading.target.content(), run.clone(), &flight);
                flight
            };
            self.fetcher.metrics.overtaken_chunks.inc_by(run.len() as u64);
            let terms = Terms { priority: Priority::Foreground, class, deadline: reading.deadline };
            drop(self.fetcher.launch(reading.target.clone(), run.clone(), flight, terms));
        }
        late
    }

    /// Fetches ahead of sequential reads: the next blocks of a large object, or the next packs of the version.
    pub(super) fn fetch_ahead(&self, target: &Target, wanted: &Range<u32>) {
        let (version, file) = (&target.version, target.object.file);
        // Blocks of other owners lie between two that are ours.
        let gap = 2 + 2 * self.members.current().workers.len() as u32;
        if let Some(pack) = version.view().pack_of(file) {
            let packs = version.view().totals().packs;
            let ahead = self.ahead.lock().touched(ContentId(version.id.0), pack.0, packs, gap);
            for pack in ahead.map(PackIndex) {
                if version.view().pack(pack).is_some_and(|pack| self.members.owns(pack.placement)) {
                    self.background.hint(Hint::Pack { version: version.id, pack });
                }
            }
            return;
        }
        let span = &target.object.span;
        let is_streaming = wanted.end - wanted.start >= plan::STREAMING_CHUNKS;
        if span.file.blocks() < 2 || !is_streaming {
            return;
        }
        let block = span.block_of(wanted.start).index;
        let gap = gap.max(MAX_BLOCKS_AHEAD);
        for block in self.ahead.lock().touched(target.content(), block, span.file.blocks(), gap) {
            if self.members.owns(target.object.placement(block)) {
                self.background.hint(Hint::Block { version: version.id, file, block });
            }
        }
    }
}

/// What should follow a miss: the rest of its block, or its neighbours in the pack.
fn behind(target: &Target, block: u32, planned: &Range<u32>) -> Option<Hint> {
    let (version, file) = (target.version.id, target.object.file);
    if target.object.is_packed() {
        return target.version.view().pack_of(file).map(|pack| Hint::Pack { version, pack });
    }
    (*planned != target.object.span.file.slots_of(block)).then_some(Hint::Block { version, file, block })
}

fn is_late(flight: &Flight, slot: u32, timing: &Timing) -> bool {
    let ahead = slot.saturating_sub(flight.next_slot());
    plan::deserves_own_request(ahead, timing.usual_chunk(), timing.usual_first_byte())
}

/// Joins runs that follow each other.
fn join_runs(runs: Vec<Range<u32>>) -> Vec<Range<u32>> {
    let mut joined: Vec<Range<u32>> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => joined.push(run),
        }
    }
    joined
}
