//! How are results drawn?

use millrace_workload::plot::svg::{Anchor, Drawing};
use millrace_workload::plot::{BLUE, Bar, GREEN, GREY, LEFT, RED, RIGHT, bars};
use millrace_workload::train::timeline::Point;
use millrace_workload::tree::size_text;

use super::document::{Document, Line, TrainLine};

/// All results as one SVG file.
pub fn draw(document: &Document) -> String {
    let mut drawing = Drawing::default();
    head(&mut drawing, document);
    let megabytes = rows(&document.results, |line| line.megabytes_per_second);
    bars(&mut drawing, "MB/s", &coloured(megabytes, BLUE));
    // A file that is read takes longer than an entry that is looked at by a factor of a hundred.
    let of = |is_read: bool| {
        let is_of = |line: &&Line| line.block_bytes.is_none() && (line.outcome.bytes > 0) == is_read;
        let lines: Vec<Line> = document.results.iter().filter(is_of).cloned().collect();
        rows(&lines, |line| line.files_per_second)
    };
    bars(&mut drawing, "small files a second", &coloured(of(true), GREEN));
    bars(&mut drawing, "entries a second", &coloured(of(false), GREEN));
    for line in &document.training {
        training(&mut drawing, line);
    }
    drawing.finish()
}

fn head(drawing: &mut Drawing, document: &Document) {
    let top = drawing.take(64.0);
    let kind = document.file_system.as_ref().map_or("unknown", |file_system| &file_system.kind);
    drawing.text(20.0, top + 30.0, 18, Anchor::Start, &format!("{} ({kind})", document.path.display()));
    let machine = &document.machine;
    let line = format!(
        "{}, kernel {}, {} processors, {}, millrace {}",
        document.started_at,
        machine.kernel,
        machine.processors,
        size_text(machine.memory_bytes),
        document.version
    );
    drawing.text(20.0, top + 50.0, 12, Anchor::Start, &line);
}

/// A row for each kind of measurement, with the middle of its repetitions; in order of appearance.
fn rows(lines: &[Line], value: fn(&Line) -> f64) -> Vec<(String, f64)> {
    let mut rows: Vec<(String, Vec<f64>)> = Vec::new();
    for line in lines.iter().filter(|line| value(line) > 0.0) {
        let label = label(line);
        match rows.iter_mut().find(|(known, _)| *known == label) {
            Some((_, values)) => values.push(value(line)),
            None => rows.push((label, vec![value(line)])),
        }
    }
    let middle = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    rows.into_iter().map(|(label, values)| (label, middle(values))).collect()
}

fn label(line: &Line) -> String {
    let mut label = line.variant.unwrap_or(line.case).to_owned();
    if line.is_direct && line.case != "direct" {
        label.push_str(" O_DIRECT");
    }
    if let Some(bytes) = line.block_bytes {
        label.push_str(&format!(", {}", size_text(bytes)));
    }
    if line.threads > 1 {
        label.push_str(&format!(", {} threads", line.threads));
    }
    label
}

fn coloured(rows: Vec<(String, f64)>, fill: &'static str) -> Vec<Bar> {
    rows.into_iter().map(|(label, value)| Bar { label, value, interval: None, fill }).collect()
}

