//! How are lines told to programs and to people?

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::line::Line;

/// Where lines are kept.
pub fn results_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results/latest.jsonl")
}

/// Prints a line and appends it to the file.
///
/// # Errors
/// Where the file cannot be written.
pub fn tell(line: &Line, file: &Path) -> Result<()> {
    let text = serde_json::to_string(line)?;
    println!("{text}");
    let append = || -> std::io::Result<()> {
        if let Some(dir) = file.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let mut out = OpenOptions::new().create(true).append(true).open(file)?;
        writeln!(out, "{text}")
    };
    append().with_context(|| format!("append to {file:?}"))
}

/// All lines as a table.
pub fn table(lines: &[Line]) -> String {
    let mut text = format!(
        "{:<16}{:>12}{:>12}{:>9}  {:<9}{:>7}{:>8}  {:<26}{}\n",
        "case", "ours", "baseline", "ratio", "unit", "rounds", "spread", "bar", "met"
    );
    for line in lines {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
        let met = match line.met {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "-",
        };
        text.push_str(&format!(
            "{:<16}{:>12}{:>12}{:>9}  {:<9}{:>7}{:>7.1}%  {:<26}{met}\n",
            line.case,
            number(line.ours),
            number(line.baseline),
            number(line.ratio),
            line.unit,
            line.rounds,
            line.spread * 100.0,
            line.bar,
        ));
        for note in &line.notes {
            text.push_str(&format!("{:<16}  {note}\n", ""));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::{Bar, Figure, Measured, Pair};

    fn line() -> Line {
        let mut measured = Measured::new("c", "MB/s", Bar::AtLeast(Figure::Ratio, 0.9));
        measured.pairs = vec![Pair { ours: 8.0, baseline: Some(10.0) }; 9];
        measured.notes = vec!["a note".to_owned()];
        measured.line()
    }

    #[test]
    fn lines_are_appended_to_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("results/latest.jsonl");
        tell(&line(), &file).unwrap();
        tell(&line(), &file).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let read: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((read.len(), &read[1]["ratio"], &read[1]["met"]), (2, &0.8.into(), &false.into()));
    }

    #[test]
    fn the_table_shows_what_is_missed_and_the_notes() {
        let table = table(&[line()]);
        assert!(
            table.contains("NO") && table.contains("a note") && table.contains("ratio >= 0.9"),
            "{table}"
        );
    }
}
