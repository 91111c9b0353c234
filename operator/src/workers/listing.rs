//! How is a version made? One worker lists the sources and writes the index; the others fetch it from there.

use std::time::Duration;

use millrace_api::keys::Key;
use millrace_control::client::client;
use millrace_control::proto;
use millrace_control::proto::make_index_progress::Step;
use tokio::time::{Instant, timeout};

/// A worker says how far it is more often than this.
const SILENCE: Duration = Duration::from_secs(60);

/// After the first failure, and at most; doubled between.
const FIRST_PAUSE: Duration = Duration::from_secs(3);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Hash of the sources.
    pub sources: String,
    /// Value of the refresh annotation.
    pub refresh: Option<String>,
    /// The whole of the sources, credentials too: with others, a failure is no longer one.
    pub generation: i64,
}

/// How far the listing is.
#[derive(Debug, Clone, Default)]
pub enum Listing {
    /// Nothing is being listed.
    #[default]
    Idle,
    /// A worker lists.
    Running {
        /// What.
        subject: Subject,
        /// Which worker.
        worker: String,
        /// Objects found so far.
        objects: u64,
        /// Why the try before this one failed.
        former: Option<proto::Failure>,
    },
    /// It was listed.
    Made {
        /// What.
        subject: Subject,
        /// The version.
        made: proto::IndexMade,
    },
    /// It could not be listed.
    Failed {
        /// What.
        subject: Subject,
        /// Why.
        failure: proto::Failure,
        /// When.
        at: Instant,
        /// How often in a row.
        tries: u32,
    },
}

/// How long to wait after `tries` failures in a row.
pub fn pause(tries: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << tries.saturating_sub(1).min(8)).min(LONGEST_PAUSE)
}

/// Has the worker with this control port list the sources; `progress` is told how many objects it has found.
///
/// # Errors
/// Why it could not, in the worker's words.
pub async fn list(
    address: &str,
    key: Key,
    request: proto::MakeIndexRequest,
    progress: impl Fn(u64),
) -> Result<proto::IndexMade, proto::Failure> {
    let mut client = client(address, key).map_err(|error| unreachable(error.to_string()))?;
    let stream = match timeout(SILENCE, client.make_index(request)).await {
        Ok(answer) => answer.map_err(|status| unreachable(status.message().to_owned()))?,
        Err(_) => return Err(unreachable(format!("no answer within {SILENCE:?}"))),
    };
    let mut steps = stream.into_inner();
    loop {
        let step = match timeout(SILENCE, steps.message()).await {
            Ok(step) => step.map_err(|status| unreachable(status.message().to_owned()))?,
            Err(_) => return Err(unreachable(format!("it said nothing for {SILENCE:?}"))),
        };
        match step {
            Some(proto::MakeIndexProgress { step: Some(Step::Listing(now)) }) => progress(now.objects),
            Some(proto::MakeIndexProgress { step: Some(Step::Made(made)) }) => return Ok(made),
            Some(proto::MakeIndexProgress { step: Some(Step::Failed(failure)) }) => return Err(failure),
            Some(proto::MakeIndexProgress { step: None }) => {}
            None => return Err(unreachable("it ended without an answer".to_owned())),
        }
    }
}

/// Reason of a failure that is the worker's and not the bucket's.
pub const WORKER_LOST: &str = "WorkerLost";

fn unreachable(why: String) -> proto::Failure {
    proto::Failure {
        reason: WORKER_LOST.to_owned(),
        message: format!("the worker that listed was lost: {why}"),
        source: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_are_tried_less_and_less_often() {
        let pauses: Vec<u64> = (1..8).map(|tries| pause(tries).as_secs()).collect();
        assert_eq!(pauses, [3, 6, 12, 24, 48, 60, 60]);
    }
}
