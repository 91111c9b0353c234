//! Which datasets does a pod ask for, where, and in which of its containers?
//!
//! ```text
//! millrace.dev/dataset: imagenet=/data                           the whole dataset at /data
//! millrace.dev/dataset: imagenet/train=/a,imagenet/val=/b,x=/x   folders (or files) of one dataset, and another one
//! millrace.dev/containers: main,loader                           only in these; in all when the annotation is not there
//! ```
//!
//! Blanks and line breaks around `,` and `=` are of no account. A path cannot have either sign in it: a second `=` is told as a
//! mistake rather than guessed at.

use std::fmt;

/// Most mounts of one pod: the bound keeps the webhook's work and the pod's size small; nobody needs more by hand.
pub const MAX_MOUNTS: usize = 32;

/// Longest annotation, bytes: 32 mounts of 256 bytes.
pub const MAX_BYTES: usize = 8192;

/// Longest name of a Dataset, as its CRD says.
const MAX_DATASET_CHARS: usize = 63;

/// Longest name of a container.
const MAX_CONTAINER_CHARS: usize = 63;

/// Linux' NAME_MAX.
const MAX_SEGMENT_BYTES: usize = 255;

/// Shown with every refusal.
const FORM: &str = "write for example \"imagenet=/data\" (dataset=/where), \"imagenet/train=/data\" (a folder of it), or several \
                    separated by commas";

/// Shown with every refusal of containers.
const CONTAINERS_FORM: &str = "write names of containers of the pod separated by commas, for example \"main,loader\", or leave the \
                               annotation away for all";

/// What a pod asks for: 1 to [`MAX_MOUNTS`] mounts, none at or within another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDatasets {
    mounts: Vec<DatasetMount>,
}

/// One place at which a pod wants a dataset, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetMount {
    /// Name of the Dataset in the pod's namespace.
    pub dataset: String,
    /// Folder or file of the dataset, relative, normal; all of it when none.
    pub sub_path: Option<String>,
    /// Where in the container: absolute, normal, without a last slash, not `/`.
    pub path: String,
}

/// The containers that get the mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Containers {
    /// All, init containers too.
    All,
    /// Those of these names, no name twice, at least one.
    Named(Vec<String>),
}

/// Why an annotation is refused. The messages are for the author of the pod: they show the right form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationError {
    /// Nothing in it.
    #[error("the annotation is empty: {FORM}")]
    Empty,
    /// Over [`MAX_BYTES`].
    #[error("the annotation has {bytes} bytes, more than {MAX_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Over [`MAX_MOUNTS`].
    #[error(
        "{mounts} mounts are asked for, more than {MAX_MOUNTS}: mount a folder that holds several of them"
    )]
    TooMany {
        /// How many.
        mounts: usize,
    },
    /// Nothing between two commas, or before or after one.
    #[error("there is a comma too many: {FORM}")]
    EmptyEntry,
    /// No `=`.
    #[error("{entry:?} does not say where: {FORM}")]
    NoPath {
        /// The entry.
        entry: String,
    },
    /// More than one `=`.
    #[error("{entry:?} has more than one \"=\": {FORM}")]
    TwoEquals {
        /// The entry.
        entry: String,
    },
    /// The part before the first `/` cannot be a Dataset's name.
    #[error(
        "{dataset:?} of {entry:?} cannot be the name of a Dataset (lower-case letters, digits, '-' and '.', at most \
         {MAX_DATASET_CHARS}): {FORM}"
    )]
    Dataset {
        /// The entry.
        entry: String,
        /// The name.
        dataset: String,
    },
    /// The folder in the dataset is not one.
    #[error("folder {sub_path:?} of {entry:?} {problem}: {FORM}")]
    SubPath {
        /// The entry.
        entry: String,
        /// The folder.
        sub_path: String,
        /// What is wrong with it.
        problem: PathProblem,
    },
    /// The path in the container is not one.
    #[error("path {path:?} of {entry:?} {problem}: {FORM}")]
    Path {
        /// The entry.
        entry: String,
        /// The path.
        path: String,
        /// What is wrong with it.
        problem: PathProblem,
    },
    /// Two mounts at one path.
    #[error("two mounts at {path:?}, of {first:?} and {second:?}: give each a path of its own")]
    SamePath {
        /// The path.
        path: String,
        /// What is at it first.
        first: String,
        /// What comes again.
        second: String,
    },
    /// A mount within another, which is read-only, so that the container runtime cannot make its mount point.
    #[error(
        "path {inner:?} lies within {outer:?}, where another dataset is mounted read-only: give paths side by side"
    )]
    Within {
        /// The outer path.
        outer: String,
        /// The path within.
        inner: String,
    },
    /// `millrace.dev/containers` has nothing in it.
    #[error("no container is named: {CONTAINERS_FORM}")]
    NoContainer,
    /// What cannot be a container's name.
    #[error("{name:?} cannot be the name of a container: {CONTAINERS_FORM}")]
    Container {
        /// The name.
        name: String,
    },
    /// A container twice.
    #[error("container {name:?} is named twice: {CONTAINERS_FORM}")]
    ContainerTwice {
        /// The name.
        name: String,
    },
}

