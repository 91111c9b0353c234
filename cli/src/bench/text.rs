//! How are results shown to people?

use std::collections::BTreeSet;

use millrace_workload::overhead::Overhead;
use millrace_workload::tree::size_text;

use super::document::{Line, TrainLine};
use super::worker_metrics::Origin;

/// The head of the table.
pub fn head() -> String {
    format!(
        "{:<12} {:<11} {:>8} {:>7} {:>9} {:>10} {:>10} {:>9} {:>9} {:>9}  {}\n",
        "case", "", "block", "threads", "MB/s", "ops/s", "files/s", "p50", "p99", "max", "read"
    )
}

/// A line of the table.
pub fn line(line: &Line) -> String {
    let outcome = &line.outcome;
    let block = line.block_bytes.map_or_else(|| "-".to_owned(), size_text);
    let time = |micros: Option<f64>| micros.map_or_else(|| "-".to_owned(), time_text);
    let latency = outcome.latency.as_ref();
    format!(
        "{:<12} {:<11} {:>8} {:>7} {:>9} {:>10} {:>10} {:>9} {:>9} {:>9}  {}\n",
        line.case,
        line.variant.unwrap_or(if line.is_direct { "O_DIRECT" } else { "" }),
        block,
        line.threads,
        some_number(line.megabytes_per_second),
        some_number(line.operations_per_second),
        some_number(line.files_per_second),
        time(latency.map(|latency| latency.p50_us)),
        time(latency.map(|latency| latency.p99_us)),
        time(latency.map(|latency| latency.max_us)),
        amount(line),
    ) + &origin_text(line.origin)
}

/// A job: what it came to, and below that each epoch and what speaks against it.
pub fn train(line: &TrainLine) -> String {
    let outcome = &line.outcome;
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let au = |au: Option<f64>| au.map_or_else(|| "unknown".to_owned(), percent);
    let verdict = if outcome.is_reached { "fast enough" } else { "too slow" };
    let latency = outcome.latency.as_ref().map_or_else(String::new, |latency| {
        format!("; a sample takes {} (p99 {})", time_text(latency.p50_us), time_text(latency.p99_us))
    });
    let mut text = format!(
        "train        {} on {} x {} from {} files, {}: AU {} of the {} needed: {verdict}; {} MB/s, {} samples/s{latency}\n",
        line.profile,
        line.ranks,
        line.accelerator,
        line.from.files,
        size_text(line.from.bytes),
        au(outcome.au),
        percent(outcome.least_au),
        some_number(line.megabytes_per_second),
        some_number(line.samples_per_second),
    );
    for (number, epoch) in outcome.epochs.iter().enumerate() {
        let all = epoch.wait_seconds + epoch.compute_seconds + epoch.barrier_seconds;
        let part = |seconds: f64| percent(if all > 0.0 { seconds / all } else { 0.0 });
        text.push_str(&format!(
            "  epoch {}: AU {}, {} steps in {:.1} s; waiting for data {}, computing {}, waiting for others {}; first batch after {}\n",
            number + 1,
            au(epoch.au),
            epoch.steps,
            epoch.seconds,
            part(epoch.wait_seconds),
            part(epoch.compute_seconds),
            part(epoch.barrier_seconds),
            time_text(epoch.first_wait_seconds * 1e6),
        ));
    }
    for doubt in &line.from.doubts {
        text.push_str(&format!("  note: {doubt}\n"));
    }
    text + &origin_text(line.origin)
}

/// How many accelerators the folder keeps busy, where several numbers were tried; empty otherwise.
pub fn sustained(lines: &[TrainLine]) -> String {
    let tried: BTreeSet<usize> = lines.iter().map(|line| line.ranks).collect();
    if tried.len() < 2 {
        return String::new();
    }
    let is_reached =
        |ranks: &usize| lines.iter().filter(|line| line.ranks == *ranks).all(|line| line.outcome.is_reached);
    // Above a number that is too slow a faster one is luck.
    match (tried.iter().copied().take_while(is_reached).last(), tried.last()) {
        (Some(most), Some(last)) if most == *last => {
            format!("accelerators kept busy: {most}, and maybe more\n")
        }
        (Some(most), _) => format!("accelerators kept busy: {most}\n"),
        (None, _) => {
            format!("accelerators kept busy: fewer than {}\n", tried.first().copied().unwrap_or_default())
        }
    }
}

