//! How does s3fs show a bucket?

use std::process::Command;

use anyhow::Result;

use super::{Contender, Place, Shown, foreign};
use crate::lab::Lab;

/// s3fs with as many requests in flight as it lets one choose, a large cache of attributes, and the kernel's cache kept.
#[derive(Debug, Clone, Copy)]
pub struct S3fs;

/// What it is always told.
const OPTIONS: [&str; 7] = [
    "public_bucket=1",
    "use_path_request_style",
    "ro",
    "max_stat_cache_size=1000000",
    "stat_cache_expire=3600",
    "multireq_max=64",
    "kernel_cache",
];

impl Contender for S3fs {
    fn name(&self) -> &'static str {
        "s3fs"
    }

    fn setup(&self) -> &'static str {
        "`use_cache` on the disk without a bound, `multireq_max=64`, `kernel_cache`, attributes of 1,000,000 files kept"
    }

    fn version(&self, _: &Lab) -> Result<String> {
        let line = foreign::version("s3fs")?;
        // "Amazon Simple Storage Service File System V1.90 (commit:unknown) with GnuTLS(gcrypt)"
        let number =
            line.split_whitespace().find_map(|word| word.strip_prefix('V')).unwrap_or(&line).to_owned();
        Ok(number)
    }

    fn mount(&self, lab: &Lab, place: Place<'_>) -> Result<Box<dyn Shown>> {
        let Place { endpoint, bucket, native: _, cache } = place;
        foreign::mount(lab, self.name(), |point| {
            let mut command = Command::new("s3fs");
            command.arg(bucket).arg(point).args(["-f", "-o", &format!("url={endpoint}")]);
            for option in OPTIONS {
                command.args(["-o", option]);
            }
            if let Some(cache) = cache {
                command.args(["-o", &format!("use_cache={}", cache.display())]);
            }
            command
        })
    }
}
