//! How far has one object's read come, and what may still be tried for it?
//!
//! Pure: decides from what it is told; [`super::reading`] acts.

use std::ops::Range;
use std::sync::Arc;

use millrace_api::wire::MAX_READ_CHUNKS;

use super::{ReadError, Want};

/// One want on its way.
#[derive(Debug)]
pub(super) struct Progress {
    pub want: Want,
    /// Bit `i`: chunk `want.chunks.start + i` is missing.
    missing: Vec<u64>,
    left: u32,
    /// Workers that could not answer in this round.
    tried: Vec<Arc<str>>,
    /// Workers that have sent a bad chunk: they are asked once more, to check theirs.
    sent_bad: Vec<Arc<str>>,
    check_at: Option<Arc<str>>,
    /// What a worker said that waiting does not change.
    refusal: Option<ReadError>,
    /// Whether something was in the way this round that may pass.
    may_pass: bool,
    /// What was last wrong.
    pub trouble: Option<String>,
    pub is_done: bool,
}

impl Progress {
    /// A want whose chunks past the object's end are left out.
    pub(super) fn new(mut want: Want) -> Self {
        want.chunks.end = want.chunks.end.min(want.span.chunks().end);
        want.chunks.start = want.chunks.start.min(want.chunks.end);
        let left = want.chunks.end - want.chunks.start;
        let mut missing = vec![u64::MAX; left.div_ceil(64) as usize];
        if let Some(last) = missing.last_mut()
            && !left.is_multiple_of(64)
        {
            *last = (1 << (left % 64)) - 1;
        }
        Self {
            want,
            missing,
            left,
            tried: Vec::new(),
            sent_bad: Vec::new(),
            check_at: None,
            refusal: None,
            may_pass: false,
            trouble: None,
            is_done: left == 0,
        }
    }

    /// How many chunks are missing.
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// What to ask for next: from the first to the last missing chunk, as much as one request may hold.
    pub(super) fn missing(&self) -> Range<u32> {
        let words = self.missing.iter().enumerate();
        let first = words.clone().find(|(_, word)| **word != 0);
        let last = words.rev().find(|(_, word)| **word != 0);
        let (Some((first, low)), Some((last, high))) = (first, last) else {
            return self.want.chunks.end..self.want.chunks.end;
        };
        let start = self.want.chunks.start + first as u32 * 64 + low.trailing_zeros();
        let end = self.want.chunks.start + last as u32 * 64 + 64 - high.leading_zeros();
        start..end.min(start + MAX_READ_CHUNKS)
    }

    /// Notes a good chunk; `false` where it was not missing.
    pub(super) fn take(&mut self, chunk: u32) -> bool {
        let Some(index) = chunk.checked_sub(self.want.chunks.start) else { return false };
        let Some(word) = self.missing.get_mut(index as usize / 64) else { return false };
        let bit = 1 << (index % 64);
        let was_missing = *word & bit != 0;
        *word &= !bit;
        self.left -= u32::from(was_missing);
        was_missing
    }

    /// Notes a chunk that does not fit its CRC or length: the worker is asked to check its copy, then the next.
    pub(super) fn note_bad(&mut self, worker: &Arc<str>, error: ReadError) {
        self.trouble = Some(error.to_string());
        if self.sent_bad.contains(worker) {
            self.check_at = None;
            self.note_refusal(worker, error);
        } else {
            self.sent_bad.push(Arc::clone(worker));
            self.check_at = Some(Arc::clone(worker));
        }
    }

    /// Notes that a worker will not give the chunks, whatever is waited for.
    pub(super) fn note_refusal(&mut self, worker: &Arc<str>, error: ReadError) {
        self.trouble = Some(error.to_string());
        self.refusal = Some(error);
        self.skip(worker);
    }

    /// Notes that a worker cannot give the chunks now.
    pub(super) fn note_passing(&mut self, worker: &Arc<str>, trouble: String) {
        self.trouble = Some(trouble);
        self.may_pass = true;
        self.skip(worker);
    }

    /// The worker that should check its copy of a bad chunk.
    pub(super) fn check_at(&self) -> Option<&Arc<str>> {
        self.check_at.as_ref()
    }

    pub(super) fn was_tried(&self, worker: &str) -> bool {
        self.tried.iter().any(|tried| &**tried == worker)
    }

    /// Ends a round in which no worker is left to ask: `Some` is the end of the read, `None` a new round.
    pub(super) fn end_round(&mut self) -> Option<ReadError> {
        self.tried.clear();
        let refusal = self.refusal.take();
        if std::mem::take(&mut self.may_pass) { None } else { refusal }
    }

    fn skip(&mut self, worker: &Arc<str>) {
        if self.check_at.as_ref() == Some(worker) {
            self.check_at = None;
        }
        if !self.was_tried(worker) {
            self.tried.push(Arc::clone(worker));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_api::block::{BlockSize, Span};
    use millrace_api::ids::{ContentId, VersionId};
    use millrace_api::placement::PlacementKey;
    use millrace_api::wire::ErrorCode;

    fn progress(chunks: Range<u32>) -> Progress {
        let span = Span::of_large(ContentId([1; 16]), 5000 * 65536 + 1, BlockSize::default());
        Progress::new(Want { file: 1, span, placement: PlacementKey(1), chunks })
    }

    fn refusal() -> ReadError {
        let (version, code) = (VersionId([0; 16]), ErrorCode::OriginUnavailable);
        ReadError::Refused { version, file: 1, worker: "w".into(), code, message: String::new() }
    }

    #[test]
    fn the_missing_range_shrinks_from_both_ends() {
        let mut progress = progress(10..210);
        assert_eq!((progress.missing(), progress.left()), (10..210, 200));
        assert!(progress.take(10) && progress.take(209) && progress.take(100));
        assert!(!progress.take(100) && !progress.take(9) && !progress.take(210) && !progress.take(5000));
        assert_eq!((progress.missing(), progress.left()), (11..209, 197));
        (11..209).for_each(|chunk| {
            progress.take(chunk);
        });
        assert_eq!((progress.missing().len(), progress.left()), (0, 0));
    }

    #[test]
    fn a_want_past_the_end_is_cut_and_a_long_one_asked_in_parts() {
        assert!(progress(6000..7000).is_done);
        assert_eq!(progress(4999..7000).missing(), 4999..5001);
        assert_eq!(progress(0..5001).missing(), 0..1024);
    }

    #[test]
    fn a_worker_that_sent_a_bad_chunk_checks_once_and_is_then_gone_round() {
        let mut progress = progress(0..1);
        let worker: Arc<str> = "w".into();
        progress.note_bad(&worker, refusal());
        assert_eq!(progress.check_at(), Some(&worker));
        assert!(!progress.was_tried("w"));
        progress.note_bad(&worker, refusal());
        assert_eq!(progress.check_at(), None);
        assert!(progress.was_tried("w"));
        assert!(progress.end_round().is_some(), "nothing else was tried");
    }

    #[test]
    fn a_round_with_passing_trouble_is_followed_by_another() {
        let mut progress = progress(0..1);
        progress.note_refusal(&"a".into(), refusal());
        progress.note_passing(&"b".into(), "dead".into());
        assert!(progress.end_round().is_none());
        assert!(!progress.was_tried("a") && !progress.was_tried("b"));
        progress.note_refusal(&"a".into(), refusal());
        assert!(progress.end_round().is_some());
    }
}
