//! The program `train-mnist`.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Parser;
use millrace_train_mnist::idx::{Sample, Samples};
use millrace_train_mnist::softmax::Model;

/// Samples of one step, and the step's length: usual values for this model.
const BATCH: usize = 100;
const RATE: f32 = 0.5;

/// Fits a small model to MNIST and prints how many pictures it tells right that it has not seen.
#[derive(Debug, Parser)]
#[command(name = "train-mnist", version)]
struct Args {
    /// Folder with train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz and the same of t10k.
    folder: PathBuf,
    /// How often the training set is read.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Exit code 1 if the accuracy is lower, 0 to 1.
    #[arg(long, default_value_t = 0.0)]
    least_accuracy: f64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut model = Model::default();
    for epoch in 1..=args.epochs {
        let started = Instant::now();
        let (samples, loss) = train(&mut model, &args).with_context(|| format!("epoch {epoch}"))?;
        println!(
            "epoch {epoch}: {samples} samples, loss {loss:.4}, {:.1} s",
            started.elapsed().as_secs_f64()
        );
    }
    let (right, all) = test(&model, &args).context("test set")?;
    let accuracy = right as f64 / all as f64;
    println!("accuracy: {:.2} % ({right} of {all} pictures it has not seen)", accuracy * 100.0);
    ensure!(accuracy >= args.least_accuracy, "accuracy {accuracy:.4} is below {}", args.least_accuracy);
    Ok(())
}

/// One pass over the training set, which is in random order as it is.
fn train(model: &mut Model, args: &Args) -> anyhow::Result<(usize, f32)> {
    let mut samples = Samples::open(&args.folder, "train")?;
    let (mut count, mut loss) = (0, 0.0);
    loop {
        let batch: Vec<Sample> = samples.by_ref().take(BATCH).collect::<Result<_, _>>()?;
        if batch.is_empty() {
            break;
        }
        loss += model.learn(&batch, RATE) * batch.len() as f32;
        count += batch.len();
    }
    ensure!(count > 0, "the training set in {:?} is empty", args.folder);
    Ok((count, loss / count as f32))
}

fn test(model: &Model, args: &Args) -> anyhow::Result<(usize, usize)> {
    let (mut right, mut all) = (0, 0);
    for sample in Samples::open(&args.folder, "t10k")? {
        let sample = sample?;
        right += usize::from(model.predict(&sample.pixels) == sample.label);
        all += 1;
    }
    ensure!(all > 0, "the test set in {:?} is empty", args.folder);
    Ok((right, all))
}
