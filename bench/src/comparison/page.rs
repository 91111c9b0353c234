//! How are the documents told to people?

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use millrace_workload::plot::number_text;

use super::document::{Document, Figures};
use super::summary::{is_better, losses, two};
use super::{chart, groups};

const HEAD: &str = "# Against other ways to read a bucket

<!-- `bench rivals` writes this page from bench/results/*.json; its words are in bench/src/comparison/. -->

Millrace, a local disk with the same files, two other programs that mount a bucket, and a plain parallel download: on one machine, in one run, over the
same S3 server.

```sh
make bench-rivals                                                    # all of this page
B=target/x86_64-unknown-linux-gnu/release/bench
$B rivals --cases epoch-first --rounds 1 --results /tmp/r --docs /tmp/d  # a quick look that leaves this page alone
```

Bars that Millrace has to meet, with more rounds, are those of `make bench` ([bench/README.md](../bench/README.md)). `millrace bench` asks the same of
your own mounts ([bench-command.md](bench-command.md)).
";

const METHOD: &str = "
- The contenders take turns, in another order each round. A figure is the median over the rounds; beside it the 90 % interval
  of the median by order statistics (of five rounds: the lowest and the highest), and the spread: the distance of the quartiles as a share of the median.
- Each first read begins with new processes, a new mount and empty caches. Before each measurement the kernel's page cache, directory entries and inodes
  are dropped, for the local disk too.
- All that Millrace, s3fs and rclone keep lies on the same disk, without a bound. Pages that a process has mapped stay
  in memory when the kernel's caches are dropped.
- *Memory* is the most anonymous memory (`RssAnon`) of all processes of a contender together, looked at every 20 ms; page cache is not in it. *S3 requests* and
  *bytes out of S3* are counted by the server until the reader is done; what a tool still fetches then is not in them.
- In the first round bytes are compared with the objects, outside the time.
- All processes, the S3 server and the reader too, share the processors. Ratios between contenders say more than the figures alone.
";

/// Writes the page and its plots into a folder.
///
/// # Errors
/// Where a file cannot be written.
pub fn write(documents: &[Document], docs: &Path) -> Result<()> {
    let plots = docs.join("benchmarks");
    std::fs::create_dir_all(&plots).with_context(|| format!("make {plots:?}"))?;
    let put =
        |file: &Path, text: String| std::fs::write(file, text).with_context(|| format!("write {file:?}"));
    for document in documents {
        put(&plots.join(format!("{}.svg", document.case)), chart::draw(document))?;
    }
    put(&docs.join("benchmarks.md"), page(documents))
}

/// The page.
fn page(documents: &[Document]) -> String {
    let mut page = HEAD.to_owned();
    if documents.is_empty() {
        page.push_str("\nNothing has been measured yet.\n");
        return page;
    }
    page.push_str("\n## At a glance\n\n");
    page.push_str(&glance(documents));
    page.push_str("\nThe best figure of a row is bold.\n\n## Where others win\n\n");
    page.push_str(&all_losses(documents));
    page.push_str("\n## Method\n\n");
    page.push_str(&origin());
    page.push_str(METHOD.trim_start());
    page.push_str(&machines(documents));
    page.push_str(&setups(documents));
    for document in documents {
        page.push_str(&section(document));
    }
    page
}

/// Names of all contenders, in order of appearance.
fn names(documents: &[Document]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for figures in documents.iter().flat_map(|document| &document.contenders) {
        if !names.contains(&figures.name.as_str()) {
            names.push(&figures.name);
        }
    }
    names
}

fn glance(documents: &[Document]) -> String {
    let names = names(documents);
    let mut text = format!("| | unit | {} |\n|---|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for document in documents {
        let of = |name: &&str| document.contenders.iter().find(|figures| figures.name == **name);
        let cell = |name: &&str| match of(name) {
            None => "-".to_owned(),
            Some(figures) if is_best(document, figures) => format!("**{}**", number_text(figures.median)),
            Some(figures) => number_text(figures.median),
        };
        let cells: Vec<String> = names.iter().map(cell).collect();
        let (title, unit, link) = (&document.title, &document.unit, anchor(&document.title));
        add(&mut text, format_args!("| [{title}](#{link}) | {unit} | {} |\n", cells.join(" | ")));
    }
    text
}

fn is_best(document: &Document, figures: &Figures) -> bool {
    !document.contenders.iter().any(|other| is_better(document.better, other.median, figures.median))
}

fn all_losses(documents: &[Document]) -> String {
    let mut text = String::new();
    for document in documents {
        for loss in losses(document) {
            add(&mut text, format_args!("- {}: {loss}\n", document.title));
        }
    }
    if text.is_empty() { "In no row.\n".to_owned() } else { text }
}

fn origin() -> String {
    let (first_byte, cap) = (groups::FIRST_BYTE.as_millis(), groups::CAP / 1_000_000);
    format!(
        "- The S3 server (`crates/s3-server`) runs on the same machine and computes its objects; it takes {first_byte} ms to the first byte of every answer and sends \
         {cap} MB/s in all.\n"
    )
}

/// Each machine with the cases that were measured on it.
fn machines(documents: &[Document]) -> String {
    let mut lines: Vec<(String, Vec<&str>)> = Vec::new();
    for document in documents {
        let day = document.measured_at.split('T').next().unwrap_or_default();
        let words = format!("{}; {day}, {} rounds", document.machine.words(), document.rounds);
        match lines.iter_mut().find(|(known, _)| *known == words) {
            Some((_, cases)) => cases.push(&document.case),
            None => lines.push((words, vec![&document.case])),
        }
    }
    let mut text = "\n## Machine\n\n".to_owned();
    for (words, cases) in &lines {
        let which = if lines.len() > 1 { format!(" ({})", cases.join(", ")) } else { String::new() };
        add(&mut text, format_args!("- {words}{which}\n"));
    }
    text
}

fn setups(documents: &[Document]) -> String {
    let mut text = "\n## Contenders\n\n| | version | how it is set up |\n|---|---|---|\n".to_owned();
    let all = || documents.iter().flat_map(|document| &document.contenders);
    for name in names(documents) {
        let mut told: Vec<(&str, &str)> = Vec::new();
        for Figures { version, setup, .. } in all().filter(|figures| figures.name == name) {
            if !told.contains(&(version, setup)) {
                told.push((version, setup));
                add(&mut text, format_args!("| {name} | {version} | {setup} |\n"));
            }
        }
    }
    text
}

fn section(document: &Document) -> String {
    let Document { case, title, method, unit, item, left_out, .. } = document;
    let mut text = format!("\n## {title}\n\n{method}\n\n![{title}](benchmarks/{case}.svg)\n\n");
    add(
        &mut text,
        format_args!(
            "| | {unit} | interval | spread | S3 requests a {item} | bytes out of S3 a byte read | memory, MiB |\n|---|---|---|---|---|---|---|\n"
        ),
    );
    for figures in &document.contenders {
        let Figures { name, median, interval: (low, high), spread, .. } = figures;
        let beside = [figures.requests_per_item, figures.bytes_per_byte, figures.memory_mib];
        let [requests, bytes, memory] = beside.map(|figure| figure.map_or_else(|| "-".to_owned(), two));
        let (median, low, high) = (number_text(*median), number_text(*low), number_text(*high));
        let percent = spread * 100.0;
        add(
            &mut text,
            format_args!(
                "| {name} | {median} | {low} to {high} | {percent:.0} % | {requests} | {bytes} | {memory} |\n"
            ),
        );
    }
    for reason in left_out {
        add(&mut text, format_args!("\n{reason}.\n"));
    }
    text
}

/// What a heading is called in a link, by the rule of GitHub: lower case, blanks to dashes, no other signs.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter.to_ascii_lowercase() }).collect()
}

fn add(text: &mut String, more: std::fmt::Arguments<'_>) {
    // Writing to memory does not fail.
    let _ = text.write_fmt(more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::cases::Better;
    use crate::comparison::document::tests::{document, figures};

    #[test]
    fn a_page_tells_figures_losses_and_who_is_missing() {
        let mut ours = figures("Millrace", 80.0);
        ours.memory_mib = Some(33.333);
        let page = page(&[document(Better::Higher, vec![ours, figures("ext4", 100.0)])]);
        for text in [
            "| [First epoch](#first-epoch) | files/s | 80.0 | **100** |",
            "- First epoch: ext4 has 100 (Millrace reaches 0.80 of it); Millrace 80.0 files/s.",
            "| Millrace | 80.0 | 80.0 to 80.0 | 0 % | - | - | 33.33 |",
            "![First epoch](benchmarks/epoch-first.svg)",
            "a virtual machine with 2 processors (A), 8 GiB of memory, Linux 6.8",
            "tool is left out: it is not installed.",
            "10 ms to the first byte",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
    }

    #[test]
    fn a_page_of_nothing_claims_nothing() {
        let page = page(&[]);
        assert!(page.contains("Nothing has been measured yet") && !page.contains("In no row"), "{page}");
    }

    #[test]
    fn links_lead_to_headings() {
        assert_eq!(anchor("Random 4 KiB reads, nothing cached"), "random-4-kib-reads-nothing-cached");
    }
}