/// What is wrong with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathProblem {
    /// Nothing.
    Empty,
    /// No slash at its start.
    Relative,
    /// `/` itself.
    Root,
    /// Two slashes together, or one at the end of a folder.
    EmptySegment,
    /// `.` or `..`.
    Dots,
    /// A segment of over 255 bytes.
    LongSegment,
    /// `:`, or a control character.
    Character,
}

impl fmt::Display for PathProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "is empty",
            Self::Relative => "does not begin with '/'",
            Self::Root => "is the root of the container, where nothing can be mounted",
            Self::EmptySegment => "has a slash too many",
            Self::Dots => "has a segment '.' or '..'",
            Self::LongSegment => "has a segment of more than 255 bytes",
            Self::Character => "has a ':' or a control character, which Kubernetes does not take",
        })
    }
}

impl PodDatasets {
    /// Reads the annotation `millrace.dev/dataset`.
    ///
    /// # Errors
    /// With what is wrong and the right form, for the author of the pod.
    pub fn parse(annotation: &str) -> Result<Self, AnnotationError> {
        if annotation.len() > MAX_BYTES {
            return Err(AnnotationError::TooLong { bytes: annotation.len() });
        }
        if annotation.trim().is_empty() {
            return Err(AnnotationError::Empty);
        }
        let entries: Vec<&str> = annotation.split(',').map(str::trim).collect();
        if entries.len() > MAX_MOUNTS {
            return Err(AnnotationError::TooMany { mounts: entries.len() });
        }
        let mounts = entries.into_iter().map(DatasetMount::parse).collect::<Result<Vec<_>, _>>()?;
        for (at, mount) in mounts.iter().enumerate() {
            for earlier in mounts.iter().take(at) {
                stand_apart(earlier, mount)?;
            }
        }
        Ok(Self { mounts })
    }

    /// The mounts, in the order given.
    pub fn mounts(&self) -> &[DatasetMount] {
        &self.mounts
    }

    /// Names of the Datasets, each once, in the order given.
    pub fn datasets(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for mount in &self.mounts {
            if !names.contains(&mount.dataset.as_str()) {
                names.push(&mount.dataset);
            }
        }
        names
    }
}

impl fmt::Display for PodDatasets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, mount) in self.mounts.iter().enumerate() {
            write!(f, "{}{mount}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl DatasetMount {
    /// What is mounted, as it is written: `imagenet` or `imagenet/train`.
    pub fn source(&self) -> String {
        match &self.sub_path {
            Some(sub_path) => format!("{}/{sub_path}", self.dataset),
            None => self.dataset.clone(),
        }
    }

    fn parse(entry: &str) -> Result<Self, AnnotationError> {
        if entry.is_empty() {
            return Err(AnnotationError::EmptyEntry);
        }
        let owned = || entry.to_owned();
        let (source, path) =
            entry.split_once('=').ok_or_else(|| AnnotationError::NoPath { entry: owned() })?;
        if path.contains('=') {
            return Err(AnnotationError::TwoEquals { entry: owned() });
        }
        let (source, path) = (source.trim(), path.trim());
        let (dataset, sub_path) = match source.split_once('/') {
            Some((dataset, sub_path)) => (dataset, Some(sub_path)),
            None => (source, None),
        };
        if !is_dataset_name(dataset) {
            return Err(AnnotationError::Dataset { entry: owned(), dataset: dataset.to_owned() });
        }
        let sub_path = match sub_path {
            None => None,
            Some(sub_path) => match check_segments(sub_path) {
                Ok(()) => Some(sub_path.to_owned()),
                Err(problem) => {
                    return Err(AnnotationError::SubPath {
                        entry: owned(),
                        sub_path: sub_path.to_owned(),
                        problem,
                    });
                }
            },
        };
        let path = check_mount_path(path).map_err(|problem| AnnotationError::Path {
            entry: owned(),
            path: path.to_owned(),
            problem,
        })?;
        Ok(Self { dataset: dataset.to_owned(), sub_path, path })
    }
}

impl fmt::Display for DatasetMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.source(), self.path)
    }
}

