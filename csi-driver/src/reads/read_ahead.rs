//! How far ahead of a reader should its file be fetched?
//!
//! Pure: one [`ReadAhead`] per open handle sees every read and answers with the range to fetch ahead, if any. It grows
//! while reads are sequential, shrinks when they are not, and never asks for more than its limit beyond the reader.

use std::ops::Range;

/// The first window of a reader that looks sequential, bytes. Small, since most files are opened for a look.
const FIRST_WINDOW_BYTES: u64 = 1 << 20;

/// How far from the expected position a read may start and still count as sequential, bytes. The kernel splits one
/// `read()` into requests of up to 1 MiB that reach us on several threads, in any order.
const REORDER_BYTES: u64 = 4 << 20;

/// How many reads out of sequence end the read-ahead. One or two happen in sequential files too (a footer, a header).
const RANDOM_READS_TO_STOP: u32 = 3;

/// The read-ahead state of one open handle.
#[derive(Debug, Clone)]
pub struct ReadAhead {
    /// Largest window, bytes.
    limit: u64,
    /// Current window, bytes; 0 while the reader does not look sequential.
    window: u64,
    /// One past the last byte that a sequential read has asked for.
    position: u64,
    /// One past the last byte that was asked for ahead.
    ahead_to: u64,
    /// Reads out of sequence since the last sequential one.
    strays: u32,
}

impl ReadAhead {
    /// Starts for a handle that has not read yet; `limit_bytes` 0 switches read-ahead off.
    pub fn new(limit_bytes: u64) -> Self {
        Self { limit: limit_bytes, window: 0, position: 0, ahead_to: 0, strays: 0 }
    }

    /// Sees a read of `len` bytes at `offset` in a file of `size` bytes; returns the bytes to fetch ahead of the reader.
    ///
    /// The range never includes bytes that were returned before while the reader stays sequential, never goes past the
    /// file's end, and ends at most the limit beyond the read.
    pub fn observe(&mut self, offset: u64, len: u64, size: u64) -> Option<Range<u64>> {
        if self.limit == 0 || offset >= size {
            return None;
        }
        let end = offset.saturating_add(len).min(size);
        if !self.is_sequential(offset) {
            self.stray(end);
            return None;
        }
        self.strays = 0;
        let grows = end > self.position;
        self.position = self.position.max(end);
        self.window = match self.window {
            0 => FIRST_WINDOW_BYTES.min(self.limit),
            window if grows => window.saturating_mul(2).min(self.limit),
            window => window,
        };
        self.next_range(size)
    }

    /// Hears that a range was fetched only up to `end`, for want of memory: the rest is asked for again.
    pub fn cut_short(&mut self, end: u64) {
        self.ahead_to = self.ahead_to.min(end);
    }

    /// The window in use, bytes.
    pub fn window_bytes(&self) -> u64 {
        self.window
    }

    fn is_sequential(&self, offset: u64) -> bool {
        offset <= self.position.saturating_add(REORDER_BYTES)
            && offset >= self.position.saturating_sub(REORDER_BYTES)
            // A reader that started in the middle is sequential from its second read on.
            && (self.position > 0 || offset == 0)
    }

    fn stray(&mut self, end: u64) {
        self.strays += 1;
        self.window /= 2;
        if self.window < FIRST_WINDOW_BYTES || self.strays >= RANDOM_READS_TO_STOP {
            self.window = 0;
        }
        // Where the reader went is where it may go on from.
        self.position = end;
        self.ahead_to = end;
    }

