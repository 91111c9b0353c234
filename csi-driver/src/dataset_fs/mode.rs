//! Which way of serving the kernel suits a dataset?
//!
//! *Files*: every open and close is a request, and large files that the node holds can be handed to the kernel. *Packed*:
//! nothing is ever opened, so that a small file whose pages are cached costs no request at all; but then the kernel reads
//! large files through its second page cache. The choice is for a whole mount, since the kernel asks once.

use millrace_api::index::IndexView;
use millrace_api::mount::MountMode;

/// What an open and its close cost more when they are requests, picoseconds. Measured: 36,000 pairs a second against 225,000
/// (one thread, warm; two cores, Linux 6.18).
const OPEN_PICOSECONDS: u128 = 25_000_000;

/// What a byte of a large file costs more when the kernel does not read the node's file itself, picoseconds. Measured: 5.7
/// against 8.4 GB/s (sequential, warm, the same machine); random and mapped reads lose more.
const BYTE_PICOSECONDS: u128 = 55;

/// How the kernel is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// Files are opened.
    Files,
    /// Nothing is opened.
    Packed,
}

/// Why it is served so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// The Dataset says so.
    Asked,
    /// Opening its files would cost more than handing large ones to the kernel saves.
    SmallFiles,
    /// Handing large files to the kernel saves more than opening costs.
    LargeFiles,
    /// The kernel does not know how to do without opens.
    Kernel,
}

/// A way to serve, and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The way.
    pub served: Served,
    /// The reason.
    pub because: Because,
}

/// Of what sizes a version's files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// All files.
    pub files: u64,
    /// Bytes of the files that are not in packs.
    pub large_bytes: u64,
}

impl Shape {
    /// Sums over the packs, of which there are far fewer than files. What aligns small files in packs counts as theirs, so
    /// that `large_bytes` may be too small by 4 KiB a small file.
    pub fn of(index: IndexView<'_>) -> Self {
        let totals = index.totals();
        Self { files: totals.files.into(), large_bytes: totals.bytes.saturating_sub(index.packed_bytes()) }
    }
}

impl Served {
    /// Its name in metrics and the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Packed => "packed",
        }
    }
}

impl Because {
    /// Its name in metrics and the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::SmallFiles => "small_files",
            Self::LargeFiles => "large_files",
            Self::Kernel => "kernel",
        }
    }
}

/// Chooses: for a pass over all files, each opened once, the opens that packed mode saves are weighed against the bytes of
/// large files that it makes dearer. They are equal at about 450 kB of large files for each file.
pub fn choose(asked: MountMode, shape: Shape) -> Choice {
    let (served, because) = match asked {
        MountMode::Files => (Served::Files, Because::Asked),
        MountMode::Packed => (Served::Packed, Because::Asked),
        MountMode::Auto => {
            let opens = u128::from(shape.files) * OPEN_PICOSECONDS;
            let bytes = u128::from(shape.large_bytes) * BYTE_PICOSECONDS;
            if opens > bytes {
                (Served::Packed, Because::SmallFiles)
            } else {
                (Served::Files, Because::LargeFiles)
            }
        }
    };
    Choice { served, because }
}

impl Choice {
    /// What remains of it with a kernel that can, or cannot, do without opens.
    pub fn with_kernel(self, can_do_without_opens: bool) -> Self {
        match self.served {
            Served::Packed if !can_do_without_opens => {
                Self { served: Served::Files, because: Because::Kernel }
            }
            Served::Packed | Served::Files => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const GIB: u64 = 1 << 30;

    fn auto(files: u64, large_bytes: u64) -> (Served, Because) {
        let Choice { served, because } = choose(MountMode::Auto, Shape { files, large_bytes });
        (served, because)
    }

    #[test]
    fn small_files_are_packed_and_large_ones_are_opened() {
        assert_eq!(auto(1_281_167, 0), (Served::Packed, Because::SmallFiles));
        assert_eq!(auto(168, 168 * GIB), (Served::Files, Because::LargeFiles));
        assert_eq!(auto(0, 0), (Served::Files, Because::LargeFiles));
    }

    #[test]
    fn a_mixed_dataset_goes_by_what_its_opens_and_its_bytes_cost() {
        // Half of the bytes in shards, but a million opens: 25 s of opens against 5.9 s of bytes.
        assert_eq!(auto(1_000_100, 100 * GIB).0, Served::Packed);
        // A README and some labels beside shards do not make it one of small files.
        assert_eq!(auto(1_000 + 20, 1_000 * GIB / 8).0, Served::Files);
        let (files, each) = (1_000, 450 * KIB);
        assert_eq!(auto(files, files * each * 9 / 10).0, Served::Packed);
        assert_eq!(auto(files, files * each * 11 / 10).0, Served::Files);
    }

    #[test]
    fn the_user_has_the_last_word_but_for_the_kernel() {
        let shape = Shape { files: 10, large_bytes: 10 * GIB };
        let packed = choose(MountMode::Packed, shape);
        assert_eq!(packed, Choice { served: Served::Packed, because: Because::Asked });
        assert_eq!(packed.with_kernel(true), packed);
        assert_eq!(packed.with_kernel(false), Choice { served: Served::Files, because: Because::Kernel });
        let files = choose(MountMode::Files, Shape { files: 1_000_000, large_bytes: 0 });
        assert_eq!(files, Choice { served: Served::Files, because: Because::Asked });
        assert_eq!(files.with_kernel(false), files);
    }
}
