//! How far is the warm-up of a version, over all workers? Pure.

use crate::proto;

/// Failures that are named; the rest is counted.
const NAMED: usize = 20;

/// What the warm-ups of all workers are together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// No worker was asked to.
    Idle,
    /// At least one works, or does not answer.
    Running,
    /// All are through; objects may have failed.
    Done,
    /// Some caches are full, and nobody works any more.
    Full,
    /// Paused or cancelled at some, and nobody works any more.
    Stopped,
}

/// The warm-up of a version.
#[derive(Debug, Clone, PartialEq)]
pub struct WarmUp {
    /// What is going on.
    pub phase: Phase,
    /// Bytes loaded or found.
    pub bytes_done: u64,
    /// Bytes asked for, each counted at its owner.
    pub bytes_total: u64,
    /// Objects that failed.
    pub failed: u64,
    /// Some of them.
    pub failures: Vec<proto::ObjectFailure>,
}

/// Merges what the workers say; `None` is one that does not answer.
pub fn merge<'a>(
    workers: impl IntoIterator<Item = Option<&'a proto::WorkerStatus>>,
    version: &str,
) -> WarmUp {
    use proto::WarmUpState as State;
    let mut states = Vec::new();
    let mut merged =
        WarmUp { phase: Phase::Idle, bytes_done: 0, bytes_total: 0, failed: 0, failures: Vec::new() };
    for worker in workers {
        let warm_up = worker
            .and_then(|worker| worker.versions.iter().find(|status| status.version == version))
            .and_then(|status| status.warm_up.as_ref());
        let Some(warm_up) = warm_up else {
            states.push(State::Unspecified);
            continue;
        };
        states.push(warm_up.state());
        merged.bytes_done += warm_up.bytes_done;
        merged.bytes_total += warm_up.bytes_total;
        merged.failed += warm_up.failed;
        merged.failures.extend(warm_up.failures.iter().cloned());
    }
    merged.failures.sort_by(|a, b| a.path.cmp(&b.path));
    merged.failures.dedup_by(|a, b| a.path == b.path);
    merged.failures.truncate(NAMED);
    let any = |wanted: &[State]| states.iter().any(|state| wanted.contains(state));
    merged.phase = if states.iter().all(|state| *state == State::Idle) {
        Phase::Idle
    } else if any(&[State::Running, State::Unspecified, State::Idle]) {
        Phase::Running
    } else if any(&[State::Paused, State::Cancelled]) {
        Phase::Stopped
    } else if any(&[State::Full]) {
        Phase::Full
    } else {
        Phase::Done
    };
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::worker;
    use proto::WarmUpState as State;

    fn phase(states: &[Option<State>]) -> Phase {
        let workers: Vec<_> =
            states.iter().map(|state| state.map(|state| worker(state, 0, 0, &[]))).collect();
        merge(workers.iter().map(Option::as_ref), "v").phase
    }

    #[test]
    fn one_that_works_or_is_silent_keeps_the_warm_up_running() {
        assert_eq!(phase(&[Some(State::Done), Some(State::Running)]), Phase::Running);
        assert_eq!(phase(&[Some(State::Done), None]), Phase::Running);
        assert_eq!(phase(&[Some(State::Done), Some(State::Idle)]), Phase::Running);
        assert_eq!(phase(&[Some(State::Full), Some(State::Running)]), Phase::Running);
    }

    #[test]
    fn ends_are_told_apart() {
        assert_eq!(phase(&[Some(State::Idle), Some(State::Idle)]), Phase::Idle);
        assert_eq!(phase(&[Some(State::Done), Some(State::Done)]), Phase::Done);
        assert_eq!(phase(&[Some(State::Done), Some(State::Full)]), Phase::Full);
        assert_eq!(phase(&[Some(State::Full), Some(State::Cancelled)]), Phase::Stopped);
    }

    #[test]
    fn numbers_add_up_and_failures_are_named_once() {
        let workers = [worker(State::Done, 3, 4, &["b", "a"]), worker(State::Done, 5, 6, &["a"])];
        let merged = merge(workers.iter().map(Some), "v");
        assert_eq!((merged.bytes_done, merged.bytes_total, merged.failed), (8, 10, 3));
        assert_eq!(
            merged.failures.iter().map(|failure| failure.path.as_str()).collect::<Vec<_>>(),
            ["a", "b"]
        );
        assert_eq!(merge(workers.iter().map(Some), "other").phase, Phase::Running);
    }
}
