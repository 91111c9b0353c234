//! How is the data set of a job made?

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use crate::error::Error;
use crate::train::profile::Profile;

/// Files of one folder: as many as a class of ImageNet has images, within a factor of two.
const FILES_OF_FOLDER: u64 = 1_000;

/// How much is written at once.
const WRITE_BYTES: usize = 1 << 20;

/// The smallest sample, as a share of the mean: the published deviation of unet3d reaches below nothing.
const LEAST_SHARE: f64 = 1.0 / 16.0;

/// What to make.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DataSet {
    /// For which job.
    pub profile: Profile,
    /// How many files.
    pub files: u64,
    /// Where sizes and bytes start.
    pub seed: u64,
}

impl DataSet {
    /// Size of a file, bytes.
    pub fn size(&self, number: u64) -> u64 {
        let profile = &self.profile;
        if profile.deviation_bytes == 0.0 {
            return profile.file_bytes();
        }
        let mut rng = self.rng(number);
        // Box and Muller: two even numbers make a normal one; 1 - x is never 0.
        let (one, other) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
        let normal = (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos();
        let size = profile.sample_bytes + normal * profile.deviation_bytes;
        // Sizes are far below 2^52.
        size.max(profile.sample_bytes * LEAST_SHARE).max(1.0).round() as u64
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        (0..self.files).map(|number| self.size(number)).sum()
    }

    /// Path of a file below the root.
    pub fn path(&self, number: u64) -> PathBuf {
        let extension = self.profile.model.extension();
        PathBuf::from(format!("{:05}/{number:08}.{extension}", number / FILES_OF_FOLDER))
    }

    fn rng(&self, number: u64) -> SmallRng {
        SmallRng::seed_from_u64(self.seed ^ number.rotate_left(20))
    }

    /// Makes all files in a folder that is empty, or not there yet; `written` hears of each file's bytes.
    ///
    /// Bytes are pseudo-random, so that no compression below flatters. They are in no format: no loader of the model reads them.
    ///
    /// # Errors
    /// `NotEmpty`, `NoRoom` before anything is written; `Write` with the path.
    pub fn make(&self, root: &Path, written: &mut dyn FnMut(u64)) -> Result<(), Error> {
        let write = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Write { path, source }
        };
        std::fs::create_dir_all(root).map_err(write(root))?;
        let mut entries =
            std::fs::read_dir(root).map_err(|source| Error::ReadFolder { path: root.to_owned(), source })?;
        if let Some(Ok(entry)) = entries.next() {
            return Err(Error::NotEmpty { path: root.to_owned(), entry: entry.file_name().into() });
        }
        let room = rustix::fs::statvfs(root).map_err(|errno| write(root)(errno.into()))?;
        let (needed, free) = (self.bytes(), room.f_bavail.saturating_mul(room.f_frsize));
        if needed > free {
            return Err(Error::NoRoom { path: root.to_owned(), needed, free });
        }
        let mut buffer = vec![0; WRITE_BYTES];
        for number in 0..self.files {
            let path = root.join(self.path(number));
            if number.is_multiple_of(FILES_OF_FOLDER)
                && let Some(folder) = path.parent()
            {
                std::fs::create_dir_all(folder).map_err(write(folder))?;
            }
            let mut file =
                OpenOptions::new().write(true).create_new(true).open(&path).map_err(write(&path))?;
            let (size, mut rng) = (self.size(number), self.rng(number));
            let mut left = size;
            while left > 0 {
                let length = usize::try_from(left).unwrap_or(WRITE_BYTES).min(WRITE_BYTES);
                rng.fill_bytes(&mut buffer[..length]);
                file.write_all(&buffer[..length]).map_err(write(&path))?;
                left -= length as u64;
            }
            written(size);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::profile::{Accelerator, Model};
    use crate::train::{Fit, TrainingData};
    use crate::tree::{MAX_FILES, Tree};

    fn data_set(model: Model, scale: f64, files: u64) -> DataSet {
        DataSet { profile: Profile::new(model, Accelerator::A100).with_sample_scale(scale), files, seed: 5 }
    }

    #[test]
    fn what_is_made_for_a_job_is_what_the_job_takes() {
        for (model, scale, files) in [
            (Model::Resnet50Raw, 0.01, 1_100),
            (Model::Resnet50, 1e-3, 3),
            (Model::Cosmoflow, 1e-3, 30),
            (Model::Unet3d, 1e-5, 30),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let made = data_set(model, scale, files);
            let mut bytes = 0;
            made.make(dir.path(), &mut |size| bytes += size).unwrap();
            let tree = Tree::list(dir.path(), MAX_FILES).unwrap();
            assert_eq!((tree.files.len() as u64, tree.bytes()), (files, made.bytes()), "{}", model.name());
            assert_eq!(bytes, made.bytes());
            let data = TrainingData::new(&tree, &made.profile, 1, Fit::Profile).unwrap();
            assert_eq!(data.layout.samples(), files * made.profile.samples_per_file, "{}", model.name());
        }
    }

    #[test]
    fn sizes_have_the_published_mean_and_deviation() {
        let volumes = data_set(Model::Cosmoflow, 1.0, 20_000);
        let sizes: Vec<f64> = (0..volumes.files).map(|number| volumes.size(number) as f64).collect();
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        let variance = sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>() / sizes.len() as f64;
        assert!((mean / 2_828_486.0 - 1.0).abs() < 0.002, "{mean}");
        assert!((variance.sqrt() / 71_311.0 - 1.0).abs() < 0.03, "{}", variance.sqrt());
    }

    #[test]
    fn nothing_is_written_where_something_is_or_nothing_fits() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("mine"), "x").unwrap();
        let error =
            data_set(Model::Cosmoflow, 1e-3, 1).make(dir.path(), &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains("mine"), "{error}");
        let empty = tempfile::tempdir().unwrap();
        let huge = data_set(Model::Unet3d, 1e6, 100);
        let error = huge.make(empty.path(), &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains("--files") && error.contains("GiB"), "{error}");
        assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
    }
}
