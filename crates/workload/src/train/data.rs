//! Does a folder hold what a job reads?

use super::order::Layout;
use super::profile::{Model, Profile};
use super::{WANTED_MEMORY_MULTIPLE, WANTED_STEPS};
use crate::error::Error;
use crate::tree::{Listed, Tree, size_text};

/// How far the mean size of files may be from the profile's, as a factor: data of the same kind, not of another.
const NEAR: f64 = 2.0;

/// How far a single file may be: beside samples there are labels and lists, which no job of the profile reads as samples.
const FAR: f64 = 16.0;

/// Steps that an epoch needs at least: the first is left out.
const LEAST_STEPS: u64 = 2;

/// Which files are taken for samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// Those of the profile's sizes.
    Profile,
    /// All, of whatever size: the user's own data under the profile's times.
    AnySize,
}

/// The samples of a folder.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingData<'a> {
    /// The files, in the order of the numbers of [`Layout`].
    pub files: Vec<&'a Listed>,
    /// What they hold.
    pub layout: Layout,
}

impl<'a> TrainingData<'a> {
    /// Of a folder.
    ///
    /// # Errors
    /// `NothingToRead` where there are too few samples of the right kind, with what there is and what would be right.
    pub fn new(tree: &'a Tree, profile: &Profile, ranks: usize, fit: Fit) -> Result<Self, Error> {
        let data = if profile.samples_per_file > 1 {
            records(tree, profile, fit)?
        } else {
            whole(tree, profile, fit)?
        };
        let needed = profile.batch * ranks as u64 * LEAST_STEPS;
        let found = data.layout.samples();
        // Files are dealt out whole: what one rank has too many, another lacks.
        if data.layout.least_of_rank(ranks) < profile.batch * LEAST_STEPS {
            let wanted = format!(
                "{needed} samples ({LEAST_STEPS} steps of {} for each of {ranks} accelerators)",
                profile.batch
            );
            return Err(tree.nothing(
                wanted,
                &format!(
                    "that is {found} samples in {} files; take fewer --ranks or make more with {}",
                    data.files.len(),
                    generate(profile)
                ),
            ));
        }
        Ok(data)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Steps that each rank can do in an epoch.
    pub fn steps(&self, profile: &Profile, ranks: usize) -> u64 {
        self.layout.least_of_rank(ranks) / profile.batch
    }

    /// Why a result is to be taken with care, for people.
    pub fn doubts(
        &self,
        profile: &Profile,
        ranks: usize,
        max_steps: Option<u64>,
        memory_bytes: u64,
    ) -> Vec<String> {
        let mut doubts = Vec::new();
        let steps = self.steps(profile, ranks).min(max_steps.unwrap_or(u64::MAX));
        if steps < WANTED_STEPS {
            doubts.push(format!(
                "{steps} steps an epoch; MLPerf Storage asks for {WANTED_STEPS}: start-up weighs more than it should"
            ));
        }
        if self.bytes() < memory_bytes.saturating_mul(WANTED_MEMORY_MULTIPLE) {
            doubts.push(format!(
                "{} of data and {} of memory; MLPerf Storage asks for {WANTED_MEMORY_MULTIPLE} times the memory: later epochs may \
                 come from the page cache",
                size_text(self.bytes()),
                size_text(memory_bytes)
            ));
        }
        doubts
    }
}

/// The command that makes what is missing.
fn generate(profile: &Profile) -> String {
    format!("`millrace bench generate PATH --profile {}`", profile.model.name())
}

/// Files of one sample each.
fn whole<'a>(tree: &'a Tree, profile: &Profile, fit: Fit) -> Result<TrainingData<'a>, Error> {
    let is_near = |size: f64, factor: f64| {
        size * factor >= profile.sample_bytes && size <= profile.sample_bytes * factor
    };
    let is_sample = |size: u64| size > 0 && (fit == Fit::AnySize || is_near(size as f64, FAR));
    let files: Vec<&Listed> = tree.files.iter().filter(|file| is_sample(file.size)).collect();
    let mean = files.iter().map(|file| file.size).sum::<u64>() as f64 / files.len().max(1) as f64;
    let fits = match fit {
        Fit::AnySize => !files.is_empty(),
        Fit::Profile => is_near(mean, NEAR),
    };
    if !fits {
        return Err(wrong_size(tree, profile, "files of about"));
    }
    let layout = Layout::Whole(files.iter().map(|file| file.size).collect());
    Ok(TrainingData { files, layout })
}

/// Files of many samples.
fn records<'a>(tree: &'a Tree, profile: &Profile, fit: Fit) -> Result<TrainingData<'a>, Error> {
    // With one record a file there would be nothing in a row to read.
    let least = match fit {
        Fit::Profile => 2.0 * profile.sample_bytes,
        Fit::AnySize => profile.sample_bytes,
    };
    let files: Vec<&Listed> = tree.files.iter().filter(|file| file.size as f64 >= least).collect();
    if files.is_empty() {
        return Err(wrong_size(tree, profile, "files of many records of"));
    }
    let layout = Layout::Records(files.iter().map(|file| file.size).collect(), profile.sample_bytes);
    Ok(TrainingData { files, layout })
}

fn wrong_size(tree: &Tree, profile: &Profile, what: &str) -> Error {
    let cure = format!(
        "give a folder with such files, make some with {}, or take files as they are with --any-size{}",
        generate(profile),
        if profile.model == Model::Resnet50 {
            "; images as files of their own are --profile resnet50-raw"
        } else {
            ""
        }
    );
    // Sizes are far below 2^52.
    tree.nothing(
        format!("{what} {} for {}", size_text(profile.sample_bytes as u64), profile.model.name()),
        &cure,
    )
}
