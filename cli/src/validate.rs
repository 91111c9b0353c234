//! Is a user's file valid, as it is and for one machine?

use millrace_api::dataset::manifest::Manifest;

use crate::args::ValidateArgs;
use crate::exit;

/// Checks a file and says what it is; Secrets that it names and does not hold are noted, for in a cluster they may be there, and
/// so are objects of other kinds, which are not checked.
///
/// # Errors
/// All problems of the file at once.
pub fn validate(args: &ValidateArgs) -> anyhow::Result<()> {
    let manifest = crate::manifest::read(&args.file)?;
    for problem in manifest.secret_problems() {
        eprintln!("note: {problem}");
    }
    for other in &manifest.others {
        eprintln!("note: {other} is not checked");
    }
    exit::print(&describe(&manifest))
}

fn describe(manifest: &Manifest) -> String {
    let Manifest { dataset, secrets, others: _ } = manifest;
    let metadata = &dataset.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let (sources, workers) = (dataset.spec.sources.len(), dataset.spec.workers.replicas);
    let count = |n: usize, noun: &str| format!("{n} {noun}{}", if n == 1 { "" } else { "s" });
    format!(
        "valid: Dataset {namespace}/{name}, {}, {}, {}\n",
        count(sources, "source"),
        count(usize::try_from(workers).unwrap_or(0), "worker"),
        count(secrets.len(), "Secret"),
    )
}
