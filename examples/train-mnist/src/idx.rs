//! How are pictures and labels read from gzipped IDX files?
//!
//! Layout (<http://yann.lecun.com/exdb/mnist/>), all numbers big endian: magic 0x0803 for pictures or 0x0801 for labels,
//! count, for pictures rows and columns, then one byte for each pixel or label.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;

/// Pixels of a picture: 28 rows of 28.
pub const PIXELS: usize = 28 * 28;
/// Labels: the digits 0 to 9.
pub const CLASSES: usize = 10;

const PICTURES_MAGIC: u32 = 0x0803;
const LABELS_MAGIC: u32 = 0x0801;
/// Bytes asked of the file system at once, as a data loader would.
const BUFFER_BYTES: usize = 1 << 20;

/// Why samples cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadSamples {
    /// A file cannot be opened.
    #[error("open {path:?}")]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file ends too soon, or is no gzip.
    #[error("read {path:?}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{path:?} is not what it should be: {problem}")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// One picture and what it shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Brightness of each pixel, 0 to 1.
    pub pixels: Vec<f32>,
    /// The digit, 0 to 9.
    pub label: usize,
}

struct Idx {
    path: PathBuf,
    reader: GzDecoder<BufReader<File>>,
}

impl Idx {
    fn open(path: PathBuf) -> Result<Self, ReadSamples> {
        let file = File::open(&path).map_err(|source| ReadSamples::Open { path: path.clone(), source })?;
        Ok(Self { reader: GzDecoder::new(BufReader::with_capacity(BUFFER_BYTES, file)), path })
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ReadSamples> {
        self.reader.read_exact(bytes).map_err(|source| ReadSamples::Read { path: self.path.clone(), source })
    }

    fn number(&mut self) -> Result<u32, ReadSamples> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    }

    fn expect(&mut self, what: &str, expected: u32) -> Result<(), ReadSamples> {
        let number = self.number()?;
        if number == expected { Ok(()) } else { Err(self.wrong(format!("{what} {number}, not {expected}"))) }
    }

    fn wrong(&self, problem: String) -> ReadSamples {
        ReadSamples::Content { path: self.path.clone(), problem }
    }
}

/// The samples of a set, in the order of the files.
pub struct Samples {
    pictures: Idx,
    labels: Idx,
    left: u32,
}

impl Samples {
    /// Opens `<set>-images-idx3-ubyte.gz` and `<set>-labels-idx1-ubyte.gz` in a folder; sets are `train` and `t10k`.
    ///
    /// # Errors
    /// A file is missing, cannot be read, or is no IDX file of the kind.
    pub fn open(folder: &Path, set: &str) -> Result<Self, ReadSamples> {
        let mut pictures = Idx::open(folder.join(format!("{set}-images-idx3-ubyte.gz")))?;
        let mut labels = Idx::open(folder.join(format!("{set}-labels-idx1-ubyte.gz")))?;
        pictures.expect("magic", PICTURES_MAGIC)?;
        labels.expect("magic", LABELS_MAGIC)?;
        let left = pictures.number()?;
        labels.expect("count", left)?;
        pictures.expect("rows", 28)?;
        pictures.expect("columns", 28)?;
        Ok(Self { pictures, labels, left })
    }

    fn read(&mut self) -> Result<Sample, ReadSamples> {
        let (mut pixels, mut label) = ([0; PIXELS], [0]);
        self.pictures.fill(&mut pixels)?;
        self.labels.fill(&mut label)?;
        let label = usize::from(label[0]);
        if label >= CLASSES {
            return Err(self.labels.wrong(format!("label {label} is no digit")));
        }
        Ok(Sample { pixels: pixels.iter().map(|pixel| f32::from(*pixel) / 255.0).collect(), label })
    }
}

impl Iterator for Samples {
    type Item = Result<Sample, ReadSamples>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        Some(self.read().inspect_err(|_| self.left = 0))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn write(folder: &Path, name: &str, head: &[u32], body: &[u8]) {
        let mut gz = GzEncoder::new(File::create(folder.join(name)).unwrap(), Compression::fast());
        for number in head {
            gz.write_all(&number.to_be_bytes()).unwrap();
        }
        gz.write_all(body).unwrap();
        gz.finish().unwrap();
    }

    fn folder(labels: &[u8], count: u32) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "t-images-idx3-ubyte.gz", &[PICTURES_MAGIC, 2, 28, 28], &[255; 2 * PIXELS]);
        write(dir.path(), "t-labels-idx1-ubyte.gz", &[LABELS_MAGIC, count], labels);
        dir
    }

    #[test]
    fn every_sample_has_its_label() {
        let dir = folder(&[3, 9], 2);
        let samples: Vec<Sample> = Samples::open(dir.path(), "t").unwrap().map(Result::unwrap).collect();
        assert_eq!(samples.iter().map(|sample| sample.label).collect::<Vec<_>>(), [3, 9]);
        assert!(samples.iter().all(|sample| sample.pixels == [1.0; PIXELS]));
    }

    #[test]
    fn a_set_that_is_damaged_is_refused_by_file() {
        let open = |dir: &tempfile::TempDir| Samples::open(dir.path(), "t");
        assert!(matches!(open(&folder(&[3, 9, 1], 3)), Err(ReadSamples::Content { .. })));
        let short: Result<Vec<Sample>, ReadSamples> = open(&folder(&[3], 2)).unwrap().collect();
        assert!(
            matches!(short, Err(ReadSamples::Read { path, .. }) if path.ends_with("t-labels-idx1-ubyte.gz"))
        );
        let mut strange = open(&folder(&[3, 10], 2)).unwrap();
        assert!(strange.next().unwrap().is_ok());
        assert!(matches!(strange.next(), Some(Err(ReadSamples::Content { .. }))));
        assert!(strange.next().is_none());
        assert!(matches!(Samples::open(Path::new("/no/such"), "t"), Err(ReadSamples::Open { .. })));
    }
}
