//! How does an index come from the workers into a file?

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millrace_api::ids::VersionId;
use millrace_api::placement::PlacementKey;
use millrace_api::wire::{GetIndex, MAX_PAYLOAD_BYTES, Request};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Inner;
use super::connection::{Connection, Event};
use super::link::Pick;
use crate::Priority;

/// Parts asked for at once: hides a round trip, and is little beside the reads that share the connection.
const PARTS_IN_FLIGHT: usize = 4;

/// Wait before all workers are asked once more, unless one comes back earlier.
const NEXT_ROUND: Duration = Duration::from_millis(200);

/// Why an index could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchIndex {
    /// The file cannot be written.
    #[error("write the index of version {version} to {path:?}")]
    Write {
        /// Dataset version.
        version: VersionId,
        /// Where to.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No worker gave it in time.
    #[error("no worker gave the index of version {version} within the deadline; last trouble: {trouble}")]
    DeadlinePassed {
        /// Dataset version.
        version: VersionId,
        /// What was last wrong.
        trouble: String,
    },
}

/// A file that an index is written to, part by part.
struct Partial {
    version: VersionId,
    path: PathBuf,
    file: Arc<File>,
    /// All before this offset is written.
    written: u64,
    total: Option<u64>,
}

enum Stop {
    /// This worker cannot go on; another may.
    Worker(String),
    Write(io::Error),
}

pub(super) async fn fetch_index(
    client: &Arc<Inner>,
    version: VersionId,
    path: &Path,
    deadline: Instant,
) -> Result<u64, FetchIndex> {
    let write = |source| FetchIndex::Write { version, path: path.to_owned(), source };
    let file = {
        let path = path.to_owned();
        blocking(move || OpenOptions::new().write(true).create(true).truncate(true).open(path)).await
    };
    let file = Arc::new(file.map_err(write)?);
    let mut partial = Partial { version, path: path.to_owned(), file, written: 0, total: None };
    let mut trouble = "no worker could be asked".to_owned();
    let mut changes = client.changes.subscribe();
    loop {
        let roster = client.roster();
        let placement = PlacementKey(version.0.iter().fold(0, |key, byte| (key << 8) ^ u64::from(*byte)));
        for index in roster.membership.order(placement) {
            let link = &roster.links[index];
            let connection = match link.pick(client, Priority::Prefetch) {
                Pick::Ask(connection) => connection,
                Pick::Wait => continue,
                Pick::Down(reason) => {
                    trouble = format!("worker {:?}: {reason}", link.name);
                    continue;
                }
            };
            match timeout_at(deadline, partial.fetch_from(client, &connection)).await {
                Ok(Ok(len)) => return Ok(len),
                Ok(Err(Stop::Write(source))) => {
                    return Err(FetchIndex::Write { version, path: partial.path, source });
                }
                Ok(Err(Stop::Worker(reason))) => trouble = format!("worker {:?}: {reason}", link.name),
                Err(_) => return Err(FetchIndex::DeadlinePassed { version, trouble }),
            }
        }
        let next_round = Instant::now() + NEXT_ROUND;
        tokio::select! {
            _ = changes.changed() => {}
            () = sleep_until(next_round.min(deadline)) => {}
        }
        if Instant::now() >= deadline {
            return Err(FetchIndex::DeadlinePassed { version, trouble });
        }
    }
}

impl Partial {
    /// Fetches what is missing over one connection.
    async fn fetch_from(&mut self, client: &Inner, connection: &Connection) -> Result<u64, Stop> {
        let (events, mut answers) = mpsc::channel(2 * PARTS_IN_FLIGHT);
        let mut open = OpenParts { connection, offsets: HashMap::new() };
        let mut next = self.written;
        loop {
            while open.offsets.len() < PARTS_IN_FLIGHT
                && (self.total.is_some_and(|total| next < total)
                    || (self.total.is_none() && open.offsets.is_empty()))
            {
                let id = client.next_request();
                let get = GetIndex { version: self.version, offset: next, len: MAX_PAYLOAD_BYTES };
                if !connection.ask(id, &Request::GetIndex(get), &events) {
                    return Err(Stop::Worker("the connection was just closed".to_owned()));
                }
                open.offsets.insert(id, next);
                next += u64::from(MAX_PAYLOAD_BYTES);
            }
            if let Some(total) = self.total
                && open.offsets.is_empty()
            {
                return Ok(total);
            }
            match answers.recv().await {
                Some(Event::Index { request, head, payload }) => {
                    let Some(offset) = open.end(request) else { continue };
                    let wanted = head.total_len.saturating_sub(offset).min(MAX_PAYLOAD_BYTES.into());
                    let is_wrong = head.offset != offset
                        || u64::from(head.payload_len) != wanted
                        || self.total.is_some_and(|total| total != head.total_len);
                    if is_wrong {
                        return Err(Stop::Worker(
                            "it sent another part of the index than asked for".to_owned(),
                        ));
                    }
                    self.total = Some(head.total_len);
                    self.write(offset, payload).await.map_err(Stop::Write)?;
                    // Parts that are still open come later or are asked for again.
                    self.written = open.offsets.values().copied().min().unwrap_or(next).min(next);
                }
                Some(Event::Error { error, .. }) => {
                    return Err(Stop::Worker(format!("{}: {}", error.code, error.message)));
                }
                Some(Event::Lost { trouble, .. }) => return Err(Stop::Worker(trouble)),
                Some(Event::Data(_) | Event::Settings { .. }) | None => {}
            }
        }
    }

    async fn write(&self, offset: u64, payload: Bytes) -> io::Result<()> {
        let file = Arc::clone(&self.file);
        blocking(move || file.write_all_at(&payload, offset)).await
    }
}

/// Parts in flight; those that are open when it is dropped are cancelled.
struct OpenParts<'a> {
    connection: &'a Connection,
    offsets: HashMap<u64, u64>,
}

impl OpenParts<'_> {
    fn end(&mut self, id: u64) -> Option<u64> {
        self.connection.end(id);
        self.offsets.remove(&id)
    }
}

impl Drop for OpenParts<'_> {
    fn drop(&mut self) {
        for id in self.offsets.keys() {
            self.connection.cancel(*id);
        }
    }
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(call).await.map_err(io::Error::other)?
}