    /// Asks again only when half of the window is used up, so that requests stay large.
    fn next_range(&mut self, size: u64) -> Option<Range<u64>> {
        let start = self.ahead_to.max(self.position);
        let target = self.position.saturating_add(self.window).min(size);
        let wanted = target.saturating_sub(start);
        let is_due = wanted >= self.window / 2 || (target == size && wanted > 0);
        if !is_due || wanted == 0 {
            return None;
        }
        self.ahead_to = target;
        Some(start..target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const LIMIT: u64 = 32 * MIB;

    #[test]
    fn a_sequential_reader_reaches_the_limit_and_stays_there() {
        let mut state = ReadAhead::new(LIMIT);
        let size = 1 << 30;
        let mut covered = 0;
        for offset in (0..256 * MIB).step_by(MIB as usize) {
            if let Some(range) = state.observe(offset, MIB, size) {
                assert!(range.start >= covered, "asked twice for {range:?}");
                covered = range.end;
            }
            assert!(offset < 8 * MIB || covered >= offset + LIMIT / 2, "fell behind at {offset}");
            assert!(covered <= offset + MIB + LIMIT);
        }
        assert_eq!(state.window_bytes(), LIMIT);
    }

    #[test]
    fn a_random_reader_gets_next_to_nothing_fetched_ahead() {
        let mut state = ReadAhead::new(LIMIT);
        let mut offset = 7 * MIB;
        let mut ahead = 0;
        for _ in 0..1000 {
            offset = offset.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = ((offset >> 20) % (64 << 30)) & !4095;
            ahead += state.observe(at, 4096, 64 << 30).map_or(0, |range| range.end - range.start);
        }
        // Now and then a random read lands beside the one before, and looks sequential.
        assert!(ahead <= 4 * FIRST_WINDOW_BYTES, "{ahead} bytes");
    }

    #[test]
    fn one_look_at_the_footer_does_not_end_a_sequential_run() {
        let mut state = ReadAhead::new(LIMIT);
        let size = 1 << 30;
        for i in 0..16 {
            state.observe(i * MIB, MIB, size);
        }
        assert_eq!(state.observe(size - 4096, 4096, size), None);
        assert_eq!(state.window_bytes(), LIMIT / 2);
    }

    #[test]
    fn a_reader_that_starts_in_the_middle_is_followed_from_its_second_read() {
        let mut state = ReadAhead::new(LIMIT);
        assert_eq!(state.observe(100 * MIB, MIB, 1 << 30), None);
        assert_eq!(state.observe(101 * MIB, MIB, 1 << 30), Some(102 * MIB..103 * MIB));
    }

    #[test]
    fn the_end_of_the_file_is_fetched_although_it_is_less_than_half_a_window() {
        let mut state = ReadAhead::new(LIMIT);
        let size = 20 * MIB + 1;
        let covered = (0..20).filter_map(|i| state.observe(i * MIB, MIB, size)).map(|r| r.end).max();
        assert_eq!(covered, Some(size));
    }

    #[test]
    fn read_ahead_can_be_switched_off() {
        assert_eq!(ReadAhead::new(0).observe(0, MIB, 1 << 30), None);
    }

    proptest! {
        #[test]
        fn ranges_stay_inside_file_and_limit(
            reads in prop::collection::vec((0u64..200 * MIB, 1u64..=MIB), 1..200),
            size in 1u64..200 * MIB,
        ) {
            let mut state = ReadAhead::new(LIMIT);
            for (offset, len) in reads {
                if let Some(range) = state.observe(offset, len, size) {
                    prop_assert!(range.start < range.end && range.end <= size);
                    prop_assert!(range.end <= state.position + LIMIT);
                }
            }
        }

        /// A simulation: requests of one sequential reader arrive shuffled within a small distance, as from the kernel's
        /// read-ahead on several threads; the reader must still be followed to the limit.
        #[test]
        fn reordered_requests_still_count_as_sequential(
            groups in prop::collection::vec(Just([0u64, 1, 2]).prop_shuffle(), 20),
        ) {
            let mut state = ReadAhead::new(LIMIT);
            state.observe(0, MIB, 1 << 30);
            for (i, group) in groups.into_iter().enumerate() {
                for at in group {
                    state.observe((1 + 3 * i as u64 + at) * MIB, MIB, 1 << 30);
                }
            }
            prop_assert_eq!(state.window_bytes(), LIMIT);
        }
    }
}
