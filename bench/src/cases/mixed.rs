//! What do the cases read whose dataset has large and small objects?

use anyhow::Result;
use millrace_s3_server::faults::plan::FaultPlan;
use tempfile::TempDir;

use crate::lab::Lab;
use crate::plain::Plain;
use crate::reading::Expected;
use crate::rig::millrace::{Folder, Medium, Setup};
use crate::rig::origin::{Bucket, Origin};

/// Several buckets at one S3 server, each a folder of the dataset.
pub struct Mixed {
    /// The server.
    pub origin: Origin,
    /// The files below a mount, with their bytes.
    pub files: Vec<Expected>,
    folders: Vec<Folder>,
    _dir: TempDir,
}

impl Mixed {
    /// Starts a server of synthetic buckets, by name and the rest of their specs.
    pub fn start(lab: &Lab, specs: &[(&str, &str)]) -> Result<Self> {
        let dir = lab.disk_dir("origin")?;
        let bucket =
            |(name, rest): &(&str, &str)| format!("bucket={name},{rest}").parse().map(Bucket::Synthetic);
        let buckets = specs.iter().map(bucket).collect::<Result<Vec<_>, _>>()?;
        let origin = Origin::start(&buckets, &FaultPlan::default(), dir.path())?;
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        for (bucket, _) in specs {
            for (key, size) in Plain::new(&origin.endpoint, bucket).objects(lab)? {
                files.push(Expected { path: format!("{bucket}/{key}").into(), key: Some(key), size });
            }
            folders.push(Folder {
                path: (*bucket).to_owned(),
                endpoint: origin.endpoint.clone(),
                bucket: (*bucket).to_owned(),
            });
        }
        // An index is of sources in order of their paths.
        folders.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { origin, files, folders, _dir: dir })
    }

    /// Bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Workers over the buckets, their stores in memory.
    pub fn setup(&self, workers: usize, quota_bytes: u64) -> Setup<'static> {
        Setup { workers, medium: Medium::Memory, quota_bytes, folders: self.folders.clone(), cgroup: None }
    }
}
