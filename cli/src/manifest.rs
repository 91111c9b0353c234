//! What does the file of `-f` hold?

use std::io::Read;
use std::path::Path;

use anyhow::Context;
use millrace_api::dataset::manifest::{MAX_BYTES, Manifest};

/// Reads a file, or stdin for `-`, and checks it.
///
/// # Errors
/// What cannot be read, or all problems of the manifest.
pub fn read(file: &Path) -> anyhow::Result<Manifest> {
    let mut bytes = Vec::new();
    let longest = MAX_BYTES as u64 + 1;
    if file == Path::new("-") {
        std::io::stdin().lock().take(longest).read_to_end(&mut bytes).context("read stdin")?;
    } else {
        let read = std::fs::File::open(file).and_then(|file| file.take(longest).read_to_end(&mut bytes));
        read.with_context(|| format!("read {file:?}: name the file of a Dataset with -f"))?;
    }
    let text = String::from_utf8(bytes).with_context(|| format!("read {file:?}: it is not UTF-8"))?;
    Manifest::parse(&text).with_context(|| format!("{file:?}"))
}
