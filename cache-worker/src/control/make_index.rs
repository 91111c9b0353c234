//! How is the index of a version made at this worker, and what does the caller see of it?

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::Stream;
use millrace_api::block::BlockSize;
use millrace_api::ids::VersionId;
use millrace_control::proto;
use millrace_control::proto::make_index_progress::Step;
use millrace_daemon::causes::with_causes;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::indexer::{self, ListingConfig, MakeIndex, Progress, SourceToIndex};
use crate::origin::Origin;
use crate::origin::error::OriginErrorKind;
use crate::sources::{SourceConfig, UseSources};
use crate::versions::Version;
use crate::worker::Worker;

/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Messages that may wait for the client.
const WAITING: usize = 4;

/// A source and its S3 side.
type Prepared = (SourceConfig, Arc<Origin>);

/// Makes the index of `sources`, takes them into use and serves the version. Ends early when the stream is dropped.
pub(super) fn make_index(
    worker: Arc<Worker>,
    sources: Vec<Prepared>,
    block: BlockSize,
) -> impl Stream<Item = Result<proto::MakeIndexProgress, Status>> + Send + use<> {
    let (told, stream) = mpsc::channel(WAITING);
    let stop = worker.stop_token();
    let spawner = Arc::clone(&worker);
    spawner.spawn("make-index", async move {
        let (progress, seen) = watch::channel(Progress::default());
        let made = make(&worker, sources, block, &progress);
        tokio::pin!(made);
        let last = loop {
            tokio::select! {
                made = &mut made => break made,
                () = tokio::time::sleep(TELL_EVERY) => {
                    let now = *seen.borrow();
                    // A slow client misses steps, not the end.
                    let _ = told.try_send(Ok(step(Step::Listing(listing(&worker, &now)))));
                }
                () = told.closed() => return,
                () = stop.cancelled() => return,
            }
        };
        let last = match last {
            Ok(made) => Step::Made(made),
            Err(failure) => {
                tracing::warn!(reason = failure.reason, error = failure.message, "index not made");
                Step::Failed(failure)
            }
        };
        // The client may have left.
        let _ = told.send(Ok(step(last))).await;
    });
    ReceiverStream::new(stream)
}

fn step(step: Step) -> proto::MakeIndexProgress {
    proto::MakeIndexProgress { step: Some(step) }
}

fn listing(worker: &Worker, now: &Progress) -> proto::Listing {
    proto::Listing { objects: now.shown, bytes: now.bytes, requests: worker.sources.counters().now().lists }
}

async fn make(
    worker: &Arc<Worker>,
    sources: Vec<Prepared>,
    block: BlockSize,
    progress: &watch::Sender<Progress>,
) -> Result<proto::IndexMade, proto::Failure> {
    let started = Instant::now();
    let to_index = sources.iter().map(|(config, origin)| SourceToIndex {
        entry: config.entry(),
        origin: (**origin).clone(),
        include: config.include.clone(),
        exclude: config.exclude.clone(),
    });
    let folder = worker.index_dir();
    // A folder that cannot be made shows when the index is written.
    let _ = std::fs::create_dir_all(folder);
    let made =
        indexer::make_index(to_index.collect(), block, folder, ListingConfig::default(), progress).await;
    let new = made.map_err(|error| failure(&error))?;
    let id = new.version;
    let installed = crate::indexes::install(folder, new.file.path(), id).await;
    let index = installed.map_err(|error| internal(with_causes(&error)))?;
    let version = Version::new(id, index);
    let answer = describe(&version, id, started.elapsed());
    worker.use_sources(sources);
    worker.serve(version);
    Ok(answer)
}

fn describe(version: &Version, id: VersionId, elapsed: Duration) -> proto::IndexMade {
    let view = version.view();
    let totals = view.totals();
    let mut reasons = std::collections::BTreeMap::new();
    for (_, _, reason) in view.left_out() {
        *reasons.entry(reason.to_string()).or_insert(0u64) += 1;
    }
    let listed: u64 = reasons.values().sum();
    if totals.left_out > listed {
        reasons.insert("not listed".to_owned(), totals.left_out - listed);
    }
    proto::IndexMade {
        version: id.to_string(),
        objects: totals.files.into(),
        directories: totals.dirs.into(),
        packs: totals.packs.into(),
        bytes: totals.bytes,
        index_bytes: version.index().len(),
        left_out: totals.left_out,
        left_out_reasons: reasons
            .into_iter()
            .map(|(reason, count)| proto::ReasonCount { reason, count })
            .collect(),
        elapsed_ms: elapsed.as_millis() as u64,
    }
}

/// What the caller is told; reasons as in a condition.
fn failure(error: &MakeIndex) -> proto::Failure {
    let (reason, source) = match error {
        MakeIndex::Glob(_) => ("InvalidGlob", ""),
        MakeIndex::List { path, source } => (source.kind().name(), path.as_str()),
        MakeIndex::Loop { path } => ("EndlessListing", path.as_str()),
        MakeIndex::Write { .. } => ("IndexNotWritten", ""),
        MakeIndex::CutOff => ("Stopping", ""),
    };
    proto::Failure { reason: reason.to_owned(), message: with_causes(error), source: source.to_owned() }
}

/// What the caller is told where a source cannot even be set up.
pub(super) fn not_opened(error: &UseSources) -> proto::MakeIndexProgress {
    let source = if let UseSources::Open { path, .. } = error { path.clone() } else { String::new() };
    let reason = OriginErrorKind::Tls.name().to_owned();
    let failure = proto::Failure { reason, message: with_causes(error), source };
    step(Step::Failed(failure))
}

fn internal(message: String) -> proto::Failure {
    proto::Failure { reason: "IndexNotWritten".to_owned(), message, source: String::new() }
}
