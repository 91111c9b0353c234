//! Which of the keys that are not shown does an index name?

use std::collections::BTreeMap;

use super::format::MAX_TEXT_BYTES;
use super::path_rule::LeftOutReason;

/// Most keys that an index lists as left out: enough to see what is wrong with a bucket, small beside any index.
pub const MAX_LEFT_OUT_LISTED: usize = 1000;

/// Counts all keys that are left out and keeps the first ones by source and key, whatever order they come in.
#[derive(Debug, Clone, Default)]
pub struct LeftOutList {
    total: u64,
    first: BTreeMap<(u8, Vec<u8>), LeftOutReason>,
    /// Source and key that were added last.
    last: (u8, Vec<u8>),
}

impl LeftOutList {
    /// Leaves out one whole key. A key that is given again, as listings may, is counted once where it comes right after
    /// itself, as it does in a sorted stream, or is among the listed ones.
    pub fn add(&mut self, source: u8, key: &[u8], reason: LeftOutReason) {
        if key.len() > MAX_TEXT_BYTES {
            // Longer than any S3 key, so it was made up by a faulty server: counted, not kept.
            self.total += 1;
            return;
        }
        let is_repeated = self.total > 0 && self.last.0 == source && self.last.1 == key;
        self.last.0 = source;
        self.last.1.clear();
        self.last.1.extend_from_slice(key);
        let before = self.first.len();
        let entry = self.first.entry((source, key.to_vec()));
        entry.and_modify(|before| *before = reason.min(*before)).or_insert(reason);
        if self.first.len() == before {
            return;
        }
        self.total += u64::from(!is_repeated);
        if self.first.len() > MAX_LEFT_OUT_LISTED {
            self.first.pop_last();
        }
    }

    /// How many keys were left out.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The listed ones, sorted by source and key.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8], LeftOutReason)> {
        self.first.iter().map(|((source, key), reason)| (*source, key.as_slice(), *reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_thousand_by_key_are_listed_and_all_are_counted() {
        let mut list = LeftOutList::default();
        for number in (0..3000u32).rev() {
            list.add(0, format!("{number:05}").as_bytes(), LeftOutReason::DotSegment);
        }
        list.add(0, b"00007", LeftOutReason::Nul);
        assert_eq!(list.total(), 3000);
        assert_eq!(list.iter().count(), MAX_LEFT_OUT_LISTED);
        assert_eq!(list.iter().last(), Some((0, &b"00999"[..], LeftOutReason::DotSegment)));
        assert_eq!(list.iter().nth(7), Some((0, &b"00007"[..], LeftOutReason::DotSegment)));
    }

    #[test]
    fn a_repeated_key_is_counted_once_also_beyond_those_listed() {
        let mut list = LeftOutList::default();
        for number in 0..3000u32 {
            for _ in 0..2 {
                list.add(0, format!("{number:05}").as_bytes(), LeftOutReason::HiddenByDirectory);
            }
        }
        list.add(1, b"02999", LeftOutReason::HiddenByDirectory);
        assert_eq!(list.total(), 3001);
        assert_eq!(list.iter().count(), MAX_LEFT_OUT_LISTED);
    }

    #[test]
    fn a_key_longer_than_a_reference_is_counted_only() {
        let mut list = LeftOutList::default();
        list.add(0, &vec![b'/'; MAX_TEXT_BYTES + 1], LeftOutReason::EmptySegment);
        assert_eq!((list.total(), list.iter().count()), (1, 0));
    }
}
