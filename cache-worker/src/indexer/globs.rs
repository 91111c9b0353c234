//! Which keys does the user want to see?

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use globset::{Candidate, Glob, GlobBuilder, GlobSet, GlobSetBuilder};

/// Says that a glob cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} has the glob {glob:?}: {reason}; write it like \"**/*.jpg\"")]
pub struct BadGlob {
    /// `include` or `exclude`.
    pub field: &'static str,
    /// The glob.
    pub glob: String,
    /// What is wrong with it.
    pub reason: String,
}

/// The globs of one source.
#[derive(Debug)]
pub(super) struct Globs {
    include: Option<GlobSet>,
    exclude: GlobSet,
}

impl Globs {
    /// Takes the globs as the Dataset has them; without any `include` everything is in.
    pub(super) fn new(include: &[String], exclude: &[String]) -> Result<Self, BadGlob> {
        let include = if include.is_empty() { None } else { Some(set("include", include)?) };
        Ok(Self { include, exclude: set("exclude", exclude)? })
    }

    /// Whether the part of a key that follows the prefix is wanted. A directory's key is judged without its last slash.
    pub(super) fn want(&self, relative: &[u8]) -> bool {
        if self.include.is_none() && self.exclude.is_empty() {
            return true;
        }
        let path = relative.strip_suffix(b"/").unwrap_or(relative);
        let candidate = Candidate::new(OsStr::from_bytes(path));
        self.include.as_ref().is_none_or(|set| set.is_match_candidate(&candidate))
            && !self.exclude.is_match_candidate(&candidate)
    }
}

fn set(field: &'static str, globs: &[String]) -> Result<GlobSet, BadGlob> {
    let bad = |glob: &str, err: globset::Error| BadGlob {
        field,
        glob: glob.to_owned(),
        reason: err.kind().to_string(),
    };
    let mut set = GlobSetBuilder::new();
    for text in globs {
        let glob: Glob = GlobBuilder::new(text)
            .literal_separator(true)
            .backslash_escape(true)
            .build()
            .map_err(|err| bad(text, err))?;
        set.add(glob);
    }
    set.build().map_err(|err| bad(&globs.join(", "), err))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globs(include: &[&str], exclude: &[&str]) -> Globs {
        let owned = |globs: &[&str]| globs.iter().map(|&glob| glob.to_owned()).collect::<Vec<_>>();
        Globs::new(&owned(include), &owned(exclude)).unwrap()
    }

    #[test]
    fn globs_are_matched_against_whole_relative_keys() {
        let some = globs(&["**/*.jpg", "meta/*"], &["tmp/**", "**/.*"]);
        for (key, wanted) in [
            ("a.jpg", true),
            ("x/y/a.jpg", true),
            ("x/y/a.JPG", false),
            ("meta/a", true),
            ("meta/a/b", false),
            ("tmp/a.jpg", false),
            ("x/.a.jpg", false),
        ] {
            assert_eq!(some.want(key.as_bytes()), wanted, "{key}");
        }
        assert!(globs(&[], &[]).want(b"\xff//"));
        assert!(!globs(&[], &["**/\u{fffd}*", "x*"]).want(b"x\xff"));
        assert!(!globs(&[], &["a/b"]).want(b"a/b/"));
    }

    #[test]
    fn a_bad_glob_is_named_with_its_field() {
        let err = Globs::new(&[], &["[a".to_owned()]).unwrap_err();
        assert_eq!((err.field, err.glob.as_str()), ("exclude", "[a"));
    }
}
