//! Which objects of a source are shown?

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};

use super::spec::Source;

/// The objects that a source's `include` and `exclude` let through.
#[derive(Clone, Debug)]
pub struct ObjectFilter {
    /// `None` lets everything in.
    include: Option<GlobSet>,
    exclude: GlobSet,
}

/// A glob that cannot be compiled.
#[derive(Clone, Debug, thiserror::Error)]
#[error("compile glob {glob:?}")]
pub struct CompileGlob {
    /// The glob.
    pub glob: String,
    /// What is wrong with it.
    pub source: globset::Error,
}

impl ObjectFilter {
    /// Compiles the globs of a source.
    ///
    /// # Errors
    /// The first glob that is none, or all of them together when they are too large.
    pub fn of(source: &Source) -> Result<Self, CompileGlob> {
        Self::new(&source.include, &source.exclude)
    }

    /// Compiles globs; without an `include`, everything is let in.
    ///
    /// # Errors
    /// The first glob that is none, or all of them together when they are too large.
    pub fn new(include: &[String], exclude: &[String]) -> Result<Self, CompileGlob> {
        let include = if include.is_empty() { None } else { Some(compile_set(include)?) };
        Ok(Self { include, exclude: compile_set(exclude)? })
    }

    /// Whether an object is shown. `path` is its key below the source's prefix.
    pub fn shows(&self, path: &str) -> bool {
        self.include.as_ref().is_none_or(|include| include.is_match(path)) && !self.exclude.is_match(path)
    }
}

/// Compiles one glob: `*` and `?` stop at `/`, `**` does not, `{a,b}` and `[a-z]` are alternatives, `\` escapes.
///
/// # Errors
/// When it is none.
pub fn compile(glob: &str) -> Result<Glob, CompileGlob> {
    GlobBuilder::new(glob)
        .literal_separator(true)
        .backslash_escape(true)
        .build()
        .map_err(|source| CompileGlob { glob: glob.to_owned(), source })
}

fn compile_set(globs: &[String]) -> Result<GlobSet, CompileGlob> {
    let mut set = GlobSetBuilder::new();
    for glob in globs {
        set.add(compile(glob)?);
    }
    set.build().map_err(|source| CompileGlob { glob: globs.join(", "), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(include: &[&str], exclude: &[&str], paths: &[&str]) -> Vec<bool> {
        let owned = |globs: &[&str]| globs.iter().map(|glob| (*glob).to_owned()).collect::<Vec<_>>();
        let filter = ObjectFilter::new(&owned(include), &owned(exclude)).unwrap();
        paths.iter().map(|path| filter.shows(path)).collect()
    }

    #[test]
    fn star_stops_at_a_slash_and_two_do_not() {
        assert_eq!(shown(&["*.jpg"], &[], &["a.jpg", "d/a.jpg", "a.png"]), [true, false, false]);
        assert_eq!(shown(&["**/*.jpg"], &[], &["a.jpg", "d/e/a.jpg", "d/a.png"]), [true, true, false]);
        assert_eq!(shown(&["d/**"], &[], &["d/a", "d/e/a", "d", "e/d/a"]), [true, true, false, false]);
    }

    #[test]
    fn exclude_wins_and_no_include_means_everything() {
        assert_eq!(shown(&[], &["**/.*"], &["a", "d/.hidden", ".hidden"]), [true, false, false]);
        assert_eq!(shown(&["**"], &["tmp/**"], &["a", "tmp/a"]), [true, false]);
        assert_eq!(shown(&[], &[], &["anything/at all"]), [true]);
    }

    #[test]
    fn a_glob_that_is_none_is_named() {
        let error = ObjectFilter::new(&["[a".to_owned()], &[]).unwrap_err();
        assert_eq!(error.glob, "[a");
        assert!(error.to_string().contains("\"[a\""));
    }
}
