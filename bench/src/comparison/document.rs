//! What is kept of a case?

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};
use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use serde::{Deserialize, Serialize};

use super::cases::{Better, CASES, Case};
use super::machine::Machine;
use super::stage::Sample;
use crate::stats::{median, median_interval, spread};

/// What one contender did in all rounds of a group of cases.
#[derive(Debug, Default)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// How it was set up.
    pub setup: String,
    /// Its samples by case, one a round.
    pub samples: BTreeMap<&'static str, Vec<Sample>>,
}

/// A case with all its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Name of the case.
    pub case: String,
    /// The question for people.
    pub title: String,
    /// How the answer was found.
    pub method: String,
    /// Unit of the figures.
    pub unit: String,
    /// Which figure is better.
    pub better: Better,
    /// What S3 requests are divided by.
    pub item: String,
    /// When it ended.
    pub measured_at: String,
    /// On what.
    pub machine: Machine,
    /// How many rounds.
    pub rounds: usize,
    /// Each contender's figures, ours first.
    pub contenders: Vec<Figures>,
    /// Who was left out, and why.
    pub left_out: Vec<String>,
}

/// One contender's figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// How it was set up.
    pub setup: String,
    /// One figure a round.
    pub values: Vec<f64>,
    /// Their median.
    pub median: f64,
    /// 90 % interval of the median, by order statistics.
    pub interval: (f64, f64),
    /// Distance of the quartiles as a share of the median.
    pub spread: f64,
    /// S3 requests for each item, median; `None` for whoever asks nobody.
    pub requests_per_item: Option<f64>,
    /// Bytes of bodies out of S3 for each byte that the reader got, median.
    pub bytes_per_byte: Option<f64>,
    /// The most anonymous memory of all its processes, MiB, median.
    pub memory_mib: Option<f64>,
}

impl Document {
    /// Of what was found.
    pub fn new(
        case: &Case,
        machine: &Machine,
        rounds: usize,
        found: &[Found],
        left_out: Vec<String>,
    ) -> Self {
        let now = DateTime::from(SystemTime::now()).fmt(DateTimeFormat::DateTime).unwrap_or_default();
        let Case { name, title, method, unit, better, item } = *case;
        Self {
            case: name.to_owned(),
            title: title.to_owned(),
            method: method.to_owned(),
            unit: unit.to_owned(),
            better,
            item: item.to_owned(),
            measured_at: now,
            machine: machine.clone(),
            rounds,
            contenders: found.iter().filter_map(|found| Figures::new(name, found)).collect(),
            left_out,
        }
    }

    /// As JSON.
    ///
    /// # Errors
    /// None that is known.
    pub fn json(&self) -> Result<String> {
        Ok(format!("{}\n", serde_json::to_string_pretty(self)?))
    }
}

impl Figures {
    fn new(case: &str, found: &Found) -> Option<Self> {
        let Found { name, version, setup, samples } = found;
        let samples = samples.get(case)?;
        let values: Vec<f64> = samples.iter().map(|sample| round(sample.value)).collect();
        let of = |figure: fn(&Sample) -> Option<f64>| {
            median(&samples.iter().filter_map(figure).collect::<Vec<_>>()).map(round)
        };
        Some(Self {
            name: name.clone(),
            version: version.clone(),
            setup: setup.clone(),
            median: round(median(&values)?),
            interval: median_interval(&values)?,
            spread: round(spread(&values)),
            requests_per_item: of(Sample::requests_per_item),
            bytes_per_byte: of(Sample::bytes_per_byte),
            memory_mib: of(Sample::memory_mib),
            values,
        })
    }
}

/// All documents of a folder, in the order of the cases.
///
/// # Errors
/// Where one is there that cannot be read.
pub fn read_all(dir: &Path) -> Result<Vec<Document>> {
    let mut documents = Vec::new();
    for case in CASES {
        let file = dir.join(format!("{}.json", case.name));
        if file.exists() {
            let read = || -> Result<Document> { Ok(serde_json::from_slice(&std::fs::read(&file)?)?) };
            documents.push(read().with_context(|| format!("read {file:?}"))?);
        }
    }
    Ok(documents)
}

fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::comparison::stage::Seen;

    pub(crate) fn figures(name: &str, median: f64) -> Figures {
        Figures {
            name: name.to_owned(),
            version: "1".to_owned(),
            setup: "as it comes".to_owned(),
            values: vec![median],
            median,
            interval: (median, median),
            spread: 0.0,
            requests_per_item: None,
            bytes_per_byte: None,
            memory_mib: None,
        }
    }

    pub(crate) fn document(better: Better, contenders: Vec<Figures>) -> Document {
        Document {
            case: "epoch-first".to_owned(),
            title: "First epoch".to_owned(),
            method: "By reading.".to_owned(),
            unit: "files/s".to_owned(),
            better,
            item: "file".to_owned(),
            measured_at: "2026-01-02T03:04:05Z".to_owned(),
            machine: Machine {
                kernel: "6.8".to_owned(),
                processors: 2,
                model: "A".to_owned(),
                is_virtual: true,
                memory_bytes: 8 << 30,
                disk: "disk writes 1 MB/s".to_owned(),
            },
            rounds: 1,
            contenders,
            left_out: vec!["tool is left out: it is not installed".to_owned()],
        }
    }

    #[test]
    fn documents_read_back_in_the_order_of_the_cases() {
        let dir = tempfile::tempdir().unwrap();
        for (number, case) in CASES.iter().enumerate().rev() {
            let one = figures("Millrace", number as f64);
            let document = Document { case: case.name.to_owned(), ..document(case.better, vec![one]) };
            std::fs::write(dir.path().join(format!("{}.json", case.name)), document.json().unwrap()).unwrap();
        }
        std::fs::write(dir.path().join("latest.jsonl"), "no document").unwrap();
        let read = read_all(dir.path()).unwrap();
        let names: Vec<&str> = read.iter().map(|document| document.case.as_str()).collect();
        assert_eq!(names, CASES.iter().map(|case| case.name).collect::<Vec<_>>());
        std::fs::write(dir.path().join("large-first.json"), "{}").unwrap();
        assert!(format!("{:#}", read_all(dir.path()).unwrap_err()).contains("large-first.json"));
    }

    #[test]
    fn figures_are_medians_over_the_rounds() {
        let sample = |value: f64| {
            let seen = Seen { is_of_s3: true, requests: 20, bytes: 1000, memory_bytes: Some(1 << 20) };
            Sample { value, items: 10.0, read_bytes: 500, seen }
        };
        let samples = BTreeMap::from([("large-first", vec![sample(1.0), sample(5.0), sample(3.0)])]);
        let found = Found { name: "a".to_owned(), samples, ..Found::default() };
        let case = CASES.iter().find(|case| case.name == "large-first").unwrap();
        let machine = document(Better::Higher, Vec::new()).machine;
        let document = Document::new(case, &machine, 3, &[found, Found::default()], Vec::new());
        let [only] = &document.contenders[..] else { panic!("{document:?}") };
        assert_eq!((only.median, only.interval, only.values.len()), (3.0, (1.0, 5.0), 3));
        assert_eq!((only.requests_per_item, only.bytes_per_byte), (Some(2.0), Some(2.0)));
        assert_eq!(only.memory_mib, Some(1.0));
        assert!(document.measured_at.ends_with('Z'), "{}", document.measured_at);
    }
}
