//! What does a training job of a known model ask of its storage?
//!
//! Numbers of MLPerf Storage v2.0 (`configs/dlio/workload` of github.com/mlcommons/storage) and of DLIO, whose emulation this is. What
//! is reported is DLIO-style, and no MLPerf result.

use std::time::Duration;

/// A model and the form of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// Images in record files of 143 MB.
    Resnet50,
    /// The same images as files of their own.
    Resnet50Raw,
    /// Small volumes, one a file.
    Cosmoflow,
    /// Large volumes, one a file.
    Unet3d,
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// NVIDIA A100.
    A100,
    /// NVIDIA H100.
    H100,
}

/// A job on one accelerator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Profile {
    /// The model.
    pub model: Model,
    /// The accelerator.
    pub accelerator: Accelerator,
    /// Samples of a step.
    pub batch: u64,
    /// Time that a step computes.
    pub compute: Duration,
    /// Mean size of a sample, bytes.
    pub sample_bytes: f64,
    /// Standard deviation of that; 0: all are alike.
    pub deviation_bytes: f64,
    /// Samples in one file.
    pub samples_per_file: u64,
    /// Files of the whole data set.
    pub files: u64,
    /// Threads that read for one accelerator.
    pub read_threads: usize,
    /// Batches that may lie ready.
    pub prefetch: u64,
    /// Share of the time that must be computed for the storage to be called fast enough.
    pub least_au: f64,
}

/// What readers ask for at a time, bytes: TensorFlow's buffer of record files and numpy's of arrays are both so large.
pub const TRANSFER_BYTES: u64 = 262_144;

/// DLIO's `prefetch_size`.
const PREFETCH: u64 = 2;

impl Model {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Resnet50, Self::Resnet50Raw, Self::Cosmoflow, Self::Unet3d];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resnet50 => "resnet50",
            Self::Resnet50Raw => "resnet50-raw",
            Self::Cosmoflow => "cosmoflow",
            Self::Unet3d => "unet3d",
        }
    }

    /// What files of it are called behind the point.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Resnet50 | Self::Cosmoflow => "tfrecord",
            Self::Resnet50Raw => "jpg",
            Self::Unet3d => "npz",
        }
    }
}

impl Accelerator {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::A100 => "A100",
            Self::H100 => "H100",
        }
    }
}

impl Profile {
    /// Of a model on an accelerator.
    pub fn new(model: Model, accelerator: Accelerator) -> Self {
        let millis = |a100: f64, h100: f64| {
            Duration::from_secs_f64(match accelerator {
                Accelerator::A100 => a100 / 1e3,
                Accelerator::H100 => h100 / 1e3,
            })
        };
        // 1,024 files of 1,251 records; a file is 143.4 MB.
        let resnet50 = Self {
            model,
            accelerator,
            batch: 400,
            compute: millis(435.0, 224.0),
            sample_bytes: 114_660.07,
            deviation_bytes: 0.0,
            samples_per_file: 1_251,
            files: 1_024,
            read_threads: 8,
            prefetch: PREFETCH,
            least_au: 0.90,
        };
        match model {
            Model::Resnet50 => resnet50,
            Model::Resnet50Raw => Self {
                sample_bytes: 114_660.0,
                samples_per_file: 1,
                files: resnet50.files * resnet50.samples_per_file,
                ..resnet50
            },
            Model::Cosmoflow => Self {
                batch: 1,
                compute: millis(5.51, 3.50),
                sample_bytes: 2_828_486.0,
                deviation_bytes: 71_311.0,
                samples_per_file: 1,
                files: 524_288,
                read_threads: 4,
                least_au: 0.70,
                ..resnet50
            },
            Model::Unet3d => Self {
                batch: 7,
                compute: millis(636.0, 323.0),
                sample_bytes: 146_600_628.0,
                deviation_bytes: 68_341_808.0,
                samples_per_file: 1,
                files: 168,
                read_threads: 4,
                ..resnet50
            },
        }
    }

    /// With samples of another size, times and numbers unchanged: for machines that hold no more.
    #[must_use]
    pub fn with_sample_scale(self, scale: f64) -> Self {
        Self {
            sample_bytes: self.sample_bytes * scale,
            deviation_bytes: self.deviation_bytes * scale,
            ..self
        }
    }

    /// Bytes a second that one accelerator takes when it never waits.
    pub fn bytes_per_second(&self) -> f64 {
        self.batch as f64 * self.sample_bytes / self.compute.as_secs_f64()
    }

    /// Samples a second that one accelerator takes when it never waits.
    pub fn samples_per_second(&self) -> f64 {
        self.batch as f64 / self.compute.as_secs_f64()
    }

    /// Size of a file of samples of the mean size, bytes.
    pub fn file_bytes(&self) -> u64 {
        // Sizes are far below 2^52.
        (self.sample_bytes * self.samples_per_file as f64).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MB/s and samples/s of one accelerator that never waits, as published for MLPerf Storage's parameters.
    #[test]
    fn each_profile_asks_for_what_its_job_does() {
        use Accelerator::{A100, H100};
        let published = [
            (Model::Unet3d, A100, 1_613.5, 11.0),
            (Model::Unet3d, H100, 3_177.1, 21.7),
            (Model::Resnet50, A100, 105.4, 919.5),
            (Model::Resnet50, H100, 204.8, 1_785.7),
            (Model::Resnet50Raw, A100, 105.4, 919.5),
            (Model::Cosmoflow, A100, 513.3, 181.5),
            (Model::Cosmoflow, H100, 808.1, 285.7),
        ];
        for (model, accelerator, megabytes, samples) in published {
            let profile = Profile::new(model, accelerator);
            let name = model.name();
            assert!((profile.bytes_per_second() / 1e6 - megabytes).abs() < 0.1, "{name}: {profile:?}");
            assert!((profile.samples_per_second() - samples).abs() < 0.1, "{name}: {profile:?}");
        }
    }

    #[test]
    fn data_sets_have_their_published_sizes() {
        let gigabytes = |model| {
            let profile = Profile::new(model, Accelerator::A100);
            profile.file_bytes() as f64 * profile.files as f64 / 1e9
        };
        assert!((gigabytes(Model::Unet3d) - 24.6).abs() < 0.1);
        assert!((gigabytes(Model::Resnet50) - 146.9).abs() < 0.1);
        assert!((gigabytes(Model::Resnet50Raw) - 146.9).abs() < 0.1);
        assert!((gigabytes(Model::Cosmoflow) - 1_483.0).abs() < 1.0);
        let part = Profile::new(Model::Unet3d, Accelerator::H100).with_sample_scale(1.0 / 16.0);
        assert_eq!(part.file_bytes(), 9_162_539);
        assert!((part.bytes_per_second() / 1e6 - 198.6).abs() < 0.1);
    }
}
