//! What can be asked of `millrace bench`?

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use millrace_workload::train::profile::{Accelerator, Model, Profile};

use super::values;
use crate::args::Output;

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct BenchArgs {
    /// What else to do.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// What to measure.
    #[command(flatten)]
    pub measure: MeasureArgs,
}

/// What is no measuring.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Make the data set of a training job in an empty folder, for `train` and small-files.
    #[command(
        about = super::help::GENERATE_ABOUT,
        long_about = super::help::GENERATE_LONG_ABOUT,
        after_help = super::help::GENERATE_AFTER
    )]
    Generate(GenerateArgs),
}

/// What is measured, and how.
#[derive(Debug, Args)]
pub struct MeasureArgs {
    /// Folder to measure, or a single file; nothing is written there.
    // Always there without a subcommand, with which it is not needed.
    #[arg(value_name = "PATH", required = true)]
    pub path: Option<PathBuf>,
    /// What to measure, in this order [default: all but train and overhead that the files allow].
    #[arg(value_name = "CASE")]
    pub cases: Vec<Case>,
    /// How long each measurement takes at most, such as 30s or 2m; cases that read each file once end earlier. Not for train.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::time)]
    pub runtime: Duration,
    /// Threads that read at once; several numbers are measured one after the other [default: by case].
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = values::threads)]
    pub threads: Vec<usize>,
    /// How much seq, random, mmap and direct ask for at once, such as 4k or 1m; several as with --threads [default: by case].
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = values::block_size)]
    pub block_size: Vec<u64>,
    /// Read round the page cache (O_DIRECT) in seq and random too.
    #[arg(long)]
    pub direct: bool,
    /// Where pseudo-random orders start [default: another one each time; it is printed].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Drop the kernel's caches before each measurement; root only. What the mount itself cached stays.
    #[arg(long)]
    pub drop_caches: bool,
    /// Measure everything so many times, in turn; the first time may be cold, the others are warm.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// What train emulates.
    #[command(flatten)]
    pub train: TrainArgs,
    /// Admin port of a cache worker, such as http://HOST:7422/metrics: show what S3 was asked for meanwhile. Once for each worker.
    #[arg(long, value_name = "URL")]
    pub worker_metrics: Vec<String>,
    /// For people, or one JSON document.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Write the JSON document to this file too.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the results into this SVG file.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// What `train` emulates.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of train")]
pub struct TrainArgs {
    /// The job.
    #[arg(long, value_enum, default_value = "resnet50-raw", value_name = "JOB")]
    pub profile: ModelName,
    /// What computes.
    #[arg(long, value_enum, ignore_case = true, default_value = "a100", value_name = "KIND")]
    pub accelerator: AcceleratorName,
    /// Accelerators that train together; several numbers are measured one after the other.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = values::ranks)]
    pub ranks: Vec<usize>,
    /// How often all data is read.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub epochs: u32,
    /// Steps of an epoch at most [default: as many as there are batches].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    pub steps: Option<u64>,
    /// Batches that may lie ready for an accelerator; 0 reads only when it waits [default: 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=1000))]
    pub prefetch: Option<u64>,
    /// Threads that read for one accelerator [default: 8 for both resnet50, 4 for the others].
    #[arg(long, value_name = "N", value_parser = values::ranks)]
    pub read_threads: Option<usize>,
    /// The data has samples of another size, such as 1/16; times stay.
    #[arg(long, value_name = "SHARE", default_value = "1", value_parser = values::share)]
    pub sample_scale: f64,
    /// Take all files as samples, of whatever size.
    #[arg(long)]
    pub any_size: bool,
}

impl TrainArgs {
    /// What one accelerator does.
    pub fn profile(&self) -> Profile {
        let usual =
            Profile::new(self.profile.into(), self.accelerator.into()).with_sample_scale(self.sample_scale);
        Profile {
            prefetch: self.prefetch.unwrap_or(usual.prefetch),
            read_threads: self.read_threads.unwrap_or(usual.read_threads),
            ..usual
        }
    }
}

/// Arguments of `bench generate`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("amount").required(true).args(["files", "scale"])))]
pub struct GenerateArgs {
    /// A folder that is empty or does not exist.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// For which job.
    #[arg(long, value_enum, value_name = "JOB")]
    pub profile: ModelName,
    /// How many files.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub files: Option<u64>,
    /// Which share of the whole data set's files, such as 1/100.
    #[arg(long, value_name = "SHARE", value_parser = values::share)]
    pub scale: Option<f64>,
    /// Samples of another size, such as 1/16; say so to train too.
    #[arg(long, value_name = "SHARE", default_value = "1", value_parser = values::share)]
    pub sample_scale: f64,
    /// Where sizes and bytes start.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// A job by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModelName {
    /// Images in record files of 143 MB, 147 GB in all.
    Resnet50,
    /// The same images as 1.28 million files of 115 kB.
    Resnet50Raw,
    /// Volumes of 2.8 MB, one a file, 1.5 TB in all.
    Cosmoflow,
    /// Volumes of 147 MB, one a file, 25 GB in all.
    Unet3d,
}

impl From<ModelName> for Model {
    fn from(name: ModelName) -> Self {
        match name {
            ModelName::Resnet50 => Self::Resnet50,
            ModelName::Resnet50Raw => Self::Resnet50Raw,
            ModelName::Cosmoflow => Self::Cosmoflow,
            ModelName::Unet3d => Self::Unet3d,
        }
    }
}

/// An accelerator by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AcceleratorName {
    /// NVIDIA A100.
    A100,
    /// NVIDIA H100.
    H100,
}

impl From<AcceleratorName> for Accelerator {
    fn from(name: AcceleratorName) -> Self {
        match name {
            AcceleratorName::A100 => Self::A100,
            AcceleratorName::H100 => Self::H100,
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// Large files, each from its beginning to its end.
    Seq,
    /// Blocks of large files at random.
    Random,
    /// Large files through a memory mapping.
    Mmap,
    /// Large files by O_DIRECT.
    Direct,
    /// Small files, shuffled: open, read, close.
    SmallFiles,
    /// Folders and attributes: find, find -size, ls -lR, stat.
    Metadata,
    /// A training job on emulated accelerators; see the options of train.
    Train,
    /// What this program itself costs.
    Overhead,
}

impl Case {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seq => "seq",
            Self::Random => "random",
            Self::Mmap => "mmap",
            Self::Direct => "direct",
            Self::SmallFiles => "small-files",
            Self::Metadata => "metadata",
            Self::Train => "train",
            Self::Overhead => "overhead",
        }
    }
}
