//! Which keys of a bucket are shown, where, and in which order?
//!
//! The rule, over the part of a key that follows the source's prefix:
//!
//! 1. A key is shown as the path it spells, byte for byte. Names that differ only in case, and control characters, are
//!    shown as they are.
//! 2. An empty object whose key ends in `/` (or is the prefix itself) only makes its directory appear.
//! 3. Left out are keys that are not UTF-8 (S3 clients cannot ask for them) or have a NUL byte, an empty segment (`//`, a
//!    leading `/`), a segment `.` or `..`, a segment of more than 255 bytes, a path of more than 4095 bytes in the mount,
//!    a trailing `/` though the object has bytes, or nothing after the prefix though the object has bytes.
//! 4. Where one key would be a file and a directory (`a` and `a/b`, or `a` and `a/`), the directory is shown and the file
//!    is left out.
//!
//! What is left out is counted, and listed up to a bound.

use std::cmp::Ordering;

/// Longest name of a file or directory, bytes: Linux' NAME_MAX.
pub const MAX_NAME_BYTES: usize = 255;

/// Longest path in the mount, bytes: Linux' PATH_MAX less the closing NUL.
pub const MAX_PATH_BYTES: usize = 4095;

/// Why a key is not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LeftOutReason {
    /// `//` or a leading `/`.
    EmptySegment = 1,
    /// A segment `.` or `..`.
    DotSegment = 2,
    /// A segment of more than [`MAX_NAME_BYTES`].
    LongSegment = 3,
    /// A NUL byte.
    Nul = 4,
    /// Not UTF-8.
    NotUtf8 = 5,
    /// Ends in `/` and has bytes.
    SlashWithBytes = 6,
    /// The source's prefix itself, with bytes.
    IsPrefix = 7,
    /// A directory has the same path.
    HiddenByDirectory = 8,
    /// A path of more than [`MAX_PATH_BYTES`].
    LongPath = 9,
}

impl LeftOutReason {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::EmptySegment,
        Self::DotSegment,
        Self::LongSegment,
        Self::Nul,
        Self::NotUtf8,
        Self::SlashWithBytes,
        Self::IsPrefix,
        Self::HiddenByDirectory,
        Self::LongPath,
    ];

    /// The code in the index.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The reason with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }

    /// Says it to the user.
    pub fn text(self) -> &'static str {
        match self {
            Self::EmptySegment => "the key has an empty segment (`//` or a leading `/`)",
            Self::DotSegment => "the key has a segment `.` or `..`",
            Self::LongSegment => "a segment of the key is longer than 255 bytes",
            Self::Nul => "the key has a NUL byte",
            Self::NotUtf8 => "the key is not UTF-8",
            Self::SlashWithBytes => "the key ends in `/` but its object has bytes",
            Self::IsPrefix => "the key is the source's prefix itself and names no file",
            Self::HiddenByDirectory => "other keys make a directory of this path",
            Self::LongPath => "the path in the mount would be longer than 4095 bytes",
        }
    }
}

impl std::fmt::Display for LeftOutReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// What becomes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'k> {
    /// Shown as a file at this path below the source's.
    Shown(&'k str),
    /// Makes the directory at this path below the source's appear; the empty path is the source's own.
    Directory(&'k str),
    /// Not shown.
    LeftOut(LeftOutReason),
}

/// Judges a key by the part of it that follows the source's prefix, the object's size and the path in the mount at which
/// the source appears (no leading or trailing slash; empty for the root).
pub fn judge_key<'k>(source_path: &[u8], relative: &'k [u8], size: u64) -> Verdict<'k> {
    use LeftOutReason as Reason;
    let Ok(text) = std::str::from_utf8(relative) else {
        return Verdict::LeftOut(Reason::NotUtf8);
    };
    if text.is_empty() {
        return if size == 0 { Verdict::Directory("") } else { Verdict::LeftOut(Reason::IsPrefix) };
    }
    let directory = text.strip_suffix('/');
    let path = directory.unwrap_or(text);
    if let Some(reason) = path.split('/').find_map(refused_segment) {
        return Verdict::LeftOut(reason);
    }
    let len = if source_path.is_empty() { path.len() } else { source_path.len() + 1 + path.len() };
    if len > MAX_PATH_BYTES {
        return Verdict::LeftOut(Reason::LongPath);
    }
    match directory {
        None => Verdict::Shown(path),
        Some(_) if size == 0 => Verdict::Directory(path),
        Some(_) => Verdict::LeftOut(Reason::SlashWithBytes),
    }
}

