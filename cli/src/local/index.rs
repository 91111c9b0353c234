//! How does the Dataset get a version?

use anyhow::{Context, anyhow, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use millrace_control::proto::make_index_progress::Step;
use millrace_control::{dataset, proto};

use super::ask;
use super::progress::Progress;
use super::run_file::WorkerRun;
use super::start::System;
use super::version_file::VersionRecord;

/// Lists the sources at the first worker. Where that fails and there is an earlier version of the same sources, warns and uses
/// that.
///
/// # Errors
/// Why the sources cannot be listed.
pub async fn make(system: &System) -> anyhow::Result<VersionRecord> {
    let before = VersionRecord::read(&system.folder)?.filter(|version| version.is_of(&system.plan.spec));
    let run = system.run();
    let first = run.workers.first().context("no worker")?;
    let version = match (list(system, first).await, before) {
        (Ok(made), _) => VersionRecord::new(&made, &system.plan.spec, Time(Timestamp::now())),
        (Err(error), Some(mut before)) => {
            eprintln!("warning: {error:#}; using the version of {}", before.since.0);
            before.listing_error = Some(format!("{error:#}"));
            before
        }
        (Err(error), None) => return Err(error),
    };
    version.write(&system.folder)?;
    Ok(version)
}

/// Lists the sources at `worker`, since no worker has the index any more.
///
/// # Errors
/// Why the sources cannot be listed.
pub async fn make_again(system: &System, worker: &WorkerRun) -> anyhow::Result<VersionRecord> {
    let before = VersionRecord::read(&system.folder)?;
    let made = list(system, worker).await?;
    let mut version = VersionRecord::new(&made, &system.plan.spec, Time(Timestamp::now()));
    if let Some(before) = before.filter(|before| before.id == version.id) {
        version.since = before.since;
    }
    version.write(&system.folder)?;
    Ok(version)
}

async fn list(system: &System, worker: &WorkerRun) -> anyhow::Result<proto::IndexMade> {
    let mut client = ask::worker(worker, &system.identity.control_key)?;
    let request = proto::MakeIndexRequest {
        sources: dataset::sources(&system.plan.spec),
        block_size_bytes: system.plan.spec.workers.cache.block_size().bytes(),
    };
    let mut progress = Progress::new("listing");
    let mut steps = client.make_index(request).await.map_err(|status| ask::refusal(&status))?.into_inner();
    while let Some(proto::MakeIndexProgress { step }) =
        steps.message().await.map_err(|status| ask::refusal(&status)).context("list the sources")?
    {
        match step {
            Some(Step::Listing(now)) => progress.listing(now.objects, now.bytes),
            Some(Step::Made(made)) => return Ok(made),
            Some(Step::Failed(failure)) => return Err(failed(system, &failure)),
            None => {}
        }
    }
    bail!("list the sources: worker {} ended without an answer", worker.name)
}

/// In the user's words: his source, field and value.
fn failed(system: &System, failure: &proto::Failure) -> anyhow::Error {
    let proto::Failure { reason, message, source } = failure;
    let wanted = source.trim_matches('/');
    let sources = &system.plan.spec.sources;
    let at = sources.iter().position(|source| source.path.trim_matches('/') == wanted);
    match at.and_then(|at| sources.get(at)) {
        Some(found) => {
            let at = at.unwrap_or_default();
            anyhow!("spec.sources[{at}] ({}, bucket {:?}): {message} ({reason})", found.path, found.s3.bucket)
        }
        None => anyhow!("list the sources: {message} ({reason})"),
    }
}