impl Containers {
    /// Reads the annotation `millrace.dev/containers`, where the pod has one.
    ///
    /// # Errors
    /// With what is wrong and the right form, for the author of the pod.
    pub fn parse(annotation: Option<&str>) -> Result<Self, AnnotationError> {
        let Some(annotation) = annotation else { return Ok(Self::All) };
        if annotation.len() > MAX_BYTES {
            return Err(AnnotationError::TooLong { bytes: annotation.len() });
        }
        if annotation.trim().is_empty() {
            return Err(AnnotationError::NoContainer);
        }
        let mut names: Vec<String> = Vec::new();
        for name in annotation.split(',').map(str::trim) {
            let name = name.to_owned();
            if name.len() > MAX_CONTAINER_CHARS || name.contains('.') || !is_subdomain(&name) {
                return Err(AnnotationError::Container { name });
            }
            if names.contains(&name) {
                return Err(AnnotationError::ContainerTwice { name });
            }
            names.push(name);
        }
        Ok(Self::Named(names))
    }

    /// Whether the container of this name gets the mounts.
    pub fn include(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(|one| one == name),
        }
    }
}

fn stand_apart(first: &DatasetMount, second: &DatasetMount) -> Result<(), AnnotationError> {
    if first.path == second.path {
        return Err(AnnotationError::SamePath {
            path: second.path.clone(),
            first: first.source(),
            second: second.source(),
        });
    }
    for (outer, inner) in [(first, second), (second, first)] {
        if inner.path.strip_prefix(&outer.path).is_some_and(|rest| rest.starts_with('/')) {
            return Err(AnnotationError::Within { outer: outer.path.clone(), inner: inner.path.clone() });
        }
    }
    Ok(())
}

fn is_dataset_name(name: &str) -> bool {
    name.len() <= MAX_DATASET_CHARS && is_subdomain(name)
}

/// RFC 1123, as Kubernetes has it.
fn is_subdomain(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.split('.').all(|label| {
        !label.is_empty() && !label.starts_with('-') && !label.ends_with('-') && label.bytes().all(is_inner)
    })
}

/// The path without a last slash.
fn check_mount_path(path: &str) -> Result<String, PathProblem> {
    if path.is_empty() {
        return Err(PathProblem::Empty);
    }
    let inner = path.strip_prefix('/').ok_or(PathProblem::Relative)?;
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    if inner.is_empty() {
        return Err(PathProblem::Root);
    }
    check_segments(inner)?;
    Ok(format!("/{inner}"))
}

