//! Which ranges of an object are asked for, in which requests?
//!
//! Pure: slots and counts in, ranges out. All ranges are slots of one store file and lie in one object.

use std::ops::Range;
use std::time::Duration;

use millrace_api::block::CHUNK_BYTES;

/// The most one request to the origin asks for, in chunks: 16 MiB, where the first byte's latency is a small part of
/// the transfer even at 30 ms and 80 MB/s a stream (13 %).
pub const MAX_REQUEST_CHUNKS: u32 = (16 << 20) / CHUNK_BYTES as u32;

/// A read of at least this many chunks (512 KiB) comes from a sequential reader's read-ahead: the rest of the block is
/// asked for in the same request. Smaller reads ask for what they want only; the rest follows behind them.
pub const STREAMING_CHUNKS: u32 = 8;

/// No part of a split request is smaller than this (2 MiB): below it the request's own cost shows.
pub const MIN_PART_CHUNKS: u32 = (2 << 20) / CHUNK_BYTES as u32;

/// With this many requests in flight another one gains nothing from being split.
pub const BUSY_FLIGHTS: usize = 8;

/// What a reader's miss asks the origin for at once: the wanted slots, and for a streaming read all that follows in
/// the block, so that one request brings both.
///
/// `wanted` lies in `block`, both in slots of the object.
pub fn foreground(wanted: Range<u32>, block: Range<u32>) -> Range<u32> {
    let is_streaming = wanted.end - wanted.start >= STREAMING_CHUNKS.min(block.end - block.start);
    let end = if is_streaming { block.end.max(wanted.end) } else { wanted.end };
    wanted.start..end.min(wanted.start + MAX_REQUEST_CHUNKS)
}

/// Cuts a run into parts that are asked for side by side, so that a single reader fills the origin's bandwidth.
///
/// `in_flight` is the number of requests under way. The parts are in order and cover the run.
pub fn split(run: Range<u32>, in_flight: usize) -> Vec<Range<u32>> {
    let chunks = run.end - run.start;
    let most = (chunks / MIN_PART_CHUNKS).max(1) as usize;
    let idle = BUSY_FLIGHTS.saturating_sub(in_flight).max(1);
    let parts = idle.min(most).min(4) as u32;
    let size = chunks.div_ceil(parts).max(1);
    let mut ranges: Vec<Range<u32>> = Vec::new();
    let mut start = run.start;
    while start < run.end {
        let end = (start + size.min(MAX_REQUEST_CHUNKS)).min(run.end);
        ranges.push(start..end);
        start = end;
    }
    ranges
}

/// Whether a wanted slot that a flight will bring late deserves a request of its own.
///
/// `ahead` is how many chunks come before it (a mebibyte at least: less is always soon there), `chunk_time` the time the origin takes for one chunk of a stream, and
/// `first_byte` the usual time to the first byte of a new request. Twice that, and 20 ms at least, since the chunk is
/// then paid for twice.
pub fn deserves_own_request(ahead: u32, chunk_time: Duration, first_byte: Duration) -> bool {
    let wait = chunk_time.saturating_mul(ahead);
    ahead >= 2 * STREAMING_CHUNKS && wait > (first_byte * 2).max(Duration::from_millis(20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_small_read_asks_for_what_it_wants_and_a_large_one_for_the_rest_of_the_block() {
        assert_eq!(foreground(40..41, 0..128), 40..41);
        assert_eq!(foreground(16..32, 0..128), 16..128);
        assert_eq!(foreground(0..3, 0..3), 0..3);
        assert_eq!(foreground(0..16, 0..1024), 0..MAX_REQUEST_CHUNKS);
    }

    #[test]
    fn a_lone_request_is_split_and_one_among_many_is_not() {
        assert_eq!(split(0..128, 0), vec![0..32, 32..64, 64..96, 96..128]);
        assert_eq!(split(0..128, 6), vec![0..64, 64..128]);
        assert_eq!(split(0..128, 40), vec![0..128]);
        assert_eq!(split(5..30, 0), vec![5..30]);
    }

    #[test]
    fn a_chunk_far_ahead_of_a_slow_stream_gets_its_own_request() {
        let (chunk, first_byte) = (Duration::from_micros(800), Duration::from_millis(30));
        assert!(deserves_own_request(100, chunk, first_byte));
        assert!(!deserves_own_request(50, chunk, first_byte));
        assert!(!deserves_own_request(15, Duration::from_secs(1), first_byte));
        assert!(!deserves_own_request(120, Duration::from_micros(60), Duration::from_millis(1)));
    }

    proptest! {
        #[test]
        fn parts_cover_the_run_in_order_and_keep_the_limit(start in 0u32..1000, len in 1u32..2000, flights in 0usize..20) {
            let parts = split(start..start + len, flights);
            prop_assert_eq!(parts[0].start, start);
            prop_assert_eq!(parts[parts.len() - 1].end, start + len);
            prop_assert!(parts.windows(2).all(|w| w[0].end == w[1].start));
            prop_assert!(parts.iter().all(|p| p.end - p.start <= MAX_REQUEST_CHUNKS));
        }
    }
}
