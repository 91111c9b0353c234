//! What does a worker say about itself?

use millrace_api::ids::VersionId;
use millrace_control::proto;
use millrace_store::NotKept;

use crate::cached::Share;
use crate::metrics::From;
use crate::origin::Troubled;
use crate::reads::failures::Failure;
use crate::warm::WarmUpNow;
use crate::warm::ledger::{Failed, State};
use crate::worker::Worker;

/// Failures named in a status; all are counted.
const NAMED: usize = 20;

/// The worker's state now.
pub fn status(worker: &Worker) -> proto::WorkerStatus {
    let (sessions, session_count) = super::sessions::sessions(worker.sessions.now());
    proto::WorkerStatus {
        worker: worker.members.name().to_owned(),
        start_id: worker.start_id.clone(),
        boot_id: worker.boot_id.clone(),
        epoch: worker.members.current().epoch,
        versions: worker.in_use().iter().map(|version| version_status(worker, version)).collect(),
        store: Some(store(worker)),
        origin: Some(origin(worker)),
        degraded: Some(degraded(worker)),
        connections: worker.server_counters.connections.get() as u32,
        sessions,
        origin_trouble: worker.sources.trouble().map(|(source, troubled)| origin_trouble(source, &troubled)),
        session_count,
    }
}

/// The state of one version.
fn version_status(worker: &Worker, version: &VersionId) -> proto::VersionStatus {
    let is_ready = worker.versions.get(version).is_some();
    let shares = worker.cached.now(version);
    let trouble = if is_ready { None } else { worker.index_trouble(version) };
    proto::VersionStatus {
        version: version.to_string(),
        index_ready: is_ready,
        cached: Some(cached(shares.cached)),
        owned: Some(cached(shares.owned)),
        warm_up: Some(warm_up(&worker.warm_ups.now(version, NAMED))),
        failed: trouble.map(|message| proto::Failure {
            reason: "NoIndex".into(),
            message,
            source: String::new(),
        }),
    }
}

fn cached(share: Share) -> proto::Cached {
    proto::Cached { bytes: share.bytes, objects: share.objects, blocks: share.blocks }
}

/// A warm-up as the control port tells it.
pub fn warm_up(now: &WarmUpNow) -> proto::WarmUp {
    let state = match now.state {
        State::Idle => proto::WarmUpState::Idle,
        State::Running => proto::WarmUpState::Running,
        State::Paused => proto::WarmUpState::Paused,
        State::Done => proto::WarmUpState::Done,
        State::Cancelled => proto::WarmUpState::Cancelled,
        State::Full => proto::WarmUpState::Full,
    };
    proto::WarmUp {
        state: state.into(),
        listed: now.listed,
        done: now.counts.done,
        failed: now.counts.failed,
        pending: now.pending,
        bytes_done: now.counts.bytes_done,
        bytes_total: now.bytes_total,
        failures: now.failures.iter().map(unit_failure).collect(),
    }
}

fn unit_failure(failed: &Failed) -> proto::ObjectFailure {
    proto::ObjectFailure {
        path: failed.path.clone(),
        reason: failed.reason.clone(),
        message: failed.message.clone(),
        at_ms: failed.at_ms,
    }
}

/// A failed object as the control port tells it.
pub fn object_failure(failure: &Failure) -> proto::ObjectFailure {
    proto::ObjectFailure {
        path: failure.path.to_string(),
        reason: failure.error.reason.to_owned(),
        message: failure.error.message.clone(),
        at_ms: failure.at_ms,
    }
}

fn degraded(worker: &Worker) -> proto::Degraded {
    let failures = worker.fetcher.failures.lock();
    let last = failures.newest(NAMED);
    proto::Degraded { objects: failures.len() as u64, last: last.iter().map(object_failure).collect() }
}

fn origin_trouble(source: String, troubled: &Troubled) -> proto::OriginTrouble {
    let Troubled { why, since_ms } = troubled;
    let (reason, message) = (why.kind().name().to_owned(), why.to_string());
    proto::OriginTrouble { reason, message, source, since_ms: *since_ms }
}

fn store(worker: &Worker) -> proto::StoreUsage {
    let (usage, stats) = (worker.fetcher.store.usage(), worker.fetcher.store.stats());
    let not_kept = NotKept::ALL.iter().zip(stats.not_kept).filter(|(_, count)| *count > 0);
    let metrics = &worker.fetcher.metrics;
    proto::StoreUsage {
        bytes: usage.used_bytes(),
        quota_bytes: usage.tiers.iter().map(|tier| tier.quota_bytes).sum(),
        files: usage.tiers.iter().map(|tier| tier.files).sum(),
        files_max: worker.max_files * usage.tiers.len() as u64,
        evictions: stats.evicted_blocks,
        corrupt_chunks: stats.corrupt_chunks,
        not_kept: not_kept
            .map(|(reason, count)| proto::ReasonCount { reason: reason.label().to_owned(), count })
            .collect(),
        hits: metrics.chunks_sent(From::Hit),
        misses: metrics.chunks_sent(From::Miss),
        joins: metrics.chunks_sent(From::Join),
    }
}

fn origin(worker: &Worker) -> proto::OriginCounters {
    let now = worker.sources.counters().now();
    proto::OriginCounters {
        requests: now.gets + now.lists,
        bytes: now.bytes,
        retries: now.retries,
        throttles: now.throttles,
        errors: now.errors.iter().map(|(_, count)| count).sum(),
    }
}
