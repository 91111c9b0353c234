//! Which part of the keys does each lister take, and has the server answered in order?
//!
//! The keys are a chain of ranges, each above one cut and up to the next. A lister walks one range from page to page; an
//! idle one takes over the far parts of a range that is still being walked. A server that gives keys out of order would
//! make that lose keys, so order is checked within pages, from page to page, and at each seam between two ranges: the first
//! key beyond a range must be the first one that the next range was given.

use super::split::{Alphabet, cuts};
use crate::origin::Listed;

/// Only a range that gave this many pages since it was last cut is cut again: there is likely more where they came from.
const PAGES_BEFORE_CUT: usize = 1;
/// At most this many ranges: fifty million keys make some five hundred.
const MAX_RANGES: usize = 4096;

/// A range's place on the board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RangeId(usize);

/// Says that the server does not list in the order of the keys' bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server does not list keys in ascending order")]
pub(super) struct OutOfOrder;

/// All ranges of one listing.
#[derive(Debug)]
pub(super) struct Board {
    ranges: Vec<Range>,
    alphabet: Alphabet,
    fixed: usize,
}

#[derive(Debug)]
struct Range {
    /// Keys of the range are above this; `None` for the first range.
    start: Option<String>,
    /// The last key that was listed.
    cursor: Option<Vec<u8>>,
    /// Keys of the range are not above this; `None` for the last range.
    until: Option<String>,
    state: State,
    pages_since_cut: usize,
    /// The first key that the server gave behind `start`, in the range or beyond; `None` inside if there was none.
    first: Option<Option<Vec<u8>>>,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Walking,
    /// Ended, and what the server gave next.
    Ended(Option<Vec<u8>>),
}

/// What to do after a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// How many objects of the page are in the range.
    pub keep: usize,
    /// Whether the range has ended.
    pub is_end: bool,
}

impl Board {
    /// Starts with one range of all keys that begin with `prefix`.
    pub(super) fn new(prefix: &str) -> Self {
        let all = Range::above(None, None);
        Self { ranges: vec![all], alphabet: Alphabet::default(), fixed: prefix.len() }
    }

    /// A range to walk, and the key it begins behind; cuts the most promising one in up to `idle` more where none waits.
    pub(super) fn take(&mut self, idle: usize) -> Option<(RangeId, Option<String>)> {
        if !self.ranges.iter().any(|range| range.state == State::Waiting) {
            self.cut(idle);
        }
        let position = self.ranges.iter().position(|range| range.state == State::Waiting)?;
        self.ranges[position].state = State::Walking;
        Some((RangeId(position), self.ranges[position].start.clone()))
    }

    /// Whether all ranges have ended.
    pub(super) fn is_done(&self) -> bool {
        self.ranges.iter().all(|range| matches!(range.state, State::Ended(_)))
    }

    /// Takes note of a page.
    ///
    /// # Errors
    ///
    /// A key is not above the one before it.
    pub(super) fn page(
        &mut self,
        id: RangeId,
        objects: &[Listed],
        is_last: bool,
    ) -> Result<Step, OutOfOrder> {
        let range = &mut self.ranges[id.0];
        let mut last = range.cursor.as_deref().or(range.start.as_ref().map(|start| start.as_bytes()));
        for object in objects {
            if last.is_some_and(|last| last >= object.key.as_slice()) {
                return Err(OutOfOrder);
            }
            last = Some(&object.key);
        }
        // Each eighth: characters repeat.
        objects.iter().step_by(8).for_each(|object| self.alphabet.learn(&object.key));
        range.first.get_or_insert_with(|| objects.first().map(|object| object.key.clone()));
        let keep = match &range.until {
            None => objects.len(),
            Some(until) => objects.partition_point(|object| object.key.as_slice() <= until.as_bytes()),
        };
        let is_end = is_last || keep < objects.len();
        if is_end {
            range.state = State::Ended(objects.get(keep).map(|object| object.key.clone()));
        } else if let Some(object) = objects.last() {
            range.cursor = Some(object.key.clone());
            range.pages_since_cut += 1;
        }
        Ok(Step { keep, is_end })
    }

    /// Compares what lies at the seams, once all is done.
    ///
    /// # Errors
    ///
    /// Two neighbouring ranges were given different keys at their seam. (That can also be an object that was created or
    /// deleted between the two requests; listing again is right in that case too.)
    pub(super) fn check_seams(&self) -> Result<(), OutOfOrder> {
        let mut chain: Vec<&Range> = self.ranges.iter().collect();
        chain.sort_by(|a, b| a.start.cmp(&b.start));
        let is_sound = chain.windows(2).all(|pair| match (&pair[0].state, &pair[1].first) {
            (State::Ended(next), Some(first)) => next == first,
            _ => false,
        });
        if is_sound { Ok(()) } else { Err(OutOfOrder) }
    }

