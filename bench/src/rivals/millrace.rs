//! How does Millrace show a bucket?

use std::path::Path;

use anyhow::Result;

use super::{Contender, Place, Shown};
use crate::lab::Lab;
use crate::rig::millrace::{Folder, Medium, Setup, Workers};
use crate::rig::mounted::{Mounted, NodeStore};

/// More than any dataset here, bytes.
const QUOTA: u64 = 16 << 30;

/// One worker and one mount, their stores on the disk as are the caches of the others.
#[derive(Debug, Clone, Copy)]
pub struct Millrace;

/// The mount ends before the workers that it reads from.
struct Cold {
    mounted: Mounted,
    workers: Workers,
}

impl Contender for Millrace {
    fn name(&self) -> &'static str {
        "Millrace"
    }

    fn setup(&self) -> &'static str {
        "one worker and one mount, defaults, both stores on the disk; every 64 KiB are compared with their checksum"
    }

    fn version(&self, _: &Lab) -> Result<String> {
        Ok(env!("CARGO_PKG_VERSION").to_owned())
    }

    fn mount(&self, lab: &Lab, place: Place<'_>) -> Result<Box<dyn Shown>> {
        let Place { endpoint, bucket, native: _, cache } = place;
        let folder = Folder { path: String::new(), endpoint: endpoint.to_owned(), bucket: bucket.to_owned() };
        let setup = Setup {
            workers: 1,
            medium: Medium::Disk,
            quota_bytes: QUOTA,
            folders: vec![folder],
            cgroup: None,
        };
        let workers = Workers::start(lab, &setup)?;
        let store = cache.map(|dir| NodeStore { dir: dir.to_owned(), quota_bytes: QUOTA });
        let mounted = Mounted::start(lab, &workers, store.as_ref(), None)?;
        Ok(Box::new(Cold { mounted, workers }))
    }
}

impl Shown for Cold {
    fn path(&self) -> &Path {
        self.mounted.path()
    }

    fn pids(&self) -> Vec<u32> {
        let workers = self.workers.pids().into_iter().map(|(_, pid)| pid);
        workers.chain([self.mounted.program.pid()]).collect()
    }
}
