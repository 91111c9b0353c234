//! How fast would it be if the files had always been here?

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::fs::{FsWord, statfs};

use super::{Contender, Place, Shown};
use crate::comparison::machine;
use crate::lab::Lab;

/// `f_type` of ext2, ext3 and ext4 (statfs(2)).
const EXT4_MAGIC: FsWord = 0xEF53;

/// The same files in a folder on the local disk.
#[derive(Debug, Clone, Copy)]
pub struct Ext4;

struct Folder(PathBuf);

impl Contender for Ext4 {
    fn name(&self) -> &'static str {
        "ext4"
    }

    fn setup(&self) -> &'static str {
        "the same files, written before to the disk that holds the caches of the others; no S3"
    }

    fn version(&self, lab: &Lab) -> Result<String> {
        let disk = lab.disk_dir("kind")?;
        let found = statfs(disk.path()).context("look at the file system of the disk")?;
        ensure!(found.f_type == EXT4_MAGIC, "the folder given by --dir is not on ext4");
        Ok(format!("Linux {}", machine::kernel()))
    }

    fn mount(&self, _: &Lab, place: Place<'_>) -> Result<Box<dyn Shown>> {
        Ok(Box::new(Folder(place.native.to_owned())))
    }
}

impl Shown for Folder {
    fn path(&self) -> &Path {
        &self.0
    }

    fn pids(&self) -> Vec<u32> {
        Vec::new()
    }
}
