//! Where can a range of keys be cut, so that idle listers take over parts of it?
//!
//! Nothing is known about the keys but those seen so far, so cuts are guesses: keys that differ from the last seen one
//! at an early place, by a character that some key was seen to have. A wrong guess costs one request that finds nothing;
//! no guess can lose a key.

/// The printable ASCII characters that keys were seen to have: others are hard to write in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Alphabet(u128);

impl Alphabet {
    /// Takes note of a key's characters.
    pub(super) fn learn(&mut self, key: &[u8]) {
        for &byte in key {
            if matches!(byte, b' '..=b'~') {
                self.0 |= 1 << byte;
            }
        }
    }

    /// The characters above `at` that are worth a cut: those of its own kind (digits, capitals, small letters, the rest),
    /// and the first of each other kind. Ascending.
    fn above(self, at: u8) -> impl Iterator<Item = u8> {
        let mut last_kind = kind(at);
        let own = last_kind;
        (at.saturating_add(1)..128).filter(move |&byte| self.0 >> byte & 1 == 1).filter(move |&byte| {
            let kind = kind(byte);
            let is_first = kind != last_kind;
            last_kind = kind;
            kind == own || is_first
        })
    }
}

fn kind(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' => 0,
        b'A'..=b'Z' => 1,
        b'a'..=b'z' => 2,
        _ => 3,
    }
}

/// Up to `count` keys, ascending, that cut the range of keys above `after` and up to `until` (`None`: to the end).
///
/// `after` is a key that was listed; `fixed` bytes at its start are common to all keys of the listing.
pub(super) fn cuts(
    after: &[u8],
    until: Option<&str>,
    fixed: usize,
    alphabet: Alphabet,
    count: usize,
) -> Vec<String> {
    let levels = Levels { after, until, alphabet };
    let mut found = match until {
        // The end is unknown, and may be near: a cut at each place finds out in one round at which places keys go on.
        None => {
            let next = (fixed..after.len()).filter_map(|level| levels.at(level).next());
            next.take(count).collect()
        }
        Some(until) => {
            let common = after.iter().zip(until.as_bytes()).take_while(|(a, b)| a == b).count();
            let mut found: Vec<String> = Vec::new();
            for level in common.max(fixed)..after.len() {
                found.extend(levels.at(level));
                if found.len() >= count {
                    break;
                }
            }
            found
        }
    };
    found.sort_unstable();
    found.dedup();
    spread(found, count)
}

struct Levels<'a> {
    after: &'a [u8],
    until: Option<&'a str>,
    alphabet: Alphabet,
}

impl Levels<'_> {
    /// The cuts that differ from `after` first at byte `level`.
    fn at(&self, level: usize) -> impl Iterator<Item = String> {
        // A cut must be UTF-8, as all that we ask S3 for.
        let head = std::str::from_utf8(&self.after[..level]).ok();
        let at = self.after[level];
        head.into_iter().flat_map(move |head| {
            let cut = move |byte: u8| {
                let mut cut = String::with_capacity(head.len() + 1);
                cut.push_str(head);
                cut.push(char::from(byte));
                cut
            };
            self.alphabet
                .above(at)
                .map(cut)
                .take_while(|cut| self.until.is_none_or(|until| cut.as_str() < until))
        })
    }
}

/// `count` of the keys, at even distances.
fn spread(keys: Vec<String>, count: usize) -> Vec<String> {
    let total = keys.len();
    if total <= count {
        return keys;
    }
    let wanted = |position: usize| (1..=count).any(|part| part * total / (count + 1) == position);
    keys.into_iter().enumerate().filter(|(position, _)| wanted(*position)).map(|(_, key)| key).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn alphabet(text: &str) -> Alphabet {
        let mut alphabet = Alphabet::default();
        alphabet.learn(text.as_bytes());
        alphabet
    }

    #[test]
    fn a_range_without_an_end_is_cut_once_at_each_place() {
        let cuts = cuts(b"train/0099.jpg", None, 6, alphabet("train/0123456789.jpg"), 3);
        assert_eq!(cuts, ["train/00a", "train/01", "train/1"].map(str::to_owned).to_vec());
    }

    #[test]
    fn a_range_with_an_end_is_cut_evenly_at_the_first_place_that_differs() {
        let alphabet = alphabet("train/0123456789.jpg");
        assert_eq!(cuts(b"train/0010.jpg", Some("train/01"), 6, alphabet, 1), ["train/006"]);
        assert_eq!(
            cuts(b"train/0010.jpg", Some("train/01"), 6, alphabet, 3),
            ["train/004", "train/006", "train/008"]
        );
        assert!(cuts(b"a", Some("b"), 0, Alphabet::default(), 9).is_empty());
    }

    #[test]
    fn keys_that_are_not_utf8_are_cut_before_the_damage() {
        let found = cuts(b"ab\xff\xffzz", None, 0, alphabet("abyz"), 9);
        assert_eq!(found, ["ay", "b"].map(str::to_owned).to_vec());
    }

    proptest! {
        #[test]
        fn cuts_lie_within_the_range_and_ascend(
            after in "[a-c/0-3é\u{10FFFF}]{1,8}",
            until in proptest::option::of("[a-c/0-3]{1,8}"),
            count in 1usize..20,
            fixed in 0usize..3,
        ) {
            let alphabet = alphabet("abc/0123");
            let cuts = cuts(after.as_bytes(), until.as_deref(), fixed, alphabet, count);
            prop_assert!(cuts.len() <= count);
            prop_assert!(cuts.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(cuts.iter().all(|cut| cut.as_str() > after.as_str()));
            if let Some(until) = until {
                prop_assert!(cuts.iter().all(|cut| *cut < until));
            }
        }
    }
}
