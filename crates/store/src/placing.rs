//! Which tier takes a write?
//!
//! The fastest that has room. Nothing goes anywhere as long as a tier has room; when none has, what is spare goes, from
//! the fastest tier on; when there is nothing spare either, and the store is LRU, the block goes that was not read for
//! the longest time in any tier. So the tiers hold together what their quotas add up to.
//!
//! Blocks are not moved to a slower tier to make room in a faster one: it would write each byte twice, and what is
//! read again and again from a disk is in the page cache anyway.

use millrace_api::block::ChunkPlace;

use crate::config::Eviction;
use crate::evict::Yield;
use crate::stats::NotKept;
use crate::tier::Tier;
use crate::write::Run;

/// Keeps the chunks of a run that no tier has.
pub(crate) fn place(tiers: &[Tier], run: &Run<'_>) -> Result<(), NotKept> {
    let places = run.places()?;
    match tiers {
        [] => Err(NotKept::Disabled),
        [only] => only.write(run, &places, Yield::LeastRecent),
        _ if tiers.iter().any(|tier| tier.has(run, &places)) => Ok(()),
        _ => place_in_one_of(tiers, run, &places),
    }
}

fn place_in_one_of(tiers: &[Tier], run: &Run<'_>, places: &[ChunkPlace]) -> Result<(), NotKept> {
    let mut refused = NotKept::Disabled;
    // Tiers whose file system turned out full just now: left alone for a while, unless room is made in them.
    let mut filled_up = Vec::new();
    for yields in [Yield::Nothing, Yield::Spare, Yield::LeastRecent] {
        filled_up.drain(..).for_each(Tier::end_pause);
        for tier in in_order(tiers, yields) {
            let was_paused = tier.paused().is_some();
            match tier.write(run, places, yields) {
                Ok(()) => return Ok(()),
                Err(NotKept::Disabled) => {}
                Err(reason) => {
                    refused = reason;
                    if reason == NotKept::NoSpace && !was_paused {
                        filled_up.push(tier);
                    }
                }
            }
        }
    }
    Err(refused)
}

/// The tiers to try: from the fastest on, or from the one with the least recent block on.
fn in_order(tiers: &[Tier], yields: Yield) -> Vec<&Tier> {
    if yields != Yield::LeastRecent {
        return tiers.iter().collect();
    }
    let least_recent = |tier: &'_ Tier| match tier.eviction {
        // Its spare blocks were looked for already.
        Eviction::Never => None,
        Eviction::Lru => tier.least_recent(),
    };
    let mut found: Vec<_> = tiers.iter().filter_map(|tier| Some((least_recent(tier)?, tier))).collect();
    found.sort_by_key(|(stamp, _)| *stamp);
    found.into_iter().map(|(_, tier)| tier).collect()
}
