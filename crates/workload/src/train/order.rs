//! Which samples does each rank read in an epoch, in which order?

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

/// One sample: a whole file, or a record of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Number of the file.
    pub file: usize,
    /// Where it begins, bytes.
    pub offset: u64,
    /// Its size, bytes.
    pub length: u64,
}

/// The data set, as numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum Layout {
    /// Files that are one sample each, by their sizes.
    Whole(Vec<u64>),
    /// Files of samples one behind the other: sizes of the files, and of a sample.
    Records(Vec<u64>, f64),
}

impl Layout {
    /// Samples in all.
    pub fn samples(&self) -> u64 {
        match self {
            Self::Whole(files) => files.len() as u64,
            Self::Records(files, bytes) => files.iter().map(|size| records(*size, *bytes)).sum(),
        }
    }

    /// Samples that each of so many ranks has at least, however the files are dealt out.
    pub fn least_of_rank(&self, ranks: usize) -> u64 {
        let (files, least) = match self {
            Self::Whole(files) => (files.len(), 1),
            Self::Records(files, bytes) => {
                (files.len(), files.iter().map(|size| records(*size, *bytes)).min().unwrap_or(0))
            }
        };
        (files / ranks.max(1)) as u64 * least
    }
}

/// What one rank reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankOrder {
    /// The samples in the order of the batches.
    pub samples: Vec<Sample>,
    /// Which thread reads each of them; `None`: the one that is free first. Records of a file are read by one thread, in a row,
    /// as TensorFlow's interleaved readers do.
    pub threads: Option<Vec<u16>>,
}

/// Shuffles the files and deals them out to the ranks, as DLIO does at the start of each epoch.
///
/// Of record files, each rank reads as many at once as it has threads, a record of each in turn.
pub fn deal(layout: &Layout, ranks: usize, read_threads: usize, seed: u64) -> Vec<RankOrder> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let count = match layout {
        Layout::Whole(files) | Layout::Records(files, _) => files.len(),
    };
    let mut files: Vec<usize> = (0..count).collect();
    files.shuffle(&mut rng);
    let ranks = ranks.max(1);
    let of_rank = |rank: usize| files.iter().copied().skip(rank).step_by(ranks);
    (0..ranks)
        .map(|rank| match layout {
            Layout::Whole(sizes) => RankOrder {
                samples: of_rank(rank).map(|file| Sample { file, offset: 0, length: sizes[file] }).collect(),
                threads: None,
            },
            Layout::Records(sizes, bytes) => {
                interleaved(&of_rank(rank).collect::<Vec<_>>(), sizes, *bytes, read_threads.max(1))
            }
        })
        .collect()
}

fn interleaved(files: &[usize], sizes: &[u64], bytes: f64, threads: usize) -> RankOrder {
    let (mut samples, mut owners) = (Vec::new(), Vec::new());
    for group in files.chunks(threads) {
        let most = group.iter().map(|file| records(sizes[*file], bytes)).max().unwrap_or(0);
        for number in 0..most {
            for (thread, file) in group.iter().copied().enumerate() {
                if number < records(sizes[file], bytes) {
                    // Sizes are no whole numbers: the ends of neighbours meet.
                    let at = |number: u64| (number as f64 * bytes) as u64;
                    let (offset, end) = (at(number), at(number + 1));
                    samples.push(Sample { file, offset, length: end - offset });
                    owners.push(u16::try_from(thread).unwrap_or(u16::MAX));
                }
            }
        }
    }
    RankOrder { samples, threads: Some(owners) }
}

/// Whole records in a file. The sizes were rounded when the file was made: half a byte is forgiven.
fn records(size: u64, bytes: f64) -> u64 {
    ((size as f64 + 0.5) / bytes.max(1.0)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_file_is_dealt_once_and_every_epoch_has_its_order() {
        let layout = Layout::Whole((1..=103).collect());
        let ranks = deal(&layout, 4, 8, 1);
        let all: Vec<usize> = ranks.iter().flat_map(|rank| rank.samples.iter().map(|s| s.file)).collect();
        assert_eq!((all.len(), all.iter().collect::<HashSet<_>>().len()), (103, 103));
        assert!(ranks.iter().all(|rank| (25..=26).contains(&rank.samples.len())));
        assert!(ranks[0].samples.iter().all(|sample| sample.length == sample.file as u64 + 1));
        assert_eq!(ranks, deal(&layout, 4, 8, 1));
        assert_ne!(ranks, deal(&layout, 4, 8, 2));
    }

    #[test]
    fn each_rank_has_the_samples_that_it_was_promised() {
        for (layout, ranks, wanted) in [
            (Layout::Whole(vec![1; 11]), 3, 3),
            (Layout::Records(vec![1_000, 500, 2_000], 100.0), 2, 5),
            // A rank without a file has none.
            (Layout::Records(vec![100_000; 3], 100.0), 4, 0),
        ] {
            assert_eq!(layout.least_of_rank(ranks), wanted);
            for rank in deal(&layout, ranks, 2, 1) {
                assert!(rank.samples.len() as u64 >= wanted, "{layout:?}");
            }
        }
    }

    #[test]
    fn records_of_a_file_are_read_in_a_row_by_one_thread() {
        // 1,251 records of 114,660.07 bytes, as in the published data set.
        let size = (1_251.0 * 114_660.07_f64).round() as u64;
        let layout = Layout::Records(vec![size; 20], 114_660.07);
        assert_eq!(layout.samples(), 20 * 1_251);
        for rank in deal(&layout, 2, 4, 9) {
            assert_eq!(rank.samples.len(), 10 * 1_251);
            let threads = rank.threads.unwrap();
            for thread in 0..4 {
                let own: Vec<_> = rank.samples.iter().zip(&threads).filter(|(_, t)| **t == thread).collect();
                for pair in own.windows(2) {
                    let (one, next) = (pair[0].0, pair[1].0);
                    let is_row = one.file == next.file && one.offset + one.length == next.offset;
                    assert!(is_row || next.offset == 0, "{pair:?}");
                }
            }
            assert!(rank.samples.iter().all(|sample| sample.offset + sample.length <= size));
            let files: HashSet<_> = rank.samples[..4].iter().map(|sample| sample.file).collect();
            assert_eq!(files.len(), 4);
        }
    }
}
