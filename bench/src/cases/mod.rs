//! Which cases are there?

mod cold;
mod cold_random;
mod cold_wan;
mod data_port;
pub(crate) mod epoch;
mod epoch_others;
mod half_cache;
mod index;
mod listing;
mod local_worker;
mod memory;
mod metadata;
mod mixed;
pub(crate) mod native;
mod node_cache;
mod read_once;
mod request_budget;
pub(crate) mod scene;
mod small;
mod train;
mod warm;
mod warm_up;

pub use data_port::bare_server;

use anyhow::Result;

use crate::lab::Lab;
use crate::line::Measured;

/// What came of a case.
#[derive(Debug)]
pub enum Outcome {
    /// Its numbers, one line or several.
    Measured(Vec<Measured>),
    /// It cannot run here, and why.
    Skipped(String),
}

/// A case.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What it measures, against what.
    pub about: &'static str,
    /// Measures.
    pub run: fn(&Lab) -> Result<Outcome>,
}

/// All cases, in the order in which they run.
pub const CASES: &[Case] = &[
    Case {
        name: "cold-large",
        about: "cold read of one 4 GiB object, origin capped at 400 MB/s, against a plain parallel download",
        run: cold::large,
    },
    Case {
        name: "cold-files",
        about: "cold read of 64 objects of 64 MiB, origin capped at 400 MB/s, against a plain parallel download",
        run: cold::files,
    },
    Case {
        name: "cold-uncapped",
        about: "cold read of one 4 GiB object without a cap, against a plain parallel download",
        run: cold::uncapped,
    },
    Case {
        name: "cold-wan",
        about: "one sequential reader at 30 ms, 80 MB/s a stream, 400 MB/s in all, against one plain stream",
        run: cold_wan::run,
    },
    Case {
        name: "cold-random",
        about: "random 4 KiB reads in 64 GiB at 30 ms, 80 MB/s a stream, above the origin's first byte",
        run: cold_random::run,
    },
    Case {
        name: "warm-up",
        about: "3 workers warm 4 GiB, origin capped at 400 MB/s, against a plain parallel download",
        run: warm_up::run,
    },
    Case {
        name: "read-once",
        about: "bytes out of S3 for each byte of the dataset: 3 workers, 3 mounts, 2 readers each",
        run: read_once::run,
    },
    Case {
        name: "node-cache",
        about: "read of 4 GiB from a full node store, page cache dropped, against ext4",
        run: node_cache::run,
    },
    Case {
        name: "warm",
        about: "4 GiB that the kernel reads itself: in sequence, at random, mapped; every page cached, against ext4",
        run: warm::large,
    },
    Case {
        name: "late-switch",
        about: "second reader of a file that became complete while the first holds it open, against ext4",
        run: warm::late_switch,
    },
    Case {
        name: "first-byte-local",
        about: "64 KiB that the worker on this host has and the node has not, above a TCP round trip",
        run: warm::first_byte_local,
    },
    Case {
        name: "first-byte-remote",
        about: "the same from another network namespace, above a TCP round trip over the same link",
        run: warm::first_byte_remote,
    },
    Case {
        name: "local-worker",
        about: "4 GiB that a worker on this disk has, read where they lie, against the worker's data port",
        run: local_worker::run,
    },
    Case {
        name: "small-warm",
        about: "20,000 files of 100 KiB, shuffled, every page cached, 1 and 4 threads, against ext4",
        run: small::warm,
    },
    Case {
        name: "small-first",
        about: "the same, first touch after a listing, the mount process in 512 MiB, against ext4 in the page cache",
        run: small::first,
    },
    Case {
        name: "small-cold-t4",
        about: "the same, page cache dropped, node store on disk, 4 threads, against ext4",
        run: small::cold,
    },
    Case {
        name: "metadata",
        about: "find-size and ls-lR of 200,000 files, kernel caches dropped, against ext4",
        run: metadata::run,
    },
    Case {
        name: "request-budget",
        about: "processor time of the mount process for a LOOKUP, GETATTR, OPEN and READ, answered from what it has",
        run: request_budget::run,
    },
    Case {
        name: "epoch-small",
        about: "cold epoch of 10,000 objects of 100 KiB at 10 ms, 8 threads, against plain parallel GETs",
        run: epoch::small,
    },
    Case {
        name: "epoch-plain",
        about: "cold epoch of 20,000 objects of 100 KiB at 10 ms, 400 MB/s, 8 threads, against plain parallel GETs",
        run: epoch::plain,
    },
    Case {
        name: "epoch-best-rival",
        about: "the same against the better of s3fs and rclone",
        run: epoch_others::best_rival,
    },
    Case { name: "epoch-s3fs", about: "epoch-small against an s3fs mount", run: epoch_others::s3fs },
    Case { name: "epoch-rclone", about: "epoch-small against an rclone mount", run: epoch_others::rclone },
    Case {
        name: "train-resnet50-raw",
        about: "emulated A100 kept busy by 5 GiB of 115 kB files in a node store, within 1 GiB of memory, against ext4",
        run: train::resnet50_raw,
    },
    Case { name: "train-unet3d", about: "the same with volumes of 9.2 MB", run: train::unet3d },
    Case { name: "train-cosmoflow", about: "the same with volumes of 2.8 MB", run: train::cosmoflow },
    Case {
        name: "train-cold",
        about: "how busy two emulated A100 are in a first epoch of resnet50-raw at 2 ms, 1 GB/s",
        run: train::cold,
    },
    Case {
        name: "half-cache",
        about: "hits of 3 workers that together hold half of a shuffled dataset",
        run: half_cache::run,
    },
    Case {
        name: "data-port",
        about: "a worker's data port at 1 MiB against a bare sendfile loop of the same frames",
        run: data_port::run,
    },
    Case {
        name: "listing",
        about: "index of 1,000,000 keys at 30 ms a page against one sequential lister; memory it takes",
        run: listing::run,
    },
    Case {
        name: "index",
        about: "index of 10,000,000 keys: bytes a key, time to open, look-ups a second",
        run: index::run,
    },
    Case {
        name: "memory",
        about: "anonymous memory of worker and mount during cold-large, and the same within 512 MiB each",
        run: memory::run,
    },
    Case {
        name: "memory-small",
        about: "the same during epoch-small, with the stores on a disk",
        run: memory::small,
    },
    Case {
        name: "mount-10m",
        about: "mount of 10,000,000 files: time to the first stat; memory after all were listed",
        run: warm::ten_million,
    },
    Case {
        name: "mount-memory",
        about: "anonymous memory of the mount process while files are read cold, shuffled and at random",
        run: warm::memory,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let names: std::collections::HashSet<_> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.len());
    }
}
