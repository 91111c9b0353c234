//! How is a data set made for the user?

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace_workload::generate::DataSet;
use millrace_workload::train::profile::{Accelerator, Profile};
use millrace_workload::tree::size_text;

use super::args::GenerateArgs;
use crate::exit;

/// Makes it and says what it is.
///
/// # Errors
/// Where it cannot be written, or the folder is not empty.
pub fn generate(args: &GenerateArgs) -> anyhow::Result<()> {
    let data_set = data_set(args);
    let bytes = data_set.bytes();
    let bar = progress(bytes);
    data_set.make(&args.path, &mut |written| bar.inc(written)).context("generate")?;
    bar.finish_and_clear();
    let scale = if args.sample_scale == 1.0 {
        String::new()
    } else {
        format!(" --sample-scale {}", args.sample_scale)
    };
    let model = data_set.profile.model.name();
    exit::print(&format!(
        "{} files, {}; now: millrace bench {} train --profile {model}{scale}\n",
        data_set.files,
        size_text(bytes),
        args.path.display(),
    ))
}

fn data_set(args: &GenerateArgs) -> DataSet {
    // The data does not depend on the accelerator.
    let profile = Profile::new(args.profile.into(), Accelerator::A100).with_sample_scale(args.sample_scale);
    let share = |scale: f64| (profile.files as f64 * scale).round().max(1.0) as u64;
    let files = args.files.or(args.scale.map(share)).unwrap_or(profile.files);
    DataSet { profile, files, seed: args.seed }
}

fn progress(bytes: u64) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(bytes), target);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
