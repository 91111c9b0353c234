//! How is a worker asked, and how are its refusals worded?

use std::time::Duration;

use anyhow::{Context, anyhow};
use millrace_api::keys::Key;
use millrace_control::client::{Client, client};
use millrace_control::proto;
use millrace_control::tonic::{Code, Status};

use super::run_file::WorkerRun;

/// For one question: the client's own deadline is for the connection, and this for all of it.
const ANSWER: Duration = Duration::from_secs(5);

/// A client of a worker.
///
/// # Errors
/// Where the worker does not serve yet.
pub fn worker(worker: &WorkerRun, key: &Key) -> anyhow::Result<Client> {
    let addresses =
        worker.addresses.as_ref().with_context(|| format!("worker {} does not serve yet", worker.name))?;
    Ok(client(&addresses.control, key.clone())?)
}

/// The worker's state now.
///
/// # Errors
/// Where it does not answer in time.
pub async fn status(run: &WorkerRun, key: &Key) -> anyhow::Result<proto::WorkerStatus> {
    let mut client = worker(run, key)?;
    let first = async {
        let mut stream =
            client.status(proto::StatusRequest {}).await.map_err(|status| refusal(&status))?.into_inner();
        stream.message().await.map_err(|status| refusal(&status))?.ok_or_else(|| anyhow!("it ended"))
    };
    in_time(&run.name, first).await
}

/// Waits for an answer, and says whose it is where it fails.
///
/// # Errors
/// Names the worker.
pub async fn in_time<T>(worker: &str, answer: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    match tokio::time::timeout(ANSWER, answer).await {
        Ok(answer) => answer.with_context(|| format!("ask worker {worker}")),
        Err(_) => Err(anyhow!("ask worker {worker}: no answer within {ANSWER:?}")),
    }
}

/// A refusal as the user reads it.
pub fn refusal(status: &Status) -> anyhow::Error {
    let message = status.message();
    match status.code() {
        Code::Unavailable => anyhow!("it cannot be reached ({message})"),
        Code::Unauthenticated => anyhow!("it does not take the key: {message}"),
        _ if message.is_empty() => anyhow!("it answers {:?}", status.code()),
        _ => anyhow!("{message}"),
    }
}
