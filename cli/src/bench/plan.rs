//! Which measurements are made, in which order?

use millrace_workload::blocks::Access;
use millrace_workload::metadata::Look;
use millrace_workload::tree::size_text;

use super::args::{Case, MeasureArgs};

/// Cases that are measured where none is asked for.
const BY_DEFAULT: [Case; 6] =
    [Case::Metadata, Case::Seq, Case::Random, Case::Mmap, Case::Direct, Case::SmallFiles];

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Of which case.
    pub case: Case,
    /// What is done.
    pub what: What,
    /// By so many threads; for train, accelerators.
    pub threads: usize,
}

/// What a measurement does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Reads whole files by blocks.
    Sequential(u64, Access),
    /// Reads blocks at random.
    Random(u64, Access),
    /// Reads whole files through mappings.
    Mapped(u64),
    /// Reads small files.
    SmallFiles,
    /// Walks the tree.
    Walk(Look),
    /// Looks at each file.
    Stat,
    /// Trains.
    Train,
    /// Measures the program itself.
    Overhead,
}

impl What {
    /// A name within the case; `None` where there is only one.
    pub fn variant(self) -> Option<&'static str> {
        match self {
            Self::Walk(Look::Names) => Some("find"),
            Self::Walk(Look::Sizes) => Some("find -size"),
            Self::Walk(Look::Long) => Some("ls -lR"),
            Self::Stat => Some("stat"),
            Self::Sequential(..)
            | Self::Random(..)
            | Self::Mapped(_)
            | Self::SmallFiles
            | Self::Train
            | Self::Overhead => None,
        }
    }

    /// Size of a block, bytes.
    pub fn block_bytes(self) -> Option<u64> {
        match self {
            Self::Sequential(bytes, _) | Self::Random(bytes, _) | Self::Mapped(bytes) => Some(bytes),
            Self::SmallFiles | Self::Walk(_) | Self::Stat | Self::Train | Self::Overhead => None,
        }
    }

    /// Whether it makes a line of the table.
    pub fn has_line(self) -> bool {
        !matches!(self, Self::Train | Self::Overhead)
    }

    /// Whether it goes round the page cache.
    pub fn is_direct(self) -> bool {
        matches!(self, Self::Sequential(_, Access::Direct) | Self::Random(_, Access::Direct))
    }
}

impl Step {
    /// What it is, for people.
    pub fn text(self) -> String {
        let Self { case, what, threads } = self;
        let mut text = case.name().to_owned();
        if let Some(variant) = what.variant() {
            text = variant.to_owned();
        }
        if let Some(bytes) = what.block_bytes() {
            text.push_str(&format!(", {}", size_text(bytes)));
        }
        let of = if what == What::Train { "accelerators" } else { "threads" };
        if threads > 1 {
            text.push_str(&format!(", {threads} {of}"));
        }
        text
    }
}

/// Whether cases that the folder does not allow are left out, or are errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// The user asked for each by name.
    Named,
    /// The user asked for none.
    WhatIsPossible,
}

/// All measurements, once.
pub fn steps(args: &MeasureArgs) -> (Vec<Step>, Strictness) {
    let (cases, strictness) = match args.cases.as_slice() {
        [] => (BY_DEFAULT.as_slice(), Strictness::WhatIsPossible),
        named => (named, Strictness::Named),
    };
    let access = if args.direct { Access::Direct } else { Access::Cached };
    let sizes = |usual: &[u64]| match args.block_size.as_slice() {
        [] => usual.to_vec(),
        asked => asked.to_vec(),
    };
    let threads = |usual: &[usize]| match args.threads.as_slice() {
        [] => usual.to_vec(),
        asked => asked.to_vec(),
    };
    const KIB: u64 = 1 << 10;
    let mut steps = Vec::new();
    for case in cases.iter().copied() {
        let (whats, threads): (Vec<What>, Vec<usize>) = match case {
            Case::Seq => (
                sizes(&[1024 * KIB]).into_iter().map(|size| What::Sequential(size, access)).collect(),
                threads(&[1]),
            ),
            Case::Random => (
                sizes(&[4 * KIB, 128 * KIB]).into_iter().map(|size| What::Random(size, access)).collect(),
                threads(&[1, 4]),
            ),
            Case::Mmap => (sizes(&[1024 * KIB]).into_iter().map(What::Mapped).collect(), threads(&[1])),
            Case::Direct => (
                sizes(&[1024 * KIB]).into_iter().map(|size| What::Sequential(size, Access::Direct)).collect(),
                threads(&[1]),
            ),
            Case::SmallFiles => (vec![What::SmallFiles], threads(&[1, 4])),
            Case::Metadata => {
                // What `find` and `ls` do, they do alone.
                for look in [Look::Names, Look::Sizes, Look::Long] {
                    steps.push(Step { case, what: What::Walk(look), threads: 1 });
                }
                (vec![What::Stat], threads(&[1]))
            }
            Case::Train => (vec![What::Train], args.train.ranks.clone()),
            Case::Overhead => (vec![What::Overhead], vec![1]),
        };
        for what in whats {
            steps.extend(threads.iter().map(|threads| Step { case, what, threads: *threads }));
        }
    }
    (steps, strictness)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn planned(args: &[&str]) -> (Vec<Step>, Strictness) {
        let cli = Cli::try_parse_from(["millrace", "bench", "/data"].iter().chain(args)).unwrap();
        let Command::Bench(args) = cli.command else { panic!("another command") };
        steps(&args.measure)
    }

    #[test]
    fn each_size_is_measured_with_each_number_of_threads() {
        let (steps, strictness) =
            planned(&["random", "--block-size", "4k,1m", "--threads", "1,2,8", "--direct"]);
        assert_eq!((steps.len(), strictness), (6, Strictness::Named));
        let last = Step { case: Case::Random, what: What::Random(1 << 20, Access::Direct), threads: 8 };
        assert_eq!(steps[5], last);
        assert!(last.what.is_direct());
        assert_eq!(last.text(), "random, 1 MiB, 8 threads");
    }

    #[test]
    fn without_cases_all_are_tried_and_listings_come_first() {
        let (steps, strictness) = planned(&[]);
        assert_eq!(strictness, Strictness::WhatIsPossible);
        assert_eq!(steps[0].what.variant(), Some("find"));
        for case in BY_DEFAULT {
            assert!(steps.iter().any(|step| step.case == case), "{}", case.name());
        }
    }

    #[test]
    fn train_is_measured_with_each_number_of_accelerators() {
        let (steps, _) = planned(&["train", "--ranks", "1,2,4", "--threads", "7"]);
        let ranks: Vec<usize> = steps.iter().map(|step| step.threads).collect();
        assert_eq!(ranks, [1, 2, 4]);
    }

    #[test]
    fn cases_keep_the_order_that_was_asked_for() {
        let (steps, _) = planned(&["small-files", "seq", "--threads", "3"]);
        let cases: Vec<_> = steps.iter().map(|step| (step.case.name(), step.threads)).collect();
        assert_eq!(cases, [("small-files", 3), ("seq", 3)]);
    }
}