/// Orders paths component by component, as an index does: `/` is lower than every other byte, so that whatever is below a
/// directory follows it at once.
pub fn compare_paths(a: &[u8], b: &[u8]) -> Ordering {
    match a.iter().zip(b).find(|(a, b)| a != b) {
        None => a.len().cmp(&b.len()),
        Some((b'/', _)) => Ordering::Less,
        Some((_, b'/')) => Ordering::Greater,
        Some((a, b)) => a.cmp(b),
    }
}

fn refused_segment(segment: &str) -> Option<LeftOutReason> {
    match segment {
        "" => Some(LeftOutReason::EmptySegment),
        "." | ".." => Some(LeftOutReason::DotSegment),
        _ if segment.contains('\0') => Some(LeftOutReason::Nul),
        _ if segment.len() > MAX_NAME_BYTES => Some(LeftOutReason::LongSegment),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn verdict(key: &[u8], size: u64) -> Verdict<'_> {
        judge_key(b"", key, size)
    }

    #[test]
    fn awkward_keys_are_left_out_each_with_its_reason() {
        use LeftOutReason as Reason;
        let long = "x".repeat(256);
        let cases: [(&[u8], u64, Reason); 17] = [
            (b"a//b", 1, Reason::EmptySegment),
            (b"/a", 1, Reason::EmptySegment),
            (b"/", 0, Reason::EmptySegment),
            (b"a//", 0, Reason::EmptySegment),
            (b".", 1, Reason::DotSegment),
            (b"a/../b", 1, Reason::DotSegment),
            (b"a/.", 1, Reason::DotSegment),
            (b"./", 0, Reason::DotSegment),
            (long.as_bytes(), 1, Reason::LongSegment),
            (b"a\0b", 1, Reason::Nul),
            (b"a\0/", 0, Reason::Nul),
            (b"a\xff", 1, Reason::NotUtf8),
            (b"a/", 1, Reason::SlashWithBytes),
            (b"", 1, Reason::IsPrefix),
            (b"a/b/", 7, Reason::SlashWithBytes),
            (b"\xc3/", 0, Reason::NotUtf8),
            (b"..", 0, Reason::DotSegment),
        ];
        for (key, size, reason) in cases {
            assert_eq!(verdict(key, size), Verdict::LeftOut(reason), "{key:?}");
        }
        let deep = "0123456/".repeat(512) + "x";
        assert_eq!(verdict(deep.as_bytes(), 1), Verdict::LeftOut(Reason::LongPath));
    }

    #[test]
    fn what_a_file_system_can_name_is_shown_as_it_is() {
        let long = "x".repeat(255);
        let deep = "0123456/".repeat(127) + "01234567";
        assert_eq!(deep.len(), 1024);
        for key in ["a", "A", "a/b", "...", "a b", "\x01\x7f\n", "é", "a/.b", &long, &deep] {
            assert_eq!(verdict(key.as_bytes(), 1), Verdict::Shown(key));
            assert_eq!(verdict(key.as_bytes(), 0), Verdict::Shown(key));
        }
        assert_eq!(verdict(b"a/b/", 0), Verdict::Directory("a/b"));
        assert_eq!(verdict(b"", 0), Verdict::Directory(""));
    }

    #[test]
    fn the_source_path_counts_into_the_path() {
        let key = "0123456/".repeat(511) + "1234567";
        assert_eq!(key.len(), 4095);
        assert_eq!(verdict(key.as_bytes(), 1), Verdict::Shown(&key));
        assert_eq!(judge_key(b"t", key.as_bytes(), 1), Verdict::LeftOut(LeftOutReason::LongPath));
    }

    #[test]
    fn codes_of_reasons_are_pinned() {
        assert_eq!(LeftOutReason::ALL.map(LeftOutReason::code), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(LeftOutReason::from_code(8), Some(LeftOutReason::HiddenByDirectory));
        assert_eq!((LeftOutReason::from_code(0), LeftOutReason::from_code(10)), (None, None));
    }

    proptest! {
        #[test]
        fn path_order_is_the_order_of_the_lists_of_components(a in "[ab/ .!0]{0,8}", b in "[ab/ .!0]{0,8}") {
            let components = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(compare_paths(a.as_bytes(), b.as_bytes()), components(&a).cmp(&components(&b)));
        }

        #[test]
        fn every_key_gets_a_verdict(key in prop::collection::vec(any::<u8>(), 0..40), size in 0u64..2) {
            if let Verdict::Shown(path) = verdict(&key, size) {
                prop_assert_eq!(path.as_bytes(), &key[..]);
            }
        }
    }
}