    fn cut(&mut self, idle: usize) {
        let idle = idle.min(MAX_RANGES.saturating_sub(self.ranges.len()));
        let walking =
            self.ranges.iter_mut().enumerate().filter(|(_, range)| {
                range.state == State::Walking && range.pages_since_cut >= PAGES_BEFORE_CUT
            });
        let Some((position, range)) = walking.max_by_key(|(_, range)| range.pages_since_cut) else { return };
        let Some(cursor) = &range.cursor else { return };
        let found = cuts(cursor, range.until.as_deref(), self.fixed, self.alphabet, idle);
        // If it cannot be cut here, another page may show how.
        range.pages_since_cut = 0;
        let Some(first) = found.first() else { return };
        let mut until = self.ranges[position].until.replace(first.clone());
        for start in found.into_iter().rev() {
            self.ranges.push(Range::above(Some(start.clone()), until.replace(start)));
        }
    }
}

impl Range {
    fn above(start: Option<String>, until: Option<String>) -> Self {
        Self { start, cursor: None, until, state: State::Waiting, pages_since_cut: 0, first: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(keys: &[&str]) -> Vec<Listed> {
        let object = |key: &&str| Listed {
            key: key.as_bytes().to_vec(),
            size: 1,
            etag: String::new(),
            modified_ms: 0,
            is_archived: false,
        };
        keys.iter().map(object).collect()
    }

    #[test]
    fn an_idle_lister_takes_over_the_far_parts_of_a_range() {
        let mut board = Board::new("");
        let (first, start) = board.take(4).unwrap();
        assert_eq!(start, None);
        assert_eq!(board.take(3), None, "nothing is known yet");
        let step = board.page(first, &listed(&["a1", "a2", "b9"]), false).unwrap();
        assert_eq!(step, Step { keep: 3, is_end: false });
        // The alphabet was learned of the first key only: a and 1.
        let (second, start) = board.take(3).unwrap();
        assert_eq!(start.as_deref(), Some("ba"));
        assert_eq!(board.take(3), None, "cut a moment ago");
        let step = board.page(first, &listed(&["b99", "c1"]), false).unwrap();
        assert_eq!(step, Step { keep: 1, is_end: true });
        board.page(second, &listed(&[]), true).unwrap();
        assert!(board.is_done());
        assert_eq!(board.check_seams(), Err(OutOfOrder), "c1 was seen behind ba and then not");
    }

    #[test]
    fn keys_out_of_order_are_seen_within_a_page_and_from_page_to_page() {
        let mut board = Board::new("");
        let (id, _) = board.take(1).unwrap();
        assert_eq!(board.page(id, &listed(&["b", "a"]), false), Err(OutOfOrder));
        board.page(id, &listed(&["b", "c"]), false).unwrap();
        assert_eq!(board.page(id, &listed(&["c"]), true), Err(OutOfOrder));
    }

    /// Lists `keys` with as many lanes, all pages of a round at once; says how many rounds and pages it took.
    fn simulate(mut keys: Vec<String>, prefix: &str, lanes: usize) -> (usize, usize) {
        keys.sort_unstable();
        let mut board = Board::new(prefix);
        let mut walking: Vec<(RangeId, Option<String>)> = Vec::new();
        let (mut rounds, mut pages, mut found) = (0, 0, 0);
        while !board.is_done() {
            while walking.len() < lanes {
                let Some(taken) = board.take(lanes - walking.len()) else { break };
                walking.push(taken);
            }
            rounds += 1;
            walking.retain_mut(|(id, after)| {
                pages += 1;
                let from = after.as_ref().map_or(0, |after| keys.partition_point(|key| key <= after));
                let page = &keys[from..keys.len().min(from + 1000)];
                let objects = listed(&page.iter().map(String::as_str).collect::<Vec<_>>());
                let step = board.page(*id, &objects, from + page.len() == keys.len()).unwrap();
                found += step.keep;
                *after = page.last().cloned();
                !step.is_end
            });
        }
        assert_eq!(board.check_seams(), Ok(()));
        assert_eq!(found, keys.len(), "each key once");
        (rounds, pages)
    }

    #[test]
    fn many_lanes_share_the_work_whatever_the_keys_look_like() {
        let hex = |n: usize| format!("{:016x}", (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let kinds: [(&str, &dyn Fn(usize) -> String); 6] = [
            ("flat", &|n| format!("train/{n:08}.jpg")),
            ("hashed", &|n| format!("data/{}", hex(n))),
            ("deep", &|n| format!("a/{:03}/{:03}/f{n:08}", n / 10_000, n / 100 % 100)),
            ("folders of a thousand", &|n| format!("a/b/d{:04}/f{n:08}.bin", n / 1000)),
            ("not padded", &|n| format!("x/{n}")),
            ("uneven", &|n| if n % 10 == 0 { format!("b/{}", hex(n)) } else { format!("a/z/part-{n:06}") }),
        ];
        for (name, key) in kinds {
            for count in [40_000, 400_000] {
                let keys: Vec<String> = (0..count).map(key).collect();
                let (rounds, pages) = simulate(keys, "", 24);
                let alone = count / 1000;
                assert!(rounds * 4 <= alone, "{name}: {rounds} rounds in place of {alone}");
                assert!(pages <= alone * 5, "{name}: {pages} pages for {alone}");
            }
        }
    }
}
