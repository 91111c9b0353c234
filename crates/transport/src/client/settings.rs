//! How do the workers say that the dataset is to be mounted?

use std::sync::Arc;
use std::time::Duration;

use millrace_api::mount::MountSettings;
use millrace_api::wire::{ErrorCode, Request};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Inner;
use super::connection::{Connection, Event};
use super::link::Pick;
use crate::Priority;

/// Wait before all workers are asked once more: whoever waits for a first version waits for seconds at least.
const NEXT_ROUND: Duration = Duration::from_millis(500);

/// Why nobody says how to mount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GetMountSettings {
    /// The dataset has no version within the deadline: its objects are being listed, or cannot be.
    #[error("the dataset has no version to mount yet")]
    NotIndexed,
    /// All workers are of a build that does not know the question.
    #[error("the workers are too old to say how the dataset is mounted: upgrade them")]
    Unsupported,
    /// No worker answered within the deadline.
    #[error("no worker said within the deadline how the dataset is mounted; last trouble: {trouble}")]
    NoAnswer {
        /// What was last wrong.
        trouble: String,
    },
}

/// Asks one worker after the other, again and again until the deadline.
pub(super) async fn mount_settings(
    client: &Arc<Inner>,
    deadline: Instant,
) -> Result<MountSettings, GetMountSettings> {
    let mut last = GetMountSettings::NoAnswer { trouble: "no worker could be asked".to_owned() };
    let mut changes = client.changes.subscribe();
    loop {
        let roster = client.roster();
        let mut unsupported = 0;
        for link in &roster.links {
            let said = match link.pick(client, Priority::Foreground) {
                Pick::Ask(connection) => match timeout_at(deadline, ask(client, &connection)).await {
                    Ok(Ok(settings)) => return Ok(settings),
                    Ok(Err(said)) => said,
                    Err(_) => return Err(last),
                },
                Pick::Wait => continue,
                Pick::Down(trouble) => Said::Trouble(trouble),
            };
            last = match said {
                Said::NotIndexed => GetMountSettings::NotIndexed,
                Said::Unsupported => {
                    unsupported += 1;
                    GetMountSettings::Unsupported
                }
                // That one of several workers is away matters less than what another has said.
                Said::Trouble(_) if last == GetMountSettings::NotIndexed => last,
                Said::Trouble(trouble) => {
                    GetMountSettings::NoAnswer { trouble: format!("worker {:?}: {trouble}", link.name) }
                }
            };
        }
        if unsupported > 0 && unsupported == roster.links.len() {
            return Err(GetMountSettings::Unsupported);
        }
        let next_round = Instant::now() + NEXT_ROUND;
        tokio::select! {
            _ = changes.changed() => {}
            () = sleep_until(next_round.min(deadline)) => {}
        }
        if Instant::now() >= deadline {
            return Err(last);
        }
    }
}

enum Said {
    NotIndexed,
    Unsupported,
    Trouble(String),
}

async fn ask(client: &Inner, connection: &Connection) -> Result<MountSettings, Said> {
    let (events, mut answers) = mpsc::channel(1);
    let id = client.next_request();
    if !connection.ask(id, &Request::GetMountSettings, &events) {
        return Err(Said::Trouble("the connection was just closed".to_owned()));
    }
    let answer = answers.recv().await;
    connection.end(id);
    match answer {
        Some(Event::Settings { settings, .. }) => Ok(settings),
        Some(Event::Error { error, .. }) => Err(match error.code {
            ErrorCode::NotIndexed => Said::NotIndexed,
            ErrorCode::Unsupported => Said::Unsupported,
            code => Said::Trouble(format!("{code}: {}", error.message)),
        }),
        Some(Event::Lost { trouble, .. }) => Err(Said::Trouble(trouble)),
        Some(Event::Data(_) | Event::Index { .. }) | None => {
            Err(Said::Trouble("it answered something else than was asked".to_owned()))
        }
    }
}