/// Shares of the accelerators' time over time, one on the other: computing, waiting for others, waiting for data.
fn training(drawing: &mut Drawing, line: &TrainLine) {
    const HEIGHT: f64 = 160.0;
    let top = drawing.take(HEIGHT + 84.0);
    let outcome = &line.outcome;
    let au = outcome.au.map_or_else(|| "unknown".to_owned(), |au| format!("{:.1} %", au * 100.0));
    let title = format!("{} on {} x {}: AU {au}", line.profile, line.ranks, line.accelerator);
    drawing.text(LEFT, top + 20.0, 14, Anchor::Start, &title);
    let (ceiling, floor) = (top + 34.0, top + 34.0 + HEIGHT);
    let shares: [fn(&Point) -> f64; 3] = [
        |_| 1.0,
        |point| (point.compute + point.barrier) / (point.compute + point.barrier + point.wait),
        |point| point.utilization().unwrap_or(0.0),
    ];
    let points: Vec<(usize, &Point)> = outcome
        .timeline
        .points
        .iter()
        .enumerate()
        .filter(|(_, point)| point.utilization().is_some())
        .collect();
    let step = (RIGHT - LEFT) / outcome.timeline.points.len().max(1) as f64;
    for (share, fill) in shares.iter().zip([RED, GREY, GREEN]) {
        let mut shape = Vec::with_capacity(points.len() * 4);
        for (index, point) in &points {
            let (x, y) = (LEFT + step * *index as f64, floor - HEIGHT * share(point));
            shape.extend([(x, floor), (x, y), (x + step, y), (x + step, floor)]);
        }
        drawing.polygon(&shape, fill);
    }
    for percent in [0.0, 50.0, 100.0] {
        let y = floor - HEIGHT * percent / 100.0;
        drawing.text(LEFT - 10.0, y + 4.0, 12, Anchor::End, &format!("{percent:.0} %"));
    }
    let least = floor - HEIGHT * outcome.least_au;
    drawing.line([LEFT, least, RIGHT, least], "#222", true);
    drawing.text(
        RIGHT + 6.0,
        least + 4.0,
        12,
        Anchor::Start,
        &format!("{:.0} % needed", outcome.least_au * 100.0),
    );
    drawing.line([LEFT, ceiling, LEFT, floor], "#222", false);
    drawing.line([LEFT, floor, RIGHT, floor], "#222", false);
    let seconds = outcome.timeline.width_seconds * outcome.timeline.points.len() as f64;
    drawing.text(LEFT, floor + 16.0, 12, Anchor::Start, "0 s");
    drawing.text(RIGHT, floor + 16.0, 12, Anchor::End, &format!("{seconds:.0} s"));
    let mut x = LEFT;
    for (name, fill) in [("computing", GREEN), ("waiting for others", GREY), ("waiting for data", RED)] {
        drawing.rectangle([x, floor + 26.0, 12.0, 12.0], fill);
        drawing.text(x + 18.0, floor + 36.0, 12, Anchor::Start, name);
        x += 150.0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::measure::TrainedFrom;
    use super::super::plan::{Step, What};
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use millrace_workload::blocks::Access;
    use millrace_workload::run::Outcome;
    use millrace_workload::train::Training;
    use millrace_workload::train::timeline::Timeline;
    use std::path::Path;

    fn outcome(bytes: u64, files: u64) -> Outcome {
        Outcome { seconds: 1.0, operations: 10, bytes, files, is_complete: true, latency: None }
    }

    fn document() -> Document {
        let mut document = Document::new(Path::new("/"), 1, false).unwrap();
        let random = Step {
            case: super::super::args::Case::Random,
            what: What::Random(4096, Access::Direct),
            threads: 4,
        };
        for (repetition, bytes) in [(1, 100_000_000), (2, 900_000_000), (3, 300_000_000)] {
            document.results.push(Line::new(random, repetition, outcome(bytes, 0), None));
        }
        let small = Step { case: super::super::args::Case::SmallFiles, what: What::SmallFiles, threads: 1 };
        document.results.push(Line::new(small, 1, outcome(5_000_000, 777), None));
        document
    }

    #[test]
    fn a_row_is_the_middle_of_its_repetitions() {
        let rows = rows(&document().results, |line| line.megabytes_per_second);
        let wanted =
            [("random O_DIRECT, 4 KiB, 4 threads".to_owned(), 300.0), ("small-files".to_owned(), 5.0)];
        assert_eq!(rows, wanted);
    }

    #[test]
    fn a_drawing_shows_bars_and_the_time_of_accelerators() {
        let mut document = document();
        let cli = Cli::try_parse_from(["millrace", "bench", "/", "train"]).unwrap();
        let Command::Bench(args) = cli.command else { panic!("another command") };
        let points = vec![Point { wait: 1.0, compute: 3.0, barrier: 0.0 }, Point::default()];
        let training = Training {
            epochs: Vec::new(),
            au: Some(0.75),
            least_au: 0.9,
            is_reached: false,
            seconds: 1.0,
            samples: 1,
            bytes: 1,
            latency: None,
            timeline: Timeline { width_seconds: 0.5, points },
        };
        let from = TrainedFrom { files: 1, bytes: 1, doubts: Vec::new() };
        document.training.push(TrainLine::new(&args.measure.train, 2, 1, training, from, None));
        let svg = draw(&document);
        for text in [
            "777",
            "resnet50-raw on 2 x A100: AU 75.0 %",
            "90 % needed",
            "waiting for data",
            "<polygon",
            "1 s",
        ] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains("NaN") && svg.matches("<svg").count() == 1 && svg.ends_with("</svg>\n"));
    }
}