/// What the program itself costs.
pub fn overhead(overhead: &Overhead) -> String {
    format!(
        "overhead     a 4 KiB read takes {} here and {} in a bare loop: {:.2} %; the emulator without storage: AU {:.2} %\n",
        time_text(overhead.read_nanos / 1e3),
        time_text(overhead.bare_nanos / 1e3),
        overhead.read_share * 100.0,
        overhead.emulator_au * 100.0,
    )
}

fn origin_text(origin: Option<Origin>) -> String {
    origin.map_or_else(String::new, |origin| {
        format!(
            "  S3: {} requests, {:.1} MB, {} failed tries; workers sent {:.1} MB to readers\n",
            origin.requests,
            origin.bytes / 1e6,
            origin.errors,
            origin.read_bytes / 1e6
        )
    })
}

/// How much was read or seen, in how long, and whether that was all.
fn amount(line: &Line) -> String {
    let outcome = &line.outcome;
    let what = match (outcome.bytes, outcome.files) {
        (0, files) => format!("{files} entries"),
        (bytes, 0) => size_text(bytes),
        (bytes, files) => format!("{}, {files} files", size_text(bytes)),
    };
    let end = if outcome.is_complete { "" } else { ", not all" };
    format!("{what} in {}{end}", time_text(outcome.seconds * 1e6))
}

/// A number with three digits or more, `-` for nothing.
fn some_number(value: f64) -> String {
    match value {
        value if value <= 0.0 => "-".to_owned(),
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// A time from microseconds, three digits.
pub fn time_text(micros: f64) -> String {
    let (value, unit) = match micros {
        micros if micros < 1.0 => (micros * 1e3, "ns"),
        micros if micros < 1e3 => (micros, "µs"),
        micros if micros < 1e6 => (micros / 1e3, "ms"),
        micros => (micros / 1e6, "s"),
    };
    match value {
        value if value < 10.0 => format!("{value:.2} {unit}"),
        value if value < 100.0 => format!("{value:.1} {unit}"),
        value => format!("{value:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::measure::TrainedFrom;
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use millrace_workload::train::Training;
    use millrace_workload::train::timeline::Timeline;

    fn trained(ranks: usize, is_reached: bool) -> TrainLine {
        let outcome = Training {
            epochs: Vec::new(),
            au: Some(if is_reached { 0.95 } else { 0.5 }),
            least_au: 0.9,
            is_reached,
            seconds: 2.0,
            samples: 100,
            bytes: 2_000_000,
            latency: None,
            timeline: Timeline::default(),
        };
        let cli = Cli::try_parse_from(["millrace", "bench", "/", "train"]).unwrap();
        let Command::Bench(args) = cli.command else { panic!("another command") };
        let from = TrainedFrom { files: 8, bytes: 2 << 20, doubts: vec!["a doubt".to_owned()] };
        TrainLine::new(&args.measure.train, ranks, 1, outcome, from, None)
    }

    #[test]
    fn a_job_says_whether_storage_was_fast_enough_and_what_speaks_against_it() {
        let text = train(&trained(2, false));
        assert!(
            text.contains(
                "resnet50-raw on 2 x A100 from 8 files, 2 MiB: AU 50.0 % of the 90.0 % needed: too slow"
            ),
            "{text}"
        );
        assert!(text.contains("1.00 MB/s, 50.0 samples/s") && text.contains("note: a doubt"), "{text}");
    }

    #[test]
    fn the_largest_number_of_accelerators_that_is_reached_is_sustained() {
        let of = |lines: &[(usize, bool)]| {
            sustained(
                &lines.iter().map(|(ranks, is_reached)| trained(*ranks, *is_reached)).collect::<Vec<_>>(),
            )
        };
        assert_eq!(of(&[(1, true), (2, true), (4, false)]), "accelerators kept busy: 2\n");
        assert_eq!(of(&[(1, true), (2, false), (4, true)]), "accelerators kept busy: 1\n");
        assert_eq!(of(&[(1, true), (2, true), (2, false)]), "accelerators kept busy: 1\n");
        assert!(of(&[(1, true), (4, true)]).contains("4, and maybe more"));
        assert!(of(&[(1, false), (4, false)]).contains("fewer than 1"));
        assert_eq!(of(&[(1, true)]), "");
    }

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let texts = [0.7, 1.0, 12.3, 999.0, 1_500.0, 2_500_000.0].map(time_text);
        assert_eq!(texts, ["700 ns", "1.00 µs", "12.3 µs", "999 µs", "1.50 ms", "2.50 s"]);
        assert_eq!([0.0, 1.5, 15.0, 1234.6].map(some_number), ["-", "1.50", "15.0", "1235"]);
    }
}
