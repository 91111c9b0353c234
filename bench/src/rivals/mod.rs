//! What else shows the objects of a bucket as files?
//!
//! One contender a file: what it is called, and how it is mounted with nothing cached. A new one is such a file and its
//! line in [`all`].

mod ext4;
mod foreign;
mod millrace;
mod rclone;
mod s3fs;

use std::path::Path;

use anyhow::Result;

pub use ext4::Ext4;
pub use millrace::Millrace;
pub use rclone::Rclone;
pub use s3fs::S3fs;

use crate::lab::Lab;

/// What is to be shown, and with what.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// URL of the S3 server.
    pub endpoint: &'a str,
    /// The bucket.
    pub bucket: &'a str,
    /// The same objects as files on the disk.
    pub native: &'a Path,
    /// A new folder on the disk for all that is to be kept; without it nothing is kept there.
    pub cache: Option<&'a Path>,
}

/// A way to read objects as files.
pub trait Contender {
    /// Its name.
    fn name(&self) -> &'static str;

    /// How it is set up, for readers of the results.
    fn setup(&self) -> &'static str;

    /// Its version.
    ///
    /// # Errors
    /// Where it cannot run here; says what is missing.
    fn version(&self, lab: &Lab) -> Result<String>;

    /// Shows the bucket, from nothing.
    ///
    /// # Errors
    /// Where there are no files in the end, with what it logged.
    fn mount(&self, lab: &Lab, place: Place<'_>) -> Result<Box<dyn Shown>>;
}

/// Files that are shown. What shows them ends with this value.
pub trait Shown {
    /// Where they are.
    fn path(&self) -> &Path;

    /// The processes that show them.
    fn pids(&self) -> Vec<u32>;
}

/// All contenders, ours first.
pub fn all() -> Vec<Box<dyn Contender>> {
    vec![Box::new(Millrace), Box::new(Ext4), Box::new(S3fs), Box::new(Rclone)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_ours_is_first() {
        let names: Vec<&str> = all().iter().map(|contender| contender.name()).collect();
        let unique: std::collections::HashSet<&&str> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        assert_eq!(names.first(), Some(&"Millrace"));
    }
}
