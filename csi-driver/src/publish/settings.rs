//! What is a dataset to be mounted as, right now? A worker says.

use millrace_api::keys::Key;
use millrace_api::mount::MountSettings;
use millrace_api::placement::Membership;
use millrace_transport::client::{Client, ClientConfig, GetMountSettings, Timing};
use tokio::time::Instant;

use super::error::PublishError;
use super::request::Dataset;

/// Asks until a worker says it, or the deadline.
///
/// # Errors
/// [`PublishError::AskWorkers`] or [`PublishError::NotIndexed`].
pub async fn ask(
    dataset: &Dataset,
    key: &Key,
    node: &str,
    deadline: Instant,
) -> Result<MountSettings, PublishError> {
    let config = ClientConfig {
        key: key.clone(),
        name: format!("publish/{}@{node}", dataset.full_name()),
        membership: Membership { epoch: 0, workers: Vec::new() },
        // For one small question.
        connections_per_worker: 1,
        timing: Timing::default(),
    };
    let failed = |trouble| PublishError::AskWorkers {
        dataset: dataset.full_name(),
        workers: dataset.workers.clone(),
        trouble,
    };
    let client =
        Client::bootstrap(config, &dataset.workers, deadline).await.map_err(|error| failed(error.trouble))?;
    client.mount_settings(deadline).await.map_err(|error| match error {
        GetMountSettings::NotIndexed => PublishError::NotIndexed { dataset: dataset.full_name() },
        GetMountSettings::NoAnswer { trouble } => failed(trouble),
        unsupported @ GetMountSettings::Unsupported => failed(unsupported.to_string()),
    })
}
