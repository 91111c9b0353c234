//! How fast is a folder, as training jobs use it?

pub mod args;
mod document;
mod generate;
pub mod help;
mod measure;
mod plan;
mod plot;
mod text;
mod values;
mod worker_metrics;

use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget};
use millrace_workload::caches;

use self::args::{BenchArgs, BenchCommand, MeasureArgs};
use self::document::{Document, Line, TrainLine};
use self::measure::{Folder, Measured};
use self::plan::{Step, Strictness};
use crate::args::Output;
use crate::exit;

/// Does what was asked for.
///
/// # Errors
/// See [`measure`] and [`generate`].
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    match &args.command {
        Some(BenchCommand::Generate(args)) => generate::generate(args),
        None => measure_all(&args.measure),
    }
}

/// Measures a folder and prints the results as they come.
///
/// # Errors
/// Where a case that was asked for cannot be measured; results before it are kept.
fn measure_all(args: &MeasureArgs) -> anyhow::Result<()> {
    let path = args.path.as_deref().context("PATH: name the folder to measure")?;
    if args.drop_caches {
        caches::check_may_drop()?;
    }
    worker_metrics::read(&args.worker_metrics)?;
    let seed = args.seed.unwrap_or_else(rand::random);
    let mut document = Document::new(path, seed, args.drop_caches)?;
    let (steps, strictness) = plan::steps(args);
    let folder = Folder::new(args, path, seed, document.machine.memory_bytes);
    if steps.iter().any(|step| step.what.has_line()) {
        tell(args, &text::head())?;
    }
    let done = all(args, &folder, &steps, strictness, &mut document);
    if let Err(error) = &done {
        if document.is_empty() {
            return done;
        }
        document.notes.push(format!("ended early: {error:#}"));
    }
    tell(args, &text::sustained(&document.training))?;
    if let Some(note) = folder.note() {
        tell(args, &format!("note: {note}\n"))?;
        document.notes.push(note);
    }
    tell(args, &format!("seed {seed}\n"))?;
    finish(args, &document)?;
    done
}

/// Makes all measurements.
fn all(
    args: &MeasureArgs,
    folder: &Folder<'_>,
    steps: &[Step],
    strictness: Strictness,
    document: &mut Document,
) -> anyhow::Result<()> {
    for repetition in 1..=args.repeat {
        for step in steps {
            one(args, folder, *step, repetition, strictness, document)?;
        }
    }
    Ok(())
}

/// Makes one measurement and tells it.
fn one(
    args: &MeasureArgs,
    folder: &Folder<'_>,
    step: Step,
    repetition: u32,
    strictness: Strictness,
    document: &mut Document,
) -> anyhow::Result<()> {
    let before = worker_metrics::read(&args.worker_metrics)?;
    let spinner = spinner(step);
    let measured = folder.measure(step, repetition - 1);
    spinner.finish_and_clear();
    let measured = match measured {
        Ok(measured) => measured,
        Err(error) if strictness == Strictness::WhatIsPossible && error.is_about_the_folder() => {
            let reason = format!("{}: {error}", step.case.name());
            if !document.skipped.contains(&reason) {
                tell(args, &format!("skipped {reason}\n"))?;
                document.skipped.push(reason);
            }
            return Ok(());
        }
        Err(error) => return Err(error).with_context(|| format!("measure {}", step.case.name())),
    };
    let after = worker_metrics::read(&args.worker_metrics)?;
    let origin = after.zip(before).map(|(after, before)| after.since(before));
    match measured {
        Measured::Run(outcome) => {
            let line = Line::new(step, repetition, outcome, origin);
            tell(args, &text::line(&line))?;
            document.results.push(line);
        }
        Measured::Train(training, from) => {
            let line = TrainLine::new(&args.train, step.threads, repetition, training, from, origin);
            tell(args, &text::train(&line))?;
            document.training.push(line);
        }
        Measured::Overhead(overhead) => {
            tell(args, &text::overhead(&overhead))?;
            document.overhead = Some(overhead);
        }
    }
    Ok(())
}

/// Says on a terminal what is being measured; elsewhere nothing.
fn spinner(step: Step) -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    spinner.set_message(format!("measuring {} ...", step.text()));
    // Rare enough to cost nothing that could be measured.
    spinner.enable_steady_tick(Duration::from_millis(500));
    spinner
}

fn tell(args: &MeasureArgs, text: &str) -> anyhow::Result<()> {
    if args.output == Output::Text { exit::print(text) } else { Ok(()) }
}

/// Prints and keeps the document.
fn finish(args: &MeasureArgs, document: &Document) -> anyhow::Result<()> {
    if args.output == Output::Json {
        exit::print(&document.json()?)?;
    }
    if let Some(file) = &args.json {
        std::fs::write(file, document.json()?).with_context(|| format!("write {file:?}"))?;
    }
    if let Some(file) = &args.plot {
        std::fs::write(file, plot::draw(document)).with_context(|| format!("write {file:?}"))?;
    }
    Ok(())
}
