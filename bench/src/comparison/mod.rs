//! How are Millrace and all others measured in the same run, and what is told of it?
//!
//! `bench rivals`: the contenders of [`crate::rivals`] and a plain download in turn, in interleaved rounds, over the same S3
//! server. Each case becomes a JSON document in `bench/results/`, and all documents that lie there the page
//! `docs/benchmarks.md`.

mod cases;
mod chart;
mod document;
mod groups;
pub mod machine;
mod page;
mod stage;
mod summary;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use millrace_workload::caches;

use self::cases::CASES;
use self::document::Document;
use self::groups::GROUPS;
use self::machine::Machine;
use crate::lab::Lab;
use crate::rivals::{self, Contender};

/// Rounds where the user names no number: the interval of five holds the median in 94 % of the cases.
pub const ROUNDS: usize = 5;

/// What the user chose.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Cases to measure; all where none is named.
    #[arg(long, value_name = "CASE", value_delimiter = ',', value_parser = case_names())]
    pub cases: Vec<String>,
    /// Measure nothing: write the page again from the documents.
    #[arg(long)]
    pub page_only: bool,
    /// Folder for a JSON document a case.
    #[arg(long, value_name = "DIR", default_value_os_t = below_source("results"))]
    pub results: PathBuf,
    /// Folder for the page `benchmarks.md` and its plots.
    #[arg(long, value_name = "DIR", default_value_os_t = below_source("../docs"))]
    pub docs: PathBuf,
}

/// Measures, and writes documents and page. Whether all could be measured that are installed.
///
/// # Errors
/// Where Millrace itself cannot be measured, or a file not be written.
pub fn run(lab: &Lab, options: &Options, rounds: usize) -> Result<bool> {
    let mut is_whole = true;
    if !options.page_only {
        caches::check_may_drop()?;
        is_whole = measure(lab, options, rounds)?;
    }
    let documents = document::read_all(&options.results)?;
    page::write(&documents, &options.docs)?;
    println!("{} documents in {:?}; page in {:?}", documents.len(), options.results, options.docs);
    Ok(is_whole)
}

fn measure(lab: &Lab, options: &Options, rounds: usize) -> Result<bool> {
    let (mut contenders, mut skipped): (Vec<(Box<dyn Contender>, String)>, _) = (Vec::new(), Vec::new());
    for contender in rivals::all() {
        match contender.version(lab) {
            Ok(version) => contenders.push((contender, version)),
            Err(error) => {
                let reason = format!("{} is left out: {error:#}", contender.name());
                eprintln!("{reason}");
                skipped.push(reason);
            }
        }
    }
    let ours = rivals::Millrace.name();
    ensure!(contenders.iter().any(|(contender, _)| contender.name() == ours), "{ours} cannot run here");
    let machine = Machine::look(lab)?;
    let wanted = |name: &str| options.cases.is_empty() || options.cases.iter().any(|case| case == name);
    let mut is_whole = true;
    for group in GROUPS.iter().filter(|group| group.cases.iter().any(|case| wanted(case))) {
        let (found, failures) = groups::measure(lab, group, &contenders, rounds)?;
        is_whole &= failures.is_empty();
        for case in CASES.iter().filter(|case| group.cases.contains(&case.name) && wanted(case.name)) {
            let left_out = skipped.iter().chain(&failures).cloned().collect();
            let document = Document::new(case, &machine, rounds, &found, left_out);
            write(&options.results, &document)?;
        }
    }
    Ok(is_whole)
}

fn write(dir: &Path, document: &Document) -> Result<()> {
    let file = dir.join(format!("{}.json", document.case));
    std::fs::create_dir_all(dir).with_context(|| format!("make {dir:?}"))?;
    std::fs::write(&file, document.json()?).with_context(|| format!("write {file:?}"))
}

fn case_names() -> Vec<&'static str> {
    CASES.iter().map(|case| case.name).collect()
}

/// A folder beside the sources that this program was built from.
fn below_source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_belongs_to_one_group() {
        for case in CASES {
            let groups = GROUPS.iter().filter(|group| group.cases.contains(&case.name)).count();
            assert_eq!(groups, 1, "{}", case.name);
        }
        let grouped: usize = GROUPS.iter().map(|group| group.cases.len()).sum();
        assert_eq!(grouped, CASES.len());
    }

    #[test]
    fn the_page_in_the_docs_is_what_the_documents_say() {
        let documents = document::read_all(&below_source("results")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        page::write(&documents, dir.path()).unwrap();
        let plots = documents.iter().map(|document| format!("benchmarks/{}.svg", document.case));
        for file in plots.chain(["benchmarks.md".to_owned()]) {
            let read = |dir: &Path| std::fs::read_to_string(dir.join(&file)).unwrap();
            let is_same = read(dir.path()) == read(&below_source("../docs"));
            assert!(is_same, "{file} is stale: run `bench rivals --page-only`");
        }
    }
}
