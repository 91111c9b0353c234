//! What do tests of those who read statuses take for a worker's? Not for programs.

use crate::proto;

/// A worker with one version `v`.
pub fn worker(state: proto::WarmUpState, done: u64, total: u64, failed: &[&str]) -> proto::WorkerStatus {
    let failures = failed.iter().map(|path| proto::ObjectFailure {
        path: (*path).to_owned(),
        reason: "NoSuchKey".into(),
        ..Default::default()
    });
    let warm_up = proto::WarmUp {
        state: state.into(),
        bytes_done: done,
        bytes_total: total,
        failed: failed.len() as u64,
        failures: failures.collect(),
        ..Default::default()
    };
    let version = proto::VersionStatus {
        version: "v".into(),
        index_ready: true,
        warm_up: Some(warm_up),
        ..Default::default()
    };
    proto::WorkerStatus { worker: "w".into(), versions: vec![version], ..Default::default() }
}