fn check_segments(path: &str) -> Result<(), PathProblem> {
    if path.is_empty() {
        return Err(PathProblem::Empty);
    }
    if path.chars().any(|c| c == ':' || c.is_control()) {
        return Err(PathProblem::Character);
    }
    for segment in path.split('/') {
        match segment {
            "" => return Err(PathProblem::EmptySegment),
            "." | ".." => return Err(PathProblem::Dots),
            _ if segment.len() > MAX_SEGMENT_BYTES => return Err(PathProblem::LongSegment),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mounts(annotation: &str) -> Vec<(String, String)> {
        let parsed = PodDatasets::parse(annotation).unwrap();
        parsed.mounts().iter().map(|mount| (mount.source(), mount.path.clone())).collect()
    }

    fn refusal(annotation: &str) -> String {
        PodDatasets::parse(annotation).unwrap_err().to_string()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(source, path)| ((*source).to_owned(), (*path).to_owned())).collect()
    }

    #[test]
    fn one_several_and_parts_are_read() {
        assert_eq!(mounts("imagenet=/data"), pairs(&[("imagenet", "/data")]));
        assert_eq!(
            mounts(" imagenet/train = /a/ ,\n imagenet/val/x y=/b,other=/x\n"),
            pairs(&[("imagenet/train", "/a"), ("imagenet/val/x y", "/b"), ("other", "/x")])
        );
        assert_eq!(PodDatasets::parse("a/x=/1,b=/2,a/y=/3").unwrap().datasets(), ["a", "b"]);
        assert_eq!(mounts("3d-shapes.v2=/d"), pairs(&[("3d-shapes.v2", "/d")]));
    }

    #[test]
    fn every_refusal_names_the_mistake_and_shows_the_form() {
        for (annotation, said) in [
            ("", "the annotation is empty"),
            ("  ", "the annotation is empty"),
            ("imagenet", "\"imagenet\" does not say where"),
            ("imagenet=/a,", "a comma too many"),
            ("imagenet=/a=/b", "more than one \"=\""),
            ("ImageNet=/data", "\"ImageNet\" of \"ImageNet=/data\" cannot be the name of a Dataset"),
            ("=/data", "\"\" of \"=/data\" cannot be the name"),
            ("vision_x=/data", "cannot be the name"),
            ("-a=/data", "cannot be the name"),
            ("imagenet=data", "path \"data\" of \"imagenet=data\" does not begin with '/'"),
            ("imagenet=", "path \"\" of \"imagenet=\" is empty"),
            ("imagenet=/", "is the root of the container"),
            ("imagenet=/a/../b", "path \"/a/../b\" of \"imagenet=/a/../b\" has a segment '.' or '..'"),
            ("imagenet=/a//b", "has a slash too many"),
            ("imagenet=/a:ro", "has a ':'"),
            ("imagenet/=/a", "folder \"\" of \"imagenet/=/a\" is empty"),
            ("imagenet/../x=/a", "folder \"../x\" of \"imagenet/../x=/a\" has a segment '.' or '..'"),
            ("imagenet//x=/a", "folder \"/x\" of \"imagenet//x=/a\" has a slash too many"),
            ("imagenet/x/=/a", "folder \"x/\" of \"imagenet/x/=/a\" has a slash too many"),
        ] {
            let refusal = refusal(annotation);
            assert!(
                refusal.contains(said) && refusal.contains("\"imagenet=/data\""),
                "{annotation}: {refusal}"
            );
        }
    }

    #[test]
    fn mounts_at_or_within_one_another_are_refused() {
        assert_eq!(
            refusal("a=/x,b=/x/"),
            "two mounts at \"/x\", of \"a\" and \"b\": give each a path of its own"
        );
        for nested in ["a=/x,b=/x/y", "b=/x/y,a=/x"] {
            assert!(refusal(nested).starts_with("path \"/x/y\" lies within \"/x\""), "{nested}");
        }
        assert_eq!(mounts("a=/x,b=/xy").len(), 2);
    }

    #[test]
    fn more_than_a_pod_needs_is_refused() {
        let many: Vec<String> = (0..=MAX_MOUNTS).map(|at| format!("a=/{at}")).collect();
        assert!(refusal(&many.join(",")).contains("33 mounts"));
        assert!(refusal(&format!("a=/{}", "x".repeat(MAX_BYTES))).contains("more than 8192"));
        assert!(refusal(&format!("a=/{}", "x".repeat(256))).contains("more than 255 bytes"));
        assert!(refusal(&format!("{}=/x", "a".repeat(64))).contains("at most 63"));
    }

    #[test]
    fn containers_are_all_or_those_named() {
        assert_eq!(Containers::parse(None), Ok(Containers::All));
        let named = Containers::parse(Some(" main, loader ")).unwrap();
        assert!(named.include("main") && named.include("loader") && !named.include("sidecar"));
        for (annotation, said) in [
            ("", "no container is named"),
            ("main,", "\"\" cannot be the name of a container"),
            ("Main", "\"Main\" cannot be"),
            ("a.b", "\"a.b\" cannot be"),
            ("main,main", "\"main\" is named twice"),
        ] {
            let refusal = Containers::parse(Some(annotation)).unwrap_err().to_string();
            assert!(refusal.contains(said) && refusal.contains("\"main,loader\""), "{refusal}");
        }
    }

    const NAME: &str = "[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?";
    const SEGMENT: &str = "[a-zA-Z0-9_-][a-zA-Z0-9 ._-]{0,10}[a-zA-Z0-9_-]";

    prop_compose! {
        fn mount()(
            dataset in NAME,
            sub_path in proptest::option::of(proptest::collection::vec(SEGMENT, 1..4)),
            path in proptest::collection::vec(SEGMENT, 1..4),
        ) -> DatasetMount {
            let sub_path = sub_path.map(|segments| segments.join("/"));
            DatasetMount { dataset, sub_path, path: format!("/{}", path.join("/")) }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(mounts in proptest::collection::vec(mount(), 1..5)) {
            let written = PodDatasets { mounts };
            match PodDatasets::parse(&written.to_string()) {
                Ok(read) => prop_assert_eq!(read, written),
                Err(AnnotationError::SamePath { .. } | AnnotationError::Within { .. }) => {}
                Err(error) => prop_assert!(false, "{written}: {error}"),
            }
        }

        #[test]
        fn whatever_is_taken_is_normal_and_apart(annotation in "[a-z/=,. :A\\n-]{0,60}") {
            if let Ok(read) = PodDatasets::parse(&annotation) {
                for mount in read.mounts() {
                    prop_assert!(is_dataset_name(&mount.dataset));
                    prop_assert!(mount.path.starts_with('/') && !mount.path.ends_with('/'));
                    let sub_path = mount.sub_path.as_deref().unwrap_or("x");
                    for segment in mount.path[1..].split('/').chain(sub_path.split('/')) {
                        prop_assert!(!segment.is_empty() && segment != "." && segment != "..", "{annotation}");
                    }
                }
                prop_assert_eq!(PodDatasets::parse(&read.to_string()), Ok(read));
            }
        }

        #[test]
        fn no_text_makes_it_panic(annotation in ".{0,200}") {
            let _ = PodDatasets::parse(&annotation);
            let _ = Containers::parse(Some(&annotation));
        }
    }
}
